"""The command: quick help, exit statuses, errors without traceback, and the way from training to a text."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from samplewise import extras
from samplewise.asr.errors import UserError
from samplewise.asr.problems import BadDataError, named
from samplewise.cli import build_parser, main

HEAVY = ("transformers", "accelerate", "jiwer", "soundfile", "rich", "yaml", "lhotse")
LOADED = """
import sys
import samplewise
before = set(sys.modules)
from samplewise import cli
try:
    cli.main({argv})
except SystemExit:
    pass
print("ADDED", sorted(name for name in set(sys.modules) - before if "." not in name))
"""


def loaded(argv: list[str]) -> str:
    done = subprocess.run([sys.executable, "-c", LOADED.format(argv=argv)], capture_output=True, text=True, check=True)
    return done.stdout.rpartition("ADDED")[2]


def test_help_imports_nothing_heavy():
    added = loaded(["train", "--help"]) + loaded(["prepare", "--help"])
    assert not [name for name in (*HEAVY, "torch") if f"'{name}'" in added]


def test_that_the_test_above_can_fail():
    assert "'yaml'" in loaded(["train", "no-such-recipe.yaml"])


@pytest.mark.parametrize("command", ["prepare", "train", "evaluate", "transcribe"])
def test_help_of_every_command_ends_with_examples(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert f"samplewise {command} " in text.rpartition("examples:")[2]


def test_without_a_command_there_is_help(capsys):
    assert main([]) == 2
    assert "train" in capsys.readouterr().out


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out[0].isdigit()


def test_the_package_runs():
    done = subprocess.run([sys.executable, "-m", "samplewise", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout[0].isdigit()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["train", "none.yaml"], "no recipe at none.yaml"),
        (["train", "{recipe}", "--set", "trainning.steps=3"], "did you mean 'training'"),
        (["train", "{recipe}", "--set", "loss.memory_budget=1B", "--output", "{new}", "--data", "{nowhere}"], "no directory"),
        (["evaluate", "{nowhere}", "digits"], "no checkpoint at"),
        (["transcribe", "{nowhere}", "a.wav"], "no checkpoint at"),
    ],
)
def test_a_mistake_is_one_line_and_status_1(argv, message, tmp_path, capsys):
    recipe = Path(__file__).parents[1] / "recipes" / "digits.yaml"
    places = {"recipe": recipe, "new": tmp_path / "new", "nowhere": tmp_path / "nowhere"}
    assert main([argument.format(**places) for argument in argv]) == 1
    captured = capsys.readouterr()
    assert message in captured.err and captured.err.startswith("samplewise: ")
    assert "Traceback" not in captured.err


def test_a_wrong_option_is_status_2():
    with pytest.raises(SystemExit) as stop:
        main(["train"])
    assert stop.value.code == 2


def test_ctrl_c_before_training_leaves_no_traceback(monkeypatch, capsys):
    def interrupted(arguments):
        raise KeyboardInterrupt

    parser = build_parser()
    parser.set_defaults(run=interrupted)
    monkeypatch.setattr("samplewise.cli.build_parser", lambda: parser)
    assert main([]) == 130
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (errno.ENOSPC, "cannot write the output: No space left on device; make room"),
        (errno.EDQUOT, "cannot write the output: Disk quota exceeded; make room"),
        (errno.EROFS, "cannot use the output: Read-only file system; see to its permissions or choose another"),
        (errno.EACCES, "cannot use the output: Permission denied; see to its permissions"),
        (errno.EPERM, "cannot use the output: Operation not permitted; see to its permissions"),
    ],
)
def test_output_that_is_refused_is_told_without_a_traceback(monkeypatch, capsys, number, told):
    def full(arguments):
        raise OSError(number, os.strerror(number))

    parser = build_parser()
    parser.set_defaults(run=full)
    monkeypatch.setattr("samplewise.cli.build_parser", lambda: parser)
    assert main([]) == 1
    assert f"samplewise: {told}" in capsys.readouterr().err


@pytest.mark.parametrize("debug", [True, False])
def test_tracebacks_are_shown_if_asked_for(monkeypatch, caplog, tmp_path, debug):
    caplog.set_level("WARNING", "samplewise")  # and as it was after the test
    caplog.handler.setLevel("DEBUG")
    monkeypatch.setenv("SAMPLEWISE_DEBUG", "1" if debug else "0")

    def faulty(arguments):
        with named("a.wav", "cannot be transcribed"):
            raise ZeroDivisionError

    def run(arguments):
        try:
            faulty(arguments)
        except BadDataError as error:
            raise UserError(str(error)) from None

    parser = build_parser()
    parser.set_defaults(run=run)
    monkeypatch.setattr("samplewise.cli.build_parser", lambda: parser)
    assert main([]) == 1
    assert [record.exc_info[0] for record in caplog.records] == ([ZeroDivisionError, UserError] if debug else [])


def test_a_missing_extra_is_told(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "samplewise.asr.transcribe", None)
    assert main(["transcribe", "x", "y"]) == 1
    assert "pip install 'samplewise[train]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "module", "asked"),
    [
        (["prepare", "librispeech", "--from", "a", "--to", "b"], "samplewise.asr.prepare.prepare", "corpora"),
        (["evaluate", "x", "digits"], "samplewise.asr.scoring", "train"),
        (["bench", "export", "x", "--output", "b"], "samplewise.bench.export", "bench,train"),
    ],
)
def test_all_extras_that_a_command_needs_are_asked_for_at_once(argv, module, asked, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, module, None)
    assert main(argv) == 1
    assert f"pip install 'samplewise[{asked}]'" in capsys.readouterr().err


def test_everything_that_an_extra_lacks_is_named(monkeypatch):
    lines = ["torch>=2.6", "jiwer>=4.0; extra == 'train'", 'rich; extra == "train"', "soxr>=1; extra == 'bench'"]
    lines += ["samplewise[train]; extra == 'corpora'", "lhotse>=1; python_version > '3' and extra == 'corpora'"]
    monkeypatch.setattr(extras, "requires", lambda name: lines)
    monkeypatch.setattr(extras, "is_installed", lambda name: name == "rich")
    assert extras.missing(["corpora"]) == ["jiwer", "lhotse"] and extras.missing(["bench", "train"]) == ["jiwer", "soxr"]
    said = extras.advice(["corpora"], ImportError("No module named 'jiwer'"))
    assert said == "this command needs packages that are missing: pip install 'samplewise[corpora]' (jiwer, lhotse)"
    monkeypatch.undo()
    assert set(extras.missing(["train"])) == set(), "the tests run with it"


RECIPE = """
name: tiny
data: {kind: digit_strings, digits: [1, 2], strings_per_epoch: 20, valid_strings: 0, test_strings: 6}
features: {kind: log_mel, sample_rate: 8000, mels: 12}
encoder: {kind: lstm, stack: 2, layers: 1, hidden: 8}
predictor: {kind: gru, embedding: 8, hidden: 8}
joiner: {dim: 8}
training: {steps: 2, batch_size: 4}
"""


def test_from_training_to_a_text(tmp_path, capfd, monkeypatch):
    soundfile = pytest.importorskip("soundfile")
    import samplewise.asr.train
    from samplewise.asr.corpus import WORDS

    monkeypatch.setattr(samplewise.asr.train, "measure", lambda step: None)
    recordings = tmp_path / "fsdd" / "recordings"
    recordings.mkdir(parents=True)
    for digit in range(len(WORDS)):
        for take in (0, 5):
            sound = [0.5 * ((i * (digit + 2)) % 50 > 25) for i in range(2000)]
            soundfile.write(recordings / f"{digit}_ann_{take}.wav", sound, 8000)
    (tmp_path / "tiny.yaml").write_text(RECIPE)
    run = str(tmp_path / "run")
    data = ["--data", str(tmp_path / "fsdd")]
    assert main(["train", str(tmp_path / "tiny.yaml"), "--output", run, *data, "--set", "training.steps=3"]) == 0
    assert "test WER" in capfd.readouterr().out
    assert main(["evaluate", run, "digits", *data]) == 0
    assert "WER" in capfd.readouterr().out.splitlines()[-1]
    (tmp_path / "manifest.jsonl").write_text('{"audio": "fsdd/recordings/7_ann_0.wav", "text": "Seven - it’s öne?"}\n')
    for flags, normalisation, words in ([], "none", 4), (["--normalisation", "words"], "words", 3):
        assert main(["evaluate", run + "/checkpoint-3", str(tmp_path), "--json", *flags]) == 0
        numbers = json.loads(capfd.readouterr().out)
        assert (numbers["words"], numbers["skipped"]) == (words, {})
        assert (numbers["nats_per_label"], numbers["normalisation"]) == (None, normalisation)
    assert numbers["without_loss"] == {"character outside the vocabulary": 1}
    good, missing = str(recordings / "7_ann_0.wav"), str(tmp_path / "none.wav")
    assert main(["transcribe", run, good]) == 0
    assert len(capfd.readouterr().out.splitlines()) == 1
    assert main(["transcribe", run, missing, good]) == 1
    output = capfd.readouterr()
    assert f"{missing}: missing file" in output.err
    assert output.out.startswith(good + "\t")
