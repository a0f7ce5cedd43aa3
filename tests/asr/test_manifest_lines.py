"""Odd lines of manifests: each is named and counted, and the others are used; what is no manifest is refused in a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from samplewise.asr.batches import Batches
from samplewise.asr.corpora import describe
from samplewise.asr.corpus import ManifestCorpus, parse_entry, read_entries, read_manifest
from samplewise.asr.errors import UserError
from samplewise.asr.feature_files import FeatureCorpus, parse_feature_entry
from samplewise.asr.problems import BadDataLog

from .made import RATE, tone

GOOD = {"audio": "a.wav", "text": "one", "duration": 0.2}


@pytest.fixture
def folder(tmp_path):
    soundfile.write(tmp_path / "a.wav", tone(1, 0, 0), RATE)
    np.savez(tmp_path / "f.npz", a=np.ones((4, 3)))
    return tmp_path


def written(folder: Path, *lines: Any) -> Path:
    """A manifest of objects, and of bytes as they are."""
    path = folder / "manifest.jsonl"
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines))
    return path


def reasons(folder: Path, line: Any, bad: BadDataLog) -> str:
    """What is said of a line between two good ones, which must be used; the problem must be printable."""
    assert len(read_manifest(written(folder, GOOD, line, GOOD), bad)) == 2
    (problem,) = bad.problems()
    assert problem.key.startswith("manifest.jsonl:2") and str(problem).encode()
    return f"{problem.reason}: {problem.detail}"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"duration": float("nan")}, "a duration that is no time: nan"),
        ({"duration": float("inf")}, "a duration that is no time: inf"),
        ({"duration": -1}, "a duration that is no time: -1"),
        ({"duration": 0}, "a duration that is no time: 0"),
        ({"duration": 10**400}, "a duration that is no time: 1000"),
        ({"duration": "long"}, "a duration that is no time: 'long'"),
        ({"duration": True}, "a duration that is no time: True"),
        ({"start": float("nan")}, "a start that is no time: nan"),
        ({"start": float("inf")}, "a start that is no time: inf"),
        ({"start": -1}, "a start that is no time: -1"),
        ({"start": [1]}, "a start that is no time: [1]"),
        ({"text": 7}, "a transcript that is not text: found 7"),
        ({"text": ["one"]}, 'a transcript that is not text: found ["one"]'),
        ({"text": None}, 'no transcript: one of which nothing is said has "text": ""'),
        ({"text": "one \ud800"}, "a transcript that is not Unicode: a lone surrogate, '\\ud800'"),
        ({"audio": "a" * 256}, "a path that cannot be used: OSError: [Errno 36] File name too long"),
        ({"audio": "a/" * 3000}, "a path that cannot be used: OSError: [Errno 36] File name too long"),
        ({"audio": "\udcff.wav"}, "missing file"),
        ({"audio": "\ud800.wav"}, "missing file"),
        ({"audio": "a\0.wav"}, "missing file"),
        ({"audio": "."}, "missing file"),
        ({"audio": 5}, "no audio path in the manifest"),
    ],
)
def test_a_line_with_an_odd_value_is_named(folder, bad, changes, said):
    assert reasons(folder, GOOD | changes, bad).startswith(said)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (json.dumps(GOOD | {"text": "café"}, ensure_ascii=False).encode("latin-1"), "not in UTF-8: "),
        (b'"one"', "not a line of JSON: expected an object, found str"),
        (b"[" * 100_000, "not a line of JSON: RecursionError"),
        (b'{"duration": ' + b"1" * 5000 + b"}", "not a line of JSON: ValueError"),
        (b'{"audio": "a.w\0\0\0\0', "not a line of JSON: "),
    ],
    ids=["latin-1", "text", "nested", "digits", "zeros"],
)
def test_a_line_that_is_no_object_is_named(folder, bad, line, said):
    assert reasons(folder, line, bad).startswith(said)


def test_a_duration_in_quotes_is_a_duration(folder, bad):
    (entry,) = read_manifest(written(folder, GOOD | {"duration": "0.2", "start": "0.05"}), bad)
    assert (entry.duration, entry.start) == (0.2, 0.05)


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\r"])
def test_lines_end_at_line_feeds_alone(folder, bad, mark):
    text = f"one{mark}two"
    line = json.dumps(GOOD | {"text": text}, ensure_ascii=False).encode()
    found = read_manifest(written(folder, GOOD, line + b"\r", b"", GOOD), bad)
    assert [entry.text for entry in found] == ["one", text, "one"] and not bad.problems()


def test_a_byte_order_mark_costs_no_utterance(folder, bad):
    path = written(folder, GOOD | {"text": "first"}, GOOD)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert [entry.text for entry in read_manifest(path, bad)] == ["first", "one"] and not bad.problems()


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf_16_is_refused_in_words(folder, bad, encoding):
    path = folder / "manifest.jsonl"
    path.write_bytes(json.dumps(GOOD).encode(encoding))
    with pytest.raises(UserError, match=r"manifest\.jsonl is (in UTF-16|no manifest: it is not text in UTF-8)"):
        read_manifest(path, bad)


def test_a_recording_in_place_of_a_manifest_is_refused_in_words(folder, bad):
    with pytest.raises(UserError, match=r"a\.wav is no manifest"):
        read_manifest(folder / "a.wav", bad)


def test_a_name_that_no_system_takes_is_no_manifest(folder, bad):
    for name in ("a" * 256, "a\0", "\udcff"):
        with pytest.raises(UserError, match="no manifest at"):
            read_manifest(folder / name, bad)


def test_a_manifest_that_cannot_be_read_is_refused_in_words(folder, bad, monkeypatch):
    path = written(folder, GOOD)

    def failing(self):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "read_bytes", failing)
    with pytest.raises(UserError, match=r"manifest\.jsonl cannot be read: .*Input/output error"):
        read_manifest(path, bad)


def test_a_misspelt_split_is_told_those_there_are(folder, bad):
    lines = [GOOD | {"split": name} for name in ("train", "train", "dev")]
    path = written(folder, *lines, GOOD | {"split": 3}, GOOD)
    assert len(read_manifest(path, bad, "3")) == 1
    with pytest.raises(UserError, match=r"no line of split 'trian'; those there are: 'train' \(2\), 'dev' \(1\), '3' \(1\)$"):
        read_manifest(path, bad, "trian")
    with pytest.raises(UserError, match=r"no line of split 'train'; those there are: none$"):
        read_manifest(written(folder, GOOD), bad, "train")


def test_whatever_a_parser_raises_costs_one_line(folder, bad):
    def parse(values, manifest, where):
        if values["text"] == "odd":
            raise ZeroDivisionError("of a new kind")
        return values

    path = written(folder, GOOD, GOOD | {"text": "odd"}, GOOD)
    assert len(read_entries(path, bad, None, parse)) == 2
    assert "ZeroDivisionError: of a new kind" in bad.report()


def test_stored_features_have_the_same_lines(folder, bad):
    line = {"feats": "f.npz:a", "text": "one", "duration": 0.04}
    odd = [{"duration": float("nan")}, {"text": 7}, {"text": "\ud800"}, {"feats": "a" * 256 + ":a"}, {"feats": "\udcff:a"}]
    path = written(folder, *[line | changes for changes in odd], line)
    assert len(read_entries(path, bad, None, parse_feature_entry)) == 1
    assert list(bad.counts().values()) == [1] * 5 and bad.report().encode()


def test_batches_of_seconds_keep_to_their_seconds(folder, bad):
    odd = [float("nan"), float("inf"), -1.0, -float("inf"), 0]
    lines = [GOOD | {"duration": seconds} for seconds in [1.0, 9.0, *odd, 2.0, 5.0, 3.0]]
    corpus = ManifestCorpus(read_manifest(written(folder, *lines), bad), RATE)
    assert bad.counts() == {"a duration that is no time": len(odd)}
    for batch in Batches(corpus, seed=1, steps=20, batches=1, size=100, seconds=10.0, pool=2):
        assert len(batch) * max(corpus.seconds(*pair) for pair in batch) <= 10.0


def test_a_name_that_is_not_utf_8_is_an_utterance_as_any(folder, bad):
    (folder / "a.wav").rename(folder / "a\udcff.wav")
    path = written(folder, GOOD | {"audio": "a\udcff.wav", "speaker": None})
    (entry,) = entries = read_manifest(path, bad)
    utterance = ManifestCorpus(entries, RATE).utterance(0, 0)
    assert len(utterance.samples) == len(tone(1, 0, 0)) and utterance.speaker == ""
    assert utterance.key == "manifest.jsonl:1 a\\udcff.wav"
    assert len(describe("manifest", folder, {"train": entries})["fingerprint"]) == 16
    assert entry.path.is_file()


def test_one_damaged_archive_costs_its_utterances(folder, bad):
    (folder / "broken.npz").write_bytes(b"nonsense")
    names = ["broken.npz:a", "f.npz:a", "broken.npz:b"]
    path = written(folder, *[{"feats": name, "text": "one"} for name in names])
    corpus = FeatureCorpus(read_entries(path, bad, None, parse_feature_entry), 3, train=False)
    assert corpus.utterance(0, 1).samples.shape == (4, 3)
    for index in (0, 2):
        with pytest.raises(Exception, match=r"manifest\.jsonl:\d broken\.npz:\w: unreadable archive of features"):
            corpus.utterance(0, index)


def test_one_damaged_array_costs_its_utterance(folder, bad):
    np.savez(folder / "f.npz", a=np.ones((4, 3)), b=np.array([[None]], dtype=object), c=np.array([["x", "y", "z"]]))
    content = bytearray((folder / "f.npz").read_bytes())
    content[content.index(b"a.npy") + 200] ^= 0xFF  # the array's check sum is not its own any more
    (folder / "f.npz").write_bytes(bytes(content))
    np.savez(folder / "g.npz", a=np.ones((4, 3)))
    path = written(folder, *[{"feats": name, "text": "one"} for name in ("f.npz:a", "f.npz:b", "f.npz:c", "g.npz:a")])
    corpus = FeatureCorpus(read_entries(path, bad, None, parse_feature_entry), 3, train=False)
    assert corpus.utterance(0, 3).samples.shape == (4, 3)
    for index in range(3):
        with pytest.raises(Exception, match="unreadable features"):
            corpus.utterance(0, index)


def test_parse_entry_takes_what_it_needs(folder):
    entry = parse_entry(GOOD | {"start": 0.1}, folder / "manifest.jsonl", "manifest.jsonl:1")
    assert (entry.start, entry.key) == (0.1, "manifest.jsonl:1 a.wav from 0.1 s")
