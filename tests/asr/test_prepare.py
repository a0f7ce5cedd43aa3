"""Preparing any corpus: errors that say what was expected, parts that are kept, manifests that are whole."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from lhotse import Recording

from samplewise.asr.corpus import read_manifest
from samplewise.asr.errors import UserError
from samplewise.asr.prepare.manifests import Sets, read_lines
from samplewise.asr.prepare.prepare import CORPORA, prepare
from samplewise.asr.problems import BadDataLog
from samplewise.asr.writing import write_lines

from .miniatures import make_aishell, make_csj, make_librispeech


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    return make_librispeech(tmp_path_factory.mktemp("librispeech"))


@pytest.mark.parametrize("name", CORPORA)
def test_a_directory_of_something_else_is_refused_with_the_layout(name, tmp_path):
    (tmp_path / "holidays").mkdir()
    with pytest.raises(UserError, match=r"it holds holidays/(.|\n)*Expected:(.|\n)*[/:] ") as error:
        prepare(name, tmp_path, tmp_path / "to")
    assert str(tmp_path) in str(error.value)
    assert not (tmp_path / "to").exists()


@pytest.mark.parametrize("name", CORPORA)
def test_a_missing_directory_is_named(name, tmp_path):
    with pytest.raises(UserError, match=r"no directory .*nowhere; --from names"):
        prepare(name, tmp_path / "nowhere", tmp_path / "to")


def test_no_jobs_at_all_are_refused(tmp_path):
    with pytest.raises(UserError, match="--jobs must be at least 1, got 0"):
        prepare("librispeech", tmp_path, tmp_path / "to", jobs=0)


def test_an_unknown_corpus_suggests_a_known_one(tmp_path):
    with pytest.raises(UserError, match="did you mean 'librispeech'"):
        prepare("libri-speech", tmp_path, tmp_path / "to")


def test_an_unknown_part_suggests_one_that_is_there(corpus, tmp_path):
    with pytest.raises(UserError, match=r"no part 'train-clean-10' in .*did you mean 'train-clean-100'"):
        prepare("librispeech", corpus, tmp_path / "to", parts=["train-clean-10"])


def test_a_part_without_transcripts_is_named(tmp_path):
    corpus = make_librispeech(tmp_path)
    next((corpus / "dev-clean").rglob("*.trans.txt")).unlink()
    with pytest.raises(UserError, match=r"dev-clean: no transcripts SPEAKER/CHAPTER.*9003/"):
        prepare("librispeech", corpus, tmp_path / "to")


def test_a_transcript_that_cannot_be_read_is_an_error(tmp_path):
    corpus = make_librispeech(tmp_path)
    next((corpus / "dev-clean").rglob("*.trans.txt")).write_text("no-text-here\n")
    with pytest.raises(UserError, match="of dev-clean cannot be read"):
        prepare("librispeech", corpus, tmp_path / "to", parts=["dev-clean"])


def test_what_is_missing_is_left_out_and_told(tmp_path, said):
    corpus = make_librispeech(tmp_path)
    next((corpus / "dev-clean").rglob("*.flac")).unlink()
    prepare("librispeech", corpus, tmp_path / "to", parts=["dev-clean"], say=said)
    assert "dev-clean: 2 utterances" in said.text
    assert "NOT COMPLETE: the published part has 2703 utterances and 40 speakers" in said.text
    next((corpus / "test-other").rglob("*.trans.txt")).write_text("1-1-0001 THIS ONE HAS NO RECORDING\n")
    with pytest.raises(UserError, match=r"of test-other cannot be read .*No recordings left"):
        prepare("librispeech", corpus, tmp_path / "to", parts=["test-other"])


@pytest.mark.parametrize(
    ("corpus", "make", "part", "ending", "left"),
    [
        ("librispeech", make_librispeech, "dev-clean", ".flac", 2),
        ("aishell1", make_aishell, "train", ".wav", 5),
        ("csj-aps", make_csj, "eval1", ".wav", 3),
    ],
)
def test_an_unreadable_recording_is_named_and_the_rest_prepared(tmp_path, said, corpus, make, part, ending, left):
    root = make(tmp_path / "corpus")
    whole = Recording.from_file
    damaged = sorted(path for path in root.rglob(f"*{ending}") if part in str(path) or path.stem == "A01M0097")[0]
    damaged.write_bytes(b"RIFF, or not")
    prepare(corpus, root, tmp_path / "to", parts=[part], say=said)
    found = read_manifest(tmp_path / "to" / f"{part}.jsonl", BadDataLog("raise"))
    assert len(found) == left and all(entry.path.stem != damaged.stem for entry in found)
    assert f"{part}: {left} utterances" in said.text
    assert "skipped 1 utterance:\n  1 x unreadable recording" in said.text and damaged.name in said.text
    assert Recording.from_file is whole


def test_a_manifest_that_was_damaged_since_is_told(corpus, tmp_path):
    target = tmp_path / "to"
    prepare("librispeech", corpus, target, parts=["train-clean-100", "train-clean-360"])
    with (target / "train-clean-360.jsonl").open("a") as file:
        file.write("{")
    with pytest.raises(UserError, match=r"train-clean-360\.jsonl:4: not a line of JSON .*prepare the part again"):
        prepare("librispeech", corpus, target, parts=["train-other-500"])


def test_parts_that_are_there_are_kept_and_the_others_made(corpus, tmp_path, said):
    target = tmp_path / "to"
    prepare("librispeech", corpus, target, parts=["train-clean-100", "train-clean-360"], say=said)
    assert not (target / "train-960.jsonl").exists()
    (target / "train-clean-100.jsonl").write_text((target / "train-clean-100.jsonl").read_text() + "\n")
    kept = (target / "train-clean-100.jsonl").read_text()
    prepare("librispeech", corpus, target, parts=["train-clean-100", "train-other-500"], say=said)
    assert "train-clean-100: kept" in said.text and "train-other-500: 3 utterances" in said.text
    assert (target / "train-clean-100.jsonl").read_text() == kept
    assert len(read_manifest(target / "train-960.jsonl", BadDataLog())) == 14


def test_two_corpora_are_not_mixed(corpus, tmp_path):
    target = tmp_path / "to"
    prepare("librispeech", corpus, target, parts=["dev-clean"])
    other = make_librispeech(tmp_path / "other")
    with pytest.raises(UserError, match=r"holds manifests of librispeech from .*choose another directory by --to"):
        prepare("librispeech", other, target)


def test_an_interrupted_manifest_is_not_there(tmp_path):
    def lines():
        yield {"id": "1"}
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_lines(tmp_path / "part.jsonl", lines())
    assert not (tmp_path / "part.jsonl").exists()


def test_a_name_that_is_not_unicode_survives_a_manifest(tmp_path):
    lines = [{"audio": "/corpus/a\udcff.wav", "text": "café \u2028"}]
    write_lines(tmp_path / "part.jsonl", lines)
    assert read_lines(tmp_path / "part.jsonl") == lines


def test_without_lhotse_the_extra_is_told(corpus, tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "samplewise.asr.prepare.librispeech", raising=False)
    monkeypatch.setitem(sys.modules, "lhotse.recipes.librispeech", None)
    with pytest.raises(UserError, match=r"pip install 'samplewise\[corpora\]'"):
        prepare("librispeech", corpus, tmp_path / "to")


def test_pieces_of_recordings_have_a_start(tmp_path):
    from lhotse import AudioSource, Recording, SupervisionSegment

    recording = Recording("talk", [AudioSource("file", [0], str(tmp_path / "talk.wav"))], 16000, 160000, 10.0)
    pieces = [SupervisionSegment(f"p{i}", "talk", start, 2.5, text="a", speaker="x") for i, start in enumerate((7.5, 0.0))]
    whole = SupervisionSegment("w", "talk", 0.0, 10.0, text="a", speaker="x")
    lines = Sets([recording], [*pieces, whole]).lines("train")
    assert [(line["id"], line.get("start"), line["duration"]) for line in lines] == [
        ("p0", 7.5, 2.5),
        ("p1", 0.0, 2.5),
        ("w", None, 10.0),
    ]
    assert json.loads(json.dumps(lines)) == lines
