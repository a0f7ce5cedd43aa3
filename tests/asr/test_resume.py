"""A run that was stopped goes on as if it had not been: the same data in the same order, the same losses to the last digit."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from samplewise.asr import train as training
from samplewise.asr.checkpoint import last_checkpoint
from samplewise.asr.recipe import recipe_from_plain
from samplewise.asr.train import train
from samplewise.asr.trainer import Progress
from samplewise.cli import main

from .made import TINY, changed

STEPS = 120  # a child has to be caught in the middle
CHANGES = {"training.steps": STEPS, "training.save_every": 10, "training.evaluate_every": 25, "training.keep": 3}
VALUES = changed(TINY, CHANGES)
SECONDS = 120  # to wait for a child


@pytest.fixture(autouse=True)
def no_measuring(monkeypatch):
    monkeypatch.setattr(training, "measure", lambda step: None)


def assert_same(found, right):
    """The same steps with the same numbers, but for the last digit of a float32: on some machines a norm depends on where in
    memory its terms lie."""
    assert found.keys() == right.keys()
    for step, numbers in right.items():
        assert found[step] == pytest.approx(numbers, rel=5e-7), step


def losses(directory: Path) -> dict[int, tuple[float, float, float]]:
    """Step -> losses, from the log of the run."""
    lines = [json.loads(line) for line in (directory / "log.jsonl").read_text().splitlines()]
    names = ("loss", "transducer_nats_per_label", "grad_norm")
    return {line["step"]: tuple(line[name] for name in names) for line in lines if "loss" in line}


def run(directory: Path, data: Path, resume: bool):
    return train(recipe_from_plain(VALUES), directory, data=str(data), resume=resume, say=lambda line: None)


@pytest.fixture(scope="module")
def unbroken(digits_directory, tmp_path_factory):
    directory = tmp_path_factory.mktemp("unbroken") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "measure", lambda step: None)
        outcome = run(directory, digits_directory, resume=False)
    return directory, outcome


def start(directory: Path, data: Path) -> subprocess.Popen:
    recipe = directory.parent / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(VALUES))
    command = [sys.executable, "-m", "samplewise.cli", "train", str(recipe), "--output", str(directory), "--data", str(data)]
    one_thread = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}  # as here; more would sum in another order
    return subprocess.Popen(
        command, env={**os.environ, **one_thread}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for_step(directory: Path, step: int, child: subprocess.Popen) -> None:
    deadline = time.monotonic() + SECONDS
    log = directory / "log.jsonl"
    while not (log.exists() and f'"step": {step}}}' in log.read_text()):
        assert child.poll() is None, child.communicate()
        assert time.monotonic() < deadline, "the run did not come this far"
        time.sleep(0.01)


def test_after_kill_9(unbroken, digits_directory, tmp_path):
    directory = tmp_path / "run"
    child = start(directory, digits_directory)
    wait_for_step(directory, 34, child)
    child.kill()
    child.communicate()
    reached = max(losses(directory))
    assert 34 <= reached < STEPS
    checkpoint = last_checkpoint(directory)
    half = directory / "checkpoint-9999"  # one that was being written at that moment
    shutil.copytree(checkpoint, half)
    for name in ("trainer_state.json", "run.json"):
        (half / name).unlink()
    outcome = run(directory, digits_directory, resume=True)
    assert not half.exists()
    assert_same(losses(directory), losses(unbroken[0]))
    assert outcome.results["test"] == unbroken[1].results["test"]
    assert outcome.results["steps"] == STEPS


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_after_a_signal(unbroken, digits_directory, tmp_path, number, monkeypatch, capfd):
    directory = tmp_path / "run"
    saw = Progress.saw

    def send(self, *lengths):
        send.steps += 1
        if send.steps == 12:
            os.kill(os.getpid(), number)
        saw(self, *lengths)

    send.steps = 0
    monkeypatch.setattr(Progress, "saw", send)
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(VALUES))
    command = ["train", str(tmp_path / "recipe.yaml"), "--output", str(directory), "--data", str(digits_directory)]
    before = signal.getsignal(number)
    assert main(command) == 128 + number
    assert signal.getsignal(number) is before
    output, errors = capfd.readouterr()
    assert "Traceback" not in output + errors
    assert f"stopped after step 12 of {STEPS}" in output
    assert "--resume" in output and str(directory) in output
    assert last_checkpoint(directory).name == "checkpoint-12"
    assert max(losses(directory)) == 12, "the signal costs no step"
    assert not (directory / "results.json").exists()
    assert main([*command, "--resume"]) == 0
    assert_same(losses(directory), losses(unbroken[0]))


def test_the_order_of_data_matters_to_these_losses(unbroken, digits_directory, tmp_path):
    """That the comparisons above can fail: another seed gives other losses from the first step on."""
    other = changed(VALUES, {"seed": 2, "training.steps": 2})
    train(recipe_from_plain(other), tmp_path / "run", data=str(digits_directory), resume=False, say=lambda line: None)
    assert losses(tmp_path / "run")[1] != losses(unbroken[0])[1]
