"""A whole training run on made-up digits: files, results, refusals, bad data."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import signal
from pathlib import Path

import pytest
import soundfile
import torch
import yaml
from filelock import FileLock

from samplewise.asr import train as training
from samplewise.asr import trainer as running
from samplewise.asr.checkpoint import last_checkpoint, load_recogniser
from samplewise.asr.errors import UserError, WriteError
from samplewise.asr.evaluate import Errors, Evaluation
from samplewise.asr.recipe import recipe_from_plain
from samplewise.asr.run_directory import LOCK_FILE
from samplewise.asr.scoring import score
from samplewise.asr.tokenizer import CharacterTokenizer
from samplewise.asr.train import train
from samplewise.cli import main

from .made import RATE, TINY, changed, tiny_recipe, tone

MEMORY = dict.fromkeys(("peak_bytes", "batched_peak_bytes", "logits_bytes", "joint_bytes"), 1)
MEMORY |= {"measured_as": "x", "logits_shape": [1] * 4}


@pytest.fixture(autouse=True)
def no_measuring(monkeypatch):
    """Memory has its own test; a process for each run would take long."""
    monkeypatch.setattr(training, "measure", lambda step: MEMORY)


@pytest.fixture(scope="module")
def finished(digits_directory, tmp_path_factory):
    """One complete run with its results."""
    directory = tmp_path_factory.mktemp("runs") / "tiny"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "measure", lambda step: MEMORY)
        lines: list[str] = []
        recipe = tiny_recipe(training__evaluate_every=3)
        outcome = train(recipe, directory, data=str(digits_directory), resume=False, say=lines.append)
    return directory, outcome, "\n".join(lines)


def log(directory) -> list[dict]:
    return [json.loads(line) for line in (directory / "log.jsonl").read_text().splitlines()]


def test_results_are_in_a_file(finished):
    directory, outcome, _ = finished
    results = json.loads((directory / "results.json").read_text())
    assert results == json.loads(json.dumps(outcome.results))
    assert outcome.stopped_by == 0
    assert (results["steps"], results["seed"], results["recipe"]) == (6, 1, "tiny")
    test = results["test"]
    assert test["utterances"] == 6
    assert test["wer"] == (test["insertions"] + test["deletions"] + test["substitutions"]) / test["words"]
    assert 0 < test["nats_per_label"] < 50
    assert set(test["by_speaker"]) == {"ann", "bob"}
    assert results["parameters"] > 1000 and results["training_seconds"] > 0
    assert results["versions"]["torch"] == torch.__version__
    assert results["data"]["recordings"] == 160 and not results["data"]["synthetic"]
    assert recipe_from_plain(results["recipe_keys"]).training.steps == 6


def test_what_came_out_is_said(finished):
    directory, _, said = finished
    for piece in ("nats per label", "test WER", "memory of the joint and the loss", str(directory / "results.json")):
        assert piece in said


def test_the_log_has_losses_per_label_and_validation_errors(finished):
    directory, _, _ = finished
    lines = log(directory)
    losses = [line for line in lines if "loss" in line]
    assert [line["step"] for line in losses] == [1, 2, 3, 4, 5, 6]
    assert all(math.isfinite(line["transducer_nats_per_label"]) and line["ctc_nats_per_label"] > 0 for line in losses)
    assert losses[-1]["transducer_nats_per_label"] < losses[0]["transducer_nats_per_label"]
    assert all(0 < line["active_share"] <= 1 and 0 <= line["bound"] < 1e-6 for line in losses)
    assert losses[-1]["epoch"] == pytest.approx(6 * 4 / 20)
    assert [line["step"] for line in lines if "eval_wer" in line] == [3, 6]


def test_it_can_be_evaluated_again_with_the_same_result(finished, digits_directory, said):
    directory, outcome, _ = finished
    found = score(str(directory), "digits", data=str(digits_directory), say=said)
    assert found.to_plain() == outcome.results["test"]
    assert str(found.errors) in said.text


def test_a_directory_in_use_is_refused_and_nothing_in_it_lost(finished, digits_directory):
    directory, _, _ = finished
    before = sorted(path.name for path in directory.iterdir())
    with pytest.raises(UserError, match=r"is not empty(.|\n)*--resume(.|\n)*--output"):
        train(tiny_recipe(), directory, data=str(digits_directory), resume=False)
    assert sorted(path.name for path in directory.iterdir()) == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 2}, "seed: 1 became 2"),
        ({"training__steps": 9}, "training.steps: 6 became 9"),
        ({"encoder__hidden": 8}, "encoder.hidden: 16 became 8"),
    ],
)
def test_a_run_is_not_resumed_by_another_recipe(finished, digits_directory, changes, message):
    with pytest.raises(UserError, match=message):
        recipe = tiny_recipe(**{"training__evaluate_every": 3, **changes})
        train(recipe, finished[0], data=str(digits_directory), resume=True, say=print)


def test_a_run_is_not_resumed_on_other_data(finished, digits_directory, tmp_path):
    shutil.copytree(digits_directory, tmp_path / "other")
    soundfile.write(tmp_path / "other" / "recordings" / "1_ann_6.wav", tone(7, 0, 0), RATE)
    with pytest.raises(UserError, match="fingerprint"):
        train(tiny_recipe(training__evaluate_every=3), finished[0], data=str(tmp_path / "other"), resume=True)


def test_one_process_trains_in_a_directory(finished, digits_directory, said):
    directory, _, _ = finished
    with FileLock(directory / LOCK_FILE), pytest.raises(UserError, match=f"another process trains in {directory}"):
        train(tiny_recipe(training__evaluate_every=3), directory, data=str(digits_directory), resume=True, say=said)


def test_a_run_is_not_resumed_by_another_number_of_processes(finished, digits_directory, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="processes: 1 became 2"):
        train(tiny_recipe(training__evaluate_every=3), finished[0], data=str(digits_directory), resume=True)


def test_a_finished_run_resumed_is_only_evaluated(finished, digits_directory, tmp_path, said):
    directory = tmp_path / "copy"
    shutil.copytree(finished[0], directory)
    outcome = train(
        tiny_recipe(training__evaluate_every=3, training__keep=3), directory, data=str(digits_directory), resume=True, say=said
    )
    assert outcome.results["test"]["wer"] == finished[1].results["test"]["wer"]
    assert "resuming from" in said.text


def test_resuming_nothing_starts_from_the_beginning(digits_directory, tmp_path, said):
    train(tiny_recipe(training__steps=1), tmp_path / "new", data=str(digits_directory), resume=True, say=said)
    assert "starting from the beginning" in said.text
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("x")
    with pytest.raises(UserError, match="nothing to resume"):
        train(tiny_recipe(), tmp_path / "other", data=str(digits_directory), resume=True)


def test_a_loss_that_is_not_finite_names_its_utterances(digits_directory, tmp_path, monkeypatch):
    forward = training.Transducer.forward

    def broken(self, *args, **kwargs):
        losses = forward(self, *args, **kwargs)
        return {**losses, "loss": losses["loss"] * float("nan")}

    monkeypatch.setattr(training.Transducer, "forward", broken)
    with pytest.raises(UserError, match=r"step 1: its loss is nan(.|\n)*train string 0:"):
        train(tiny_recipe(training__on_nonfinite="raise"), tmp_path / "run", data=str(digits_directory), resume=False)


def test_files_hold_no_number_that_is_none(digits_directory, tmp_path, monkeypatch, said):
    """NaN and infinity are no JSON: null, and what was found is said; so is how often a frame emitted all that it may."""
    losses = {"transducer": math.nan, "labels": 3.0}
    found = Evaluation(Errors(), losses, [], {}, [], "none", 1.0, [2, 0, 1], 3)
    monkeypatch.setattr(training, "evaluate", lambda *given: found)
    monkeypatch.setattr(running, "load_average", lambda: math.inf)
    monkeypatch.setattr(running, "peak_bytes", lambda: math.nan)
    recipe = tiny_recipe(training__steps=1, training__save_every=1)
    outcome = train(recipe, tmp_path / "run", data=str(digits_directory), resume=False, say=said)
    written = (tmp_path / "run" / "results.json").read_text()
    results = json.loads(written, parse_constant=pytest.fail)
    assert results == outcome.results
    assert (results["test"]["wer"], results["test"]["nats_per_label"], results["training_log"][0]["load_average"]) == (
        None,
    ) * 3
    assert results["not_finite"] == {"test.nats_per_label": "nan"}, "a rate over no words is no number at all"
    assert "test.nats_per_label is nan, which JSON does not have: it is null" in said.text
    (line, *_) = [
        json.loads(line, parse_constant=pytest.fail) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()
    ]
    assert line["load_average"] is None and line["not_finite"] == {"load_average": "inf", "peak_bytes": "nan"}
    json.loads((tmp_path / "run" / "checkpoint-1" / "trainer_state.json").read_text(), parse_constant=pytest.fail)
    assert results["test"]["max_symbols_reached"] == {"frames": 3, "utterances": 2}
    assert "decoding.max_symbols=3 labels were emitted in 3 encoder frames, of 2 of 3 utterances" in said.text


def test_checkpoints_are_kept_as_many_as_asked(finished):
    directory, _, _ = finished
    assert sorted(path.name for path in directory.glob("checkpoint-*")) == ["checkpoint-3", "checkpoint-6"]
    assert last_checkpoint(directory).name == "checkpoint-6"
    assert (directory / "checkpoint-3" / "run.json").is_file()


@pytest.mark.parametrize("precision", ["bf16"])
def test_half_precision(digits_directory, tmp_path, precision):
    recipe = tiny_recipe(training__precision=precision, training__steps=3)
    outcome = train(recipe, tmp_path / "run", data=str(digits_directory), resume=False, say=lambda line: None)
    assert math.isfinite(outcome.results["test"]["nats_per_label"])


def test_it_learns(digits_directory, tmp_path):
    changes = {"data.digits": [1, 1], "data.test_strings": 40, "encoder.hidden": 24, "encoder.dropout": 0.0}
    changes |= {"joiner.dim": 32, "training.learning_rate": 0.02, "training.warmup_steps": 20, "training.steps": 200}
    changes |= {"training.batch_size": 12, "training.length_pool": 1, "training.save_every": 1000}
    recipe = recipe_from_plain(changed(TINY, changes))
    outcome = train(recipe, tmp_path / "run", data=str(digits_directory), resume=False, say=lambda line: None)
    deaf = math.log(10) / 4  # ten words equally likely, of four letters: the loss of a model that knows words and hears nothing
    assert outcome.results["test"]["nats_per_label"] < deaf / 2
    assert outcome.results["test"]["wer"] < 0.9


def test_training_starts_from_another_run(finished, digits_directory, tmp_path, said):
    directory, _, _ = finished
    changes = {"training__start_from": str(directory), "training__steps": 1, "training__learning_rate": 1.0e-9}
    changes["encoder__dropout"] = 0.2
    outcome = train(tiny_recipe(**changes), tmp_path / "run", data=str(digits_directory), resume=False, say=said)
    before = json.loads((directory / "results.json").read_text())["test"]
    assert outcome.results["test"]["nats_per_label"] == pytest.approx(before["nats_per_label"], rel=1e-4)
    assert f"starting from {directory / 'checkpoint-6'}: the whole model, and its vocabulary of 17 classes" in said.text
    assert "not as they were there: encoder.dropout: 0.1 there, 0.2 here" in said.text
    changes["tokenizer"] = {"kind": "characters", "characters": " efghinorstuvwxz!"}
    alone = tiny_recipe(**{**changes, "training__start_with": "encoder", "joiner__dim": 8})
    outcome = train(alone, tmp_path / "encoder", data=str(digits_directory), resume=False, say=said)
    assert outcome.results["classes"] == 18, "the vocabulary is the recipe's"
    encoders = [load_recogniser(path).model.encoder.state_dict() for path in (directory, tmp_path / "encoder")]
    for name, weight in encoders[0].items():
        torch.testing.assert_close(encoders[1][name], weight)
    with pytest.raises(UserError) as error:
        train(tiny_recipe(**changes), tmp_path / "other", data=str(digits_directory), resume=False, say=said)
    both = "tokenizer.characters: ' efghinorstuvwxz' there, ' efghinorstuvwxz!' here"
    assert both in str(error.value) and "training.start_with: encoder" in str(error.value)


def test_a_resumed_run_needs_the_run_no_more_that_it_started_from(finished, digits_directory, tmp_path):
    shutil.copytree(finished[0], tmp_path / "first")
    recipe = tiny_recipe(training__start_from=str(tmp_path / "first"), training__steps=1, training__save_every=1)
    outcomes = []
    for resume in (False, True):
        outcomes.append(train(recipe, tmp_path / "run", data=str(digits_directory), resume=resume, say=lambda line: None))
        shutil.rmtree(tmp_path / "first", ignore_errors=True)
    assert outcomes[0].results["test"] == outcomes[1].results["test"]


def test_a_resumed_run_keeps_its_tokenizer(finished, monkeypatch):
    """Another version of a library might learn other pieces from the same texts."""
    directory, _, _ = finished
    made = CharacterTokenizer("xyz")
    monkeypatch.setattr(training, "make_tokenizer", lambda options, texts: made)
    corpora = training.Corpora(DigitTexts(), None, None, {})
    assert training.find_tokenizer(tiny_recipe(), corpora, None, None) is made
    assert training.find_tokenizer(tiny_recipe(), corpora, None, directory).to_plain()["characters"] == " efghinorstuvwxz"


class DigitTexts:
    def texts(self):
        return []


@pytest.fixture
def interruptible():
    """Ctrl-C is heard, also where the tests run in the background of a shell, which lets its jobs ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_a_stop_in_the_last_evaluation_tells_the_way_on(finished, digits_directory, tmp_path, monkeypatch, capsys, number):
    directory = tmp_path / "copy"
    shutil.copytree(finished[0], directory)
    (directory / "results.json").unlink()
    recipe = tmp_path / "tiny.yaml"
    recipe.write_text(yaml.safe_dump(changed(TINY, {"training.evaluate_every": 3})))
    monkeypatch.setattr(training, "evaluate", lambda *rest: os.kill(os.getpid(), number))
    command = ["train", str(recipe), "--output", str(directory), "--data", str(digits_directory), "--resume"]
    assert main(command) == 128 + number
    said = capsys.readouterr()
    assert f"interrupted. To go on: the same command with --resume (run directory {directory})." in said.out
    assert "Traceback" not in said.out + said.err
    monkeypatch.undo()
    monkeypatch.setattr(training, "measure", lambda step: MEMORY)
    assert main(command) == 0 and (directory / "results.json").exists()


