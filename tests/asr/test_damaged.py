"""A directory of damaged and odd files: in training, in `evaluate` and in `transcribe` each is named, and the rest goes on."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from samplewise.asr.checkpoint import Recogniser, Run
from samplewise.asr.corpus import ManifestCorpus, Utterance, read_manifest
from samplewise.asr.examples import EvaluationExamples, TrainingExamples, usable_features
from samplewise.asr.problems import BadData, BadDataError, BadDataLog
from samplewise.asr.scoring import score
from samplewise.asr.tokenizer import CharacterTokenizer
from samplewise.asr.transcribe import transcribe
from samplewise.asr.writing import write_json
from samplewise.cli import main

from .made import RATE, tiny_recipe, tone

GOOD, ODD = ("good.wav", "gsm.wav", "stream.wav", "name\udcff.wav", "cut in name.raw"), 3
DAMAGED = {
    "cut.wav": "truncated recording",
    "cut.flac": "unreadable recording",
    "zeros.raw": "unreadable recording",
    "text.wav": "unreadable recording",
    "nothing.wav": "unreadable recording",
    "silent.wav": "silent recording",
    "huge.wav": "features that are not finite",
    "twice.ogg": "several recordings in one file",
    "missing\udcff.wav": "missing file",
    "short.wav": "too few frames",
}


def encoded(form: str, samples: np.ndarray, **options) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, RATE, format=form, **options)
    return file.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The files, and a manifest of them with the good ones last."""
    directory = tmp_path_factory.mktemp("damaged")
    samples = tone(1, 0, 0, 0.5)
    noisy = samples + 0.01 * np.random.default_rng(0).standard_normal(len(samples)).astype(np.float32)
    wav, flac, ogg = encoded("WAV", samples), encoded("FLAC", noisy), encoded("OGG", samples)
    length = wav.index(b"data") + 4
    contents = {
        "good.wav": wav,
        "gsm.wav": encoded("WAV", samples, subtype="GSM610"),
        "stream.wav": wav[:length] + bytes(4) + wav[length + 4 :],
        "name\udcff.wav": wav,
        "cut in name.raw": flac,
        "cut.wav": wav[: len(wav) // 2],
        "cut.flac": flac[: len(flac) // 2],
        "zeros.raw": bytes(4000),
        "text.wav": b"not a sound",
        "nothing.wav": b"",
        "silent.wav": encoded("WAV", 0 * samples),
        "huge.wav": encoded("WAV", samples * np.float32(1e30), subtype="FLOAT"),
        "twice.ogg": ogg + ogg,
        "short.wav": encoded("WAV", samples[:160]),
    }
    for name, content in contents.items():
        (directory / name).write_bytes(content)
    names = [*DAMAGED, "a" * 300 + ".wav", *GOOD]
    lines = [json.dumps({"audio": name, "text": "one", "duration": 0.5}) for name in names]
    lines += [lines[-1].replace("0.5", "NaN"), lines[-1].replace('"one"', "1"), lines[-1].replace('"one"', '"\\ud800"')]
    (directory / "manifest.jsonl").write_text("\n".join(lines))
    return directory


@pytest.fixture(scope="module")
def recogniser(tmp_path_factory) -> Recogniser:
    torch.manual_seed(3)
    run = Run(tiny_recipe(), CharacterTokenizer(" efghinorstuvwxz"), {})
    model, features = run.make_model()
    return Recogniser(model.eval(), features, run, tmp_path_factory.mktemp("run"))


def check(bad: BadDataLog) -> None:
    """Every damaged file is named with its reason, and three odd lines and a name that is too long."""
    reasons = {problem.key.split(" ", 1)[1]: problem.reason for problem in bad.problems() if "short.wav" not in problem.key}
    for name, reason in DAMAGED.items():
        if name not in ("missing\udcff.wav", "short.wav"):
            assert reasons[name] == reason
    assert bad.counts()["missing file"] == 1
    assert {problem.reason for problem in bad.problems()} - set(DAMAGED.values()) == {
        "a path that cannot be used",
        "a duration that is no time",
        "a transcript that is not text",
        "a transcript that is not Unicode",
    }
    assert len(bad.problems()) == len(DAMAGED) + 1 + ODD
    assert bad.report().encode()


def test_training_goes_on(folder, recogniser, tmp_path):
    bad = BadDataLog("skip", tmp_path / "skipped.jsonl")
    corpus = ManifestCorpus(read_manifest(folder, bad), RATE)
    examples = TrainingExamples(corpus, recogniser.preparation(), bad)
    found = [examples[0, index] for index in range(len(corpus))]
    assert {example.key.split(" ", 1)[1] for example in found} == {name.replace("\udcff", "\\udcff") for name in GOOD}
    assert all(torch.isfinite(example.features).all() for example in found)
    check(bad)
    check(BadDataLog("skip", tmp_path / "skipped.jsonl"))


def test_evaluation_goes_on(folder, recogniser, monkeypatch, said):
    bad = BadDataLog()
    corpus = ManifestCorpus(read_manifest(folder, bad), RATE)
    assert len(EvaluationExamples(corpus, recogniser.preparation(), bad)) == len(GOOD)
    check(bad)
    monkeypatch.setattr("samplewise.asr.scoring.load_recogniser", lambda checkpoint: recogniser)
    assert score("run", str(folder), say=said).errors.utterances == len(GOOD)
    assert f"skipped {len(DAMAGED) + 1 + ODD} utterances" in said.text and said.text.encode()


def test_transcribing_goes_on(folder, recogniser):
    paths = [folder / name for name in (*DAMAGED, "a" * 300, "a\0", *GOOD)]
    found = [result for _, result in transcribe(recogniser, paths)]
    assert [result.reason for result in found if isinstance(result, BadData)] == [
        *DAMAGED.values(),
        "unreadable recording",
        "missing file",
    ]
    assert all(isinstance(result, str) for result in found[-len(GOOD) :])


def test_what_is_printed_may_be_no_unicode(monkeypatch):
    printed = io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True)
    monkeypatch.setattr(sys, "stdout", printed)
    monkeypatch.setattr("samplewise.asr.checkpoint.load_recogniser", lambda path: None)
    found = [("a\udcff.wav", "café"), ("b", "two")]
    monkeypatch.setattr("samplewise.asr.transcribe.transcribe", lambda *given: found)
    assert main(["transcribe", "run", "a", "b"]) == 0
    assert printed.buffer.getvalue() == b"a\\udcff.wav\tcaf\\xe9\nb\ttwo\n"


def test_what_is_written_down_may_be_no_unicode(tmp_path):
    values = {"command": "train --data a\udcff", "text": "café \u2028"}
    write_json(tmp_path / "run.json", values)
    assert json.loads((tmp_path / "run.json").read_text(encoding="utf-8")) == values


def test_problems_with_odd_line_ends_in_their_names_are_counted(tmp_path):
    path = tmp_path / "skipped.jsonl"
    for number in range(3):
        BadDataLog("skip", path).add(BadData(f"a{number}\u2028b\x85c.wav", "missing file"))
    with path.open("ab") as file:
        file.write(b'{"key": "\xff')  # a process was killed while it wrote
    assert BadDataLog("skip", path).counts() == {"missing file": 3}


class Timed:
    """A corpus of utterances of which those of a text None cannot be read."""

    def __init__(self, *pairs: tuple[float, str | None]):
        self.pairs = pairs

    def __len__(self) -> int:
        return len(self.pairs)

    def seconds(self, epoch: int, index: int) -> float:
        return self.pairs[index][0]

    def utterance(self, epoch: int, index: int) -> Utterance:
        seconds, text = self.pairs[index]
        if text is None:
            raise BadDataError(str(index), "unreadable recording")
        return Utterance(tone(1, 0, 0, seconds), text, str(index))


def test_what_stands_in_is_no_longer_or_the_shortest_there_is(recogniser):
    corpus = Timed((0.5, None), (9.0, "one"), (0.6, "one"), (0.4, "one"), (0.3, None), (0.7, None))
    examples = TrainingExamples(corpus, recogniser.preparation(), BadDataLog())
    assert examples[0, 0].key == "3"  # neither the next nor the one after it, which would break a batch's seconds
    assert examples[0, 4].key == "3"  # all are longer: the shortest of them
    assert examples[0, 5].key == "2"


def test_features_that_are_not_finite_are_named(recogniser):
    with pytest.raises(BadDataError, match=r"x: features that are not finite \(largest sample .*e\+29\)"):
        usable_features(recogniser.features, tone(1, 0, 0) * np.float32(1e30), "x")
