"""LibriSpeech in miniature: from the publisher's layout to a text, by the commands of the manual."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from samplewise.cli import main

from .miniatures import LIBRISPEECH, check_losses, lines, make_librispeech, small

RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    return make_librispeech(tmp_path_factory.mktemp("librispeech"))


@pytest.fixture(scope="module")
def prepared(corpus, tmp_path_factory) -> Path:
    target = tmp_path_factory.mktemp("data") / "librispeech"
    assert main(["prepare", "librispeech", "--from", str(corpus.parent), "--to", str(target)]) == 0
    return target


def test_every_part_has_a_manifest_of_all_its_utterances(corpus, prepared):
    for part, count in LIBRISPEECH.items():
        found = lines(prepared / f"{part}.jsonl")
        assert len(found) == count and {line["split"] for line in found} == {part}
        for line in found:
            assert Path(line["audio"]).is_file() and line["duration"] > 0.9
            speaker, chapter, _ = line["id"].split("-")
            transcripts = (corpus / part / speaker / chapter / f"{speaker}-{chapter}.trans.txt").read_text()
            assert f"{line['id']} {line['text']}\n" in transcripts and line["speaker"] == speaker
    together = [line["id"] for line in lines(prepared / "train-960.jsonl")]
    assert len(set(together)) == len(together) == sum(LIBRISPEECH[part] for part in LIBRISPEECH if part.startswith("train"))


@pytest.mark.parametrize("recipe", ["librispeech_100", "librispeech_960", "librispeech_100_sampled", "librispeech_960_sampled"])
def test_from_training_to_a_text(recipe, prepared, corpus, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("samplewise.asr.train.measure", lambda step: None)
    run = str(tmp_path / "run")
    options = small(recipe, tokenizer__vocab_size=40)
    assert main(["train", str(RECIPES / f"{recipe}.yaml"), "--output", run, "--data", str(prepared), *options]) == 0
    assert "test WER" in capfd.readouterr().out
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    check_losses(recipe, results["training_log"])
    assert (results["classes"], results["test"]["utterances"], results["skipped"]) == (40, 3, {})
    log = results["training_log"]
    assert [line["step"] for line in log if "eval_wer" in line] == [2, 4]
    assert max(line["epoch"] for line in log) > 1
    assert main(["evaluate", run, str(prepared / "test-other.jsonl"), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["utterances"] == 2
    recording = next((corpus / "test-clean").rglob("*.flac"))
    assert main(["transcribe", run, str(recording)]) == 0
    assert len(capfd.readouterr().out.splitlines()) == 1