def test_a_stop_before_the_run_begins_leaves_nothing(digits_directory, tmp_path, monkeypatch, said):
    def stop(*rest):
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "make_corpora", stop)
    outcome = train(tiny_recipe(), tmp_path / "run", data=str(digits_directory), resume=True, say=said)
    assert outcome.stopped_by == signal.SIGINT and not (tmp_path / "run").exists()
    assert said.lines[-1] == f"interrupted. To go on: the same command (run directory {tmp_path / 'run'})."


def test_a_failed_start_leaves_nothing(tmp_path, said):
    with pytest.raises(UserError, match="nowhere"):
        train(tiny_recipe(), tmp_path / "run", data=str(tmp_path / "nowhere"), resume=False, say=said)
    assert not (tmp_path / "run").exists()


def test_a_full_disk_at_the_end_costs_the_evaluation_alone(finished, digits_directory, tmp_path, monkeypatch, said):
    directory = tmp_path / "copy"
    shutil.copytree(finished[0], directory)
    written = Path.write_bytes

    def full(self, content):
        if self.name.startswith("results.json"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return written(self, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    way = r"results\.json: the disk is full: .* KiB are needed(.|\n)*To go on: the same command with --resume"
    with pytest.raises(WriteError, match=way):
        train(tiny_recipe(training__evaluate_every=3), directory, data=str(digits_directory), resume=True, say=said)
    assert (directory / "results.json").read_bytes() == (finished[0] / "results.json").read_bytes()
    assert last_checkpoint(directory).name == "checkpoint-6"


def test_a_directory_that_cannot_be_written_is_told(tmp_path, said):
    (tmp_path / "file").write_text("x")
    with pytest.raises(WriteError, match=r"cannot write .*run: Not a directory"):
        train(tiny_recipe(), tmp_path / "file" / "run", data=None, resume=False, say=said)
