"""CSJ-APS in miniature, in both editions: from the publisher's layout to a text, by the commands of the manual."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from samplewise.asr.errors import UserError
from samplewise.asr.prepare.prepare import prepare
from samplewise.cli import main

from .miniatures import CSJ_TEXTS, check_losses, lines, make_csj, small

RECIPES = Path(__file__).parents[2] / "recipes"
PARTS = {  # part: its talks
    "train": {"A90F0001", "A90M0002"},
    "valid": {"A01M0264"},
    "eval1": {"A01M0097", "A01M0110"},
    "eval2": {"A01F0001"},
    "eval3": {"S00F0019"},
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    return make_csj(tmp_path_factory.mktemp("csj"))


@pytest.fixture(scope="module")
def prepared(corpus, tmp_path_factory) -> Path:
    target = tmp_path_factory.mktemp("data") / "csj"
    assert main(["prepare", "csj-aps", "--from", str(corpus), "--to", str(target)]) == 0
    return target


def test_presentations_are_split_and_other_talks_left_out(prepared):
    assert {path.stem for path in prepared.glob("*.jsonl")} == set(PARTS)
    for part, talks in PARTS.items():
        found = lines(prepared / f"{part}.jsonl")
        assert {line["speaker"] for line in found} == talks
        for talk in talks:
            assert [line["text"] for line in found if line["speaker"] == talk] == CSJ_TEXTS


def test_pieces_are_where_they_are_spoken(prepared):
    for line in lines(prepared / "train.jsonl"):
        assert Path(line["audio"]).name == f"{line['speaker']}.wav"
        assert line["start"] >= 1.0 and 0.5 < line["duration"] < 10.0
    starts = [line["start"] for line in lines(prepared / "valid.jsonl")]
    assert starts == sorted(starts) and starts[0] == 1.0


def test_the_dvds_give_the_same(tmp_path, prepared, said):
    target = tmp_path / "to"
    prepare("csj-aps", make_csj(tmp_path / "csj", dvd=True), target, say=said)
    assert "eval1: 6 utterances" in said.text and "NOT COMPLETE: the published part has 10 speakers" in said.text
    for part in PARTS:
        ours, theirs = ([(x["id"], x["text"], x["start"]) for x in lines(at / f"{part}.jsonl")] for at in (target, prepared))
        assert ours == theirs


def test_a_talk_without_a_recording_is_named(tmp_path):
    corpus = make_csj(tmp_path)
    next((corpus / "WAV").rglob("A90M0002.wav")).unlink()
    with pytest.raises(UserError, match=r"1 of 7 talks have no recording, as .*A90M0002\.wav"):
        prepare("csj-aps", corpus, tmp_path / "to")


def test_a_transcript_of_another_encoding_is_told(tmp_path):
    corpus = make_csj(tmp_path)
    transcript = next((corpus / "MORPH").rglob("A01M0264.sdb"))
    transcript.write_text(transcript.read_text(encoding="shift_jis"), encoding="utf-8")
    with pytest.raises(UserError, match="a transcript of valid is not in Shift-JIS"):
        prepare("csj-aps", corpus, tmp_path / "to", parts=["valid"])


@pytest.mark.parametrize("recipe", ["csj_aps", "csj_aps_sampled"])
def test_from_training_to_a_text(recipe, prepared, corpus, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("samplewise.asr.train.measure", lambda step: None)
    run = str(tmp_path / "run")
    assert main(["train", str(RECIPES / f"{recipe}.yaml"), "--output", run, "--data", str(prepared), *small(recipe)]) == 0
    assert "test CER" in capfd.readouterr().out
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    check_losses(recipe, results["training_log"])
    assert results["classes"] == len(set("".join(CSJ_TEXTS))) + 2
    assert results["test"]["utterances"] == 6 and results["test"]["characters"] == 2 * len("".join(CSJ_TEXTS))
    assert set(results["test"]["by_speaker"]) == PARTS["eval1"] and results["skipped"] == {}
    assert main(["evaluate", run, str(prepared / "eval3.jsonl"), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["utterances"] == 3
    assert main(["transcribe", run, str(corpus / "WAV" / "core" / "A90F0001.wav")]) == 0
    assert len(capfd.readouterr().out.splitlines()) == 1
