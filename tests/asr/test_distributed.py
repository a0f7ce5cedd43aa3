"""Two processes: equal batches, one global mean, the losses of one process that accumulates."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
import yaml

from samplewise.asr import train as training
from samplewise.asr.recipe import recipe_from_plain
from samplewise.asr.train import train
from samplewise.asr.trainer import draw_apart

from .made import TINY, changed

CHANGES = {"training.steps": 5, "training.evaluate_every": 5, "encoder.dropout": 0.0, "predictor.dropout": 0.0}
CHANGES |= {"training.batch_seconds": 1.2}  # of these short strings: batches of two to four


def log(directory) -> list[dict]:
    return [json.loads(line) for line in (directory / "log.jsonl").read_text().splitlines()]


def losses(directory) -> list[tuple[int, float, float]]:
    return [(line["step"], line["loss"], line["transducer_nats_per_label"]) for line in log(directory) if "loss" in line]


def evaluations(directory) -> list[tuple[float, ...]]:
    lines = [line for line in log(directory) if "eval_loss" in line]
    return [(line["eval_wer"], line["eval_loss"], line["eval_ctc_nats_per_label"]) for line in lines]


def test_two_processes_are_one_that_accumulates_two_batches(digits_directory, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "measure", lambda step: None)
    values = changed(changed(TINY, {"predictor": {"kind": "gru", "embedding": 8, "hidden": 16, "dropout": 0.0}}), CHANGES)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(values))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    command += ["-m", "samplewise.cli", "train", str(recipe), "--data", str(digits_directory)]
    done = subprocess.run(
        [*command, "--output", str(tmp_path / "two")],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("test WER") == 1, "only the first process speaks"
    drawn = [
        torch.load(tmp_path / "two" / "checkpoint-5" / f"rng_state_{rank}.pth", weights_only=False)["cpu"] for rank in (0, 1)
    ]
    assert not torch.equal(*drawn), "each process drops and masks by numbers of its own, and resumes with them"
    ratios = [line["frames_imbalance"] for line in log(tmp_path / "two") if "loss" in line]
    assert len(ratios) == 5 and all(1 <= ratio < 1.5 for ratio in ratios)
    accumulated = recipe_from_plain(changed(values, {"training.accumulate": 2}))
    train(accumulated, tmp_path / "one", data=str(digits_directory), resume=False, say=lambda line: None)
    two, one = losses(tmp_path / "two"), losses(tmp_path / "one")
    assert len(two) == 5
    for left, right in zip(two, one, strict=True):
        assert left == pytest.approx(right, rel=2e-5)
    two, one = (evaluations(tmp_path / name) for name in ("two", "one"))
    assert two == [pytest.approx(line, rel=2e-5) for line in one], "each utterance is evaluated once, by one of the processes"
    assert not [line for line in log(tmp_path / "one") if "frames_imbalance" in line], "one process has nobody to wait for"
    results = json.loads((tmp_path / "two" / "results.json").read_text())
    assert results["data"]["processes"] == 2 and results["frames_imbalance"] == max(ratios)
    assert results["test"]["utterances"] == 6


def test_processes_draw_apart_and_the_first_as_it_does_alone():
    drawn = []
    for seed, process in ((1, 0), (1, 1), (1, 2), (2, 1), (1, 1)):
        torch.manual_seed(seed)  # as the Trainer has left it on every process
        draw_apart(seed, process)
        drawn.append(torch.rand(8))
    torch.manual_seed(1)
    assert torch.equal(drawn[0], torch.rand(8)) and torch.equal(drawn[1], drawn[4])
    assert len({tuple(numbers.tolist()) for numbers in drawn}) == 4
