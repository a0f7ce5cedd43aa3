"""AISHELL-1 in miniature: from the publisher's layout to a text, by the commands of the manual."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from samplewise.asr.errors import UserError
from samplewise.asr.prepare.prepare import prepare
from samplewise.cli import main

from .miniatures import AISHELL, check_losses, lines, make_aishell, small

RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    return make_aishell(tmp_path_factory.mktemp("aishell"))


@pytest.fixture(scope="module")
def prepared(corpus, tmp_path_factory) -> Path:
    target = tmp_path_factory.mktemp("data") / "aishell1"
    assert main(["prepare", "aishell1", "--from", str(corpus), "--to", str(target)]) == 0
    return target


def test_every_part_has_a_manifest_of_characters_without_spaces(corpus, prepared):
    words = (corpus / "transcript" / "aishell_transcript_v0.8.txt").read_text(encoding="utf-8").splitlines()
    said = {line.split()[0]: "".join(line.split()[1:]) for line in words}
    for part, count in AISHELL.items():
        found = lines(prepared / f"{part}.jsonl")
        assert len(found) == count
        for line in found:
            assert line["text"] == said[line["id"]].replace("ｋ", "K")
            assert Path(line["audio"]).parts[-3:-1] == (part, line["speaker"])


def test_a_second_time_everything_is_kept(corpus, prepared, said):
    before = (prepared / "train.jsonl").stat().st_mtime_ns
    prepare("aishell1", corpus.parent, prepared, say=said)
    assert said.text.count("kept") == 3
    assert (prepared / "train.jsonl").stat().st_mtime_ns == before


def test_packed_archives_are_told(tmp_path):
    corpus = make_aishell(tmp_path)
    (corpus / "wav" / "test").rename(tmp_path / "elsewhere")
    (corpus / "wav" / "S9200.tar.gz").touch()
    with pytest.raises(UserError, match=r"no recordings wav/test(.|\n)*for f in .*wav/\*\.tar\.gz"):
        prepare("aishell1", corpus, tmp_path / "to")


def test_a_missing_transcript_is_told(tmp_path):
    corpus = make_aishell(tmp_path)
    next((corpus / "transcript").iterdir()).unlink()
    with pytest.raises(UserError, match=r"no transcript/aishell_transcript_v0\.8\.txt, it holds transcript/, wav/"):
        prepare("aishell1", corpus, tmp_path / "to")


@pytest.mark.parametrize("recipe", ["aishell1", "aishell1_sampled"])
def test_from_training_to_a_text(recipe, prepared, corpus, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("samplewise.asr.train.measure", lambda step: None)
    run = str(tmp_path / "run")
    assert main(["train", str(RECIPES / f"{recipe}.yaml"), "--output", run, "--data", str(prepared), *small(recipe)]) == 0
    assert "test CER" in capfd.readouterr().out
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    check_losses(recipe, results["training_log"])
    characters = {character for line in lines(prepared / "train.jsonl") for character in line["text"]}
    assert results["classes"] == len(characters) + 2
    test = results["test"]
    assert "wer" not in test and test["cer"] > 0
    assert test["characters"] == sum(len(line["text"]) for line in lines(prepared / "test.jsonl"))
    assert results["skipped"] == {}, "an utterance with a character never seen is an error, and is not left out"
    assert [line["step"] for line in results["training_log"] if "eval_cer" in line] == [2, 4]
    assert main(["evaluate", run, str(prepared / "dev.jsonl"), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["utterances"] == 2
    assert main(["transcribe", run, str(next((corpus / "wav").rglob("*.wav")))]) == 0
    assert len(capfd.readouterr().out.splitlines()) == 1
