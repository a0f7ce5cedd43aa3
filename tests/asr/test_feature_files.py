"""Stored features: read, stretched, derived, refused; words as classes, and a whole run with both."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from samplewise.asr import train as training
from samplewise.asr.checkpoint import load_recogniser
from samplewise.asr.corpora import make_corpora
from samplewise.asr.corpus import read_entries
from samplewise.asr.errors import UserError
from samplewise.asr.feature_files import FeatureCorpus, FeatureEntry, parse_feature_entry, stretched, warped
from samplewise.asr.features import Stored, derivative
from samplewise.asr.manifest_lines import values_of
from samplewise.asr.problems import BadDataError, BadDataLog
from samplewise.asr.recipe import StoredOptions, recipe_from_plain
from samplewise.asr.scoring import score
from samplewise.asr.tokenizer import WordTokenizer, tokenizer_from_plain
from samplewise.asr.train import train
from samplewise.asr.transcribe import transcribe_file

from .made import SHARED, TINY

DIM = 4
TEXTS = {"a": "no yes", "b": "yes", "c": "no no", "d": "yes no", "x": "yes maybe", "y": "no"}


def write(directory: Path, **arrays: np.ndarray) -> Path:
    """An archive of random features for every text, and its manifest; x and y are the test."""
    rng = np.random.default_rng(0)
    made = {key: rng.standard_normal((20, DIM)).astype(np.float16) for key in TEXTS} | arrays
    np.savez(directory / "f.npz", **{key: array for key, array in made.items() if array is not None})
    lines = [
        {"feats": f"f.npz:{key}", "text": text, "duration": 0.2, "speaker": key, "split": "test" if key in "xy" else "train"}
        for key, text in TEXTS.items()
    ]
    (directory / "manifest.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return directory


def recipe(**changes):
    subset = {"manifest": "manifest.jsonl"}
    data = {"kind": "feature_files", "train": {**subset, "split": "train"}, "test": {**subset, "split": "test"}}
    data |= changes.pop("data", {})
    values = {**TINY, "data": data, "features": {"kind": "stored", "dim": DIM}, "tokenizer": {"kind": "words"}, **changes}
    return recipe_from_plain(values)


def corpus(directory: Path, **options) -> FeatureCorpus:
    entries = read_entries(directory, BadDataLog(), None, parse_feature_entry)
    return FeatureCorpus(entries, DIM, train=True, **options)


def test_what_is_stored_is_given(tmp_path):
    stored = np.arange(12, dtype=np.float32).reshape(3, DIM)
    found = corpus(write(tmp_path, b=stored)).utterance(0, 1)
    assert found.samples.dtype == np.float32 and np.array_equal(found.samples, stored)
    assert (found.text, found.speaker) == ("yes", "b") and found.key.endswith("f.npz:b")


def test_speed_is_a_function_of_seed_epoch_and_index(tmp_path):
    write(tmp_path)
    lengths = [len(corpus(tmp_path, speed=(0.5, 2.0), seed=3).utterance(epoch, 0).samples) for epoch in range(20)]
    assert lengths == [len(corpus(tmp_path, speed=(0.5, 2.0), seed=3).utterance(epoch, 0).samples) for epoch in range(20)]
    assert min(lengths) < 15 and max(lengths) > 30 and all(10 <= length <= 40 for length in lengths)
    other = [len(corpus(tmp_path, speed=(0.5, 2.0), seed=4).utterance(epoch, 0).samples) for epoch in range(20)]
    assert other != lengths
    entries = read_entries(tmp_path, BadDataLog(), None, parse_feature_entry)
    assert len(FeatureCorpus(entries, DIM, train=False, speed=(0.5, 2.0)).utterance(0, 0).samples) == 20


def test_stretched_keeps_the_ends_and_straight_lines():
    line = np.linspace(0, 9, 10, dtype=np.float32)[:, None].repeat(2, axis=1)
    for speed in (0.7, 1.0, 1.5):
        found = stretched(line, speed)
        assert len(found) == round(10 / speed)
        np.testing.assert_allclose(found[:, 1], np.linspace(0, 9, len(found)), atol=1e-5)


@pytest.mark.parametrize("bend", [-0.1, 0.0, 0.06])
def test_a_warped_spectrum_is_the_spectrum_at_bent_frequencies(bend):
    cepstra = np.zeros((4, 24))
    cepstra[:, :4] = np.random.default_rng(0).normal(size=(4, 4))  # smooth: what a bend takes beyond the last order is small
    w = np.linspace(0, np.pi, 50)[1:-1]
    bent = np.angle((np.exp(1j * w) - bend) / (1 - bend * np.exp(1j * w)))  # the phase of an all-pass filter
    found = warped(cepstra, bend)
    spectra = [c @ np.cos(np.arange(24)[:, None] * axis) for c, axis in ((found, w), (cepstra, bent))]
    np.testing.assert_allclose(*spectra, atol=1e-6)
    assert (bend == 0) == np.allclose(found, cepstra)
    many = np.ones((2, 200))
    np.testing.assert_allclose(warped(many, 0.0), many)


def test_a_training_utterance_is_warped_anew_every_epoch(tmp_path):
    write(tmp_path)
    found = [corpus(tmp_path, warp=0.1, seed=3).utterance(epoch, 0).samples for epoch in (0, 1, 0)]
    assert found[0].dtype == np.float32 and np.array_equal(found[0], found[2]) and not np.allclose(found[0], found[1])
    entries = read_entries(tmp_path, BadDataLog(), None, parse_feature_entry)
    fixed = [FeatureCorpus(entries, DIM, train=False, **options).utterance(0, 0).samples for options in ({"warp": 0.1}, {})]
    assert np.array_equal(*fixed)


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (np.zeros((5, DIM + 1)), "wrong shape"),
        (np.zeros(5), "wrong shape"),
        (np.full((5, DIM), np.nan), "not finite"),
        (None, "missing features"),
    ],
)
def test_unusable_features_are_named(tmp_path, array, reason):
    found = corpus(write(tmp_path, a=array))
    with pytest.raises(BadDataError, match=reason) as error:
        found.utterance(0, 0)
    assert "f.npz:a" in error.value.problem.key
    found.utterance(0, 1)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not a line of JSON"),
        ('{"audio": "a.wav", "text": "a"}', "no stored features"),
        ('{"feats": "f.npz", "text": "a"}', "no stored features"),
        ('{"feats": "f.npz:a"}', "no transcript"),
        ('{"feats": "other.npz:a", "text": "a"}', "missing file"),
    ],
)
def test_unusable_lines_are_named(tmp_path, line, reason):
    write(tmp_path)
    with pytest.raises(BadDataError, match=reason):
        values = values_of(line.encode(), "manifest.jsonl:1")
        parse_feature_entry(values, tmp_path / "manifest.jsonl", "manifest.jsonl:1")


def test_what_is_no_archive_is_refused(tmp_path):
    for content in (b"nonsense", b""):
        (tmp_path / "f.npz").write_bytes(content)
        with pytest.raises(UserError, match=r"f\.npz is no archive of features"):
            FeatureCorpus([FeatureEntry(tmp_path / "f.npz", "a", "x", "x", "", None)], DIM, train=True)


def test_stored_features_have_derivatives():
    x = torch.randn(12, 3)
    slope = derivative(x)
    t = 5
    torch.testing.assert_close(slope[t], (2 * (x[t + 2] - x[t - 2]) + (x[t + 1] - x[t - 1])) / 10)
    torch.testing.assert_close(slope[0], (2 * (x[2] - x[0]) + (x[1] - x[0])) / 10)
    torch.testing.assert_close(derivative(torch.arange(9.0)[:, None])[2:-2], torch.ones(5, 1))
    plain = Stored(StoredOptions(dim=3, deltas=2, normalise=False))(x.numpy())
    torch.testing.assert_close(plain, torch.cat([x, slope, derivative(slope)], dim=1))
    normal = Stored(StoredOptions(dim=3, deltas=1))(x.numpy())
    torch.testing.assert_close(normal.mean(dim=0), torch.zeros(6), atol=1e-5, rtol=0)
    torch.testing.assert_close(normal.std(dim=0, unbiased=False), torch.ones(6), atol=1e-2, rtol=0)
    assert Stored(StoredOptions(dim=3))(np.zeros((0, 3), np.float32)).shape == (0, 9)


def test_kinds_that_do_not_go_together():
    with pytest.raises(UserError, match="feature_files and stored belong together"):
        recipe(features={"kind": "log_mel"})
    with pytest.raises(UserError, match=r"speed must be \[lowest, highest\], got \[1.1, 0.9\]"):
        recipe(data={"speed": [1.1, 0.9]})


def test_words():
    tokenizer = WordTokenizer(["no", "yes"])
    assert (tokenizer.size, tokenizer.unknown) == (4, 3)
    assert tokenizer.encode(" YES  no maybe") == [2, 1, 3]
    assert tokenizer.decode([2, 0, 1, 3]) == "yes no ⁇"
    again = tokenizer_from_plain(json.loads(json.dumps(tokenizer.to_plain())))
    assert (again.words, again.size) == (["no", "yes"], 4)
    with pytest.raises(UserError, match="must not be empty"):
        WordTokenizer([])


def test_a_run_on_stored_features(tmp_path, monkeypatch, said):
    monkeypatch.setattr(training, "measure", lambda step: None)
    directory = write(tmp_path)
    outcome = train(recipe(data={"speed": [0.9, 1.1]}), tmp_path / "run", data=str(directory), resume=False, say=said)
    test = outcome.results["test"]
    assert (test["utterances"], test["words"]) == (2, 3), "the utterance with an unknown word is scored"
    assert outcome.results["classes"] == 4
    assert outcome.results["data"]["utterances"] == {"train": 4, "test": 2}
    found = score(str(tmp_path / "run"), str(directory), split="test", say=said)
    assert found.to_plain() == test
    known = score(str(tmp_path / "run"), str(only(directory, "y")), split="test", say=said)
    assert known.nats_per_label == pytest.approx(found.nats_per_label, rel=1e-5), "its loss is that of the others"


def only(directory: Path, key: str) -> Path:
    lines = (directory / "manifest.jsonl").read_text().splitlines()
    path = directory / "only.jsonl"
    path.write_text("\n".join(line for line in lines if f":{key}" in line))
    return path


def test_recordings_are_refused(tmp_path, monkeypatch, said):
    import soundfile

    monkeypatch.setattr(training, "measure", lambda step: None)
    train(recipe(), tmp_path / "run", data=str(write(tmp_path)), resume=False, say=said)
    soundfile.write(tmp_path / "a.wav", np.random.default_rng(0).uniform(-0.5, 0.5, 8000), 8000)
    with pytest.raises(UserError, match="stored features and cannot be given recordings"):
        transcribe_file(load_recogniser(tmp_path / "run"), tmp_path / "a.wav")


def test_the_real_features(bad, said):
    directory = SHARED / "an4_mfcc"
    if not directory.is_dir():
        pytest.skip(f"no {directory}")
    values = {"data": {"root": str(directory)}, "features": {"kind": "stored", "dim": 13}}
    found = make_corpora(recipe(**values), None, 100, bad, said)
    assert (len(found.train), len(found.test)) == (948, 130) and not bad.counts()
    words = Counter(word for text in found.test.texts() for word in text.split())
    assert sum(words.values()) == 773
    frames = sum(len(found.test.utterance(0, i).samples) for i in range(130))
    assert frames == pytest.approx(35570, abs=130)
