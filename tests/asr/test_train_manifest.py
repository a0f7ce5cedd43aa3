"""Training and evaluation on a manifest with bad utterances and odd texts."""

from __future__ import annotations

import json

import pytest
import soundfile

from samplewise.asr import train as training
from samplewise.asr.errors import UserError
from samplewise.asr.recipe import recipe_from_plain
from samplewise.asr.scoring import score
from samplewise.asr.train import train

from .made import RATE, TINY, changed, tone

MEMORY = dict.fromkeys(("peak_bytes", "batched_peak_bytes", "logits_bytes", "joint_bytes"), 1)
MEMORY |= {"measured_as": "x", "logits_shape": [1] * 4}


@pytest.fixture(autouse=True)
def no_measuring(monkeypatch):
    """Memory has its own test; a process for each run would take long."""
    monkeypatch.setattr(training, "measure", lambda step: MEMORY)


def log(directory) -> list[dict]:
    return [json.loads(line) for line in (directory / "log.jsonl").read_text().splitlines()]


def write_manifest(directory, lines) -> None:
    directory.mkdir(exist_ok=True)
    (directory / "manifest.jsonl").write_text("\n".join(map(json.dumps, lines)))


def manifest_recipe(**changes):
    data = {"kind": "manifest", "train": {"manifest": "manifest.jsonl", "split": "train"}}
    data["test"] = {"manifest": "manifest.jsonl", "split": "test"}
    values = changed(TINY, {"data": data, "tokenizer": {"kind": "characters"}, "training.workers": 1, **changes})
    return recipe_from_plain(values)


@pytest.fixture
def manifest(tmp_path):
    """Good and bad utterances of every kind in both splits."""
    directory = tmp_path / "data"
    directory.mkdir()
    lines = []
    for i, word in enumerate(["one", "two", "three", "four", "five"]):
        soundfile.write(directory / f"{i}.wav", tone(i, 0, 0, 0.4), RATE)
        lines += [{"audio": f"{i}.wav", "text": word, "split": split} for split in ("train", "test")]
    soundfile.write(directory / "silent.wav", 0 * tone(1, 0, 0), RATE)
    soundfile.write(directory / "short.wav", tone(1, 0, 0, 0.02), RATE)
    soundfile.write(directory / "cut.wav", tone(1, 0, 0), RATE)
    (directory / "cut.wav").write_bytes((directory / "cut.wav").read_bytes()[:900])
    for name in ("silent.wav", "short.wav", "cut.wav", "none.wav"):
        lines += [{"audio": name, "text": "one", "split": split} for split in ("train", "test")]
    lines += [{"audio": "0.wav", "text": "", "split": "train"}, {"audio": "0.wav", "text": "öne", "split": "test"}]
    write_manifest(directory, lines)
    return directory


def test_bad_data_are_skipped_named_and_counted(manifest, tmp_path, said):
    outcome = train(manifest_recipe(), tmp_path / "run", data=str(manifest), resume=False, say=said)
    assert outcome.results["skipped"] == {
        "missing file": 2,
        "silent recording": 2,
        "too few frames": 2,
        "truncated recording": 2,
        "empty transcript": 1,
    }
    test = outcome.results["test"]
    assert (test["utterances"], test["without_loss"]) == (6, {"character outside the vocabulary": 1})
    assert "skipped 9 utterances" in said.text and "'ö' in 'öne'" in said.text
    assert len((tmp_path / "run" / "skipped.jsonl").read_text().splitlines()) >= 9


@pytest.mark.parametrize("tokenizer", [{"kind": "sentencepiece", "vocab_size": 19}, {"kind": "characters", "unknown": True}])
def test_training_evaluate_and_results_give_the_same_numbers(tokenizer, tmp_path, said):
    """With texts that SentencePiece changes, with signs that no vocabulary has, and with an empty one."""
    directory = tmp_path / "data"
    directory.mkdir()
    lines = []
    for i, text in enumerate(["½ cup…", "wörld", "", "two fish", "x\u0304"]):
        soundfile.write(directory / f"{i}.wav", tone(i, 0, 0, 1.0), RATE)
        lines.append({"audio": f"{i}.wav", "text": text, "split": "test"})
        lines += [{"audio": f"{i}.wav", "text": "½ cup… two fish", "split": "train"}] * 4
    write_manifest(directory, lines)
    parts = {f"data.{name}": {"manifest": "manifest.jsonl", "split": "test"} for name in ("valid", "test")}
    changes = {"tokenizer": tokenizer, "training.steps": 2, "training.evaluate_every": 2, "training.precision": "bf16"}
    recipe = manifest_recipe(**parts, **changes, **{"training.workers": 0, "decoding.unit": "character"})
    results = train(recipe, tmp_path / "run", data=str(directory), resume=False, say=said).results
    (seen,) = [line for line in log(tmp_path / "run") if "eval_cer" in line]
    again = score(str(tmp_path / "run"), str(directory), split="test", say=said)
    assert results["test"] == again.to_plain()
    assert results["test"]["utterances"] == 5
    assert seen["eval_cer"] == results["test"]["cer"]
    assert seen["eval_transducer_nats_per_label"] == results["test"]["nats_per_label"]
    assert seen["eval_without_loss"] == sum(results["test"]["without_loss"].values()) == 2


def test_bad_data_are_refused_where_the_recipe_says_so(manifest, tmp_path, said):
    with pytest.raises(UserError, match=r"none\.wav: missing file"):
        train(manifest_recipe(on_bad_data="raise"), tmp_path / "run", data=str(manifest), resume=False, say=said)


def test_bad_data_found_by_a_worker_are_refused_without_its_traceback(manifest, tmp_path, said):
    lines = [json.loads(line) for line in (manifest / "manifest.jsonl").read_text().splitlines()]
    kept = [line for line in lines if line["audio"] in ("0.wav", "silent.wav") and line["split"] == "train" and line["text"]]
    write_manifest(manifest, kept)
    recipe = manifest_recipe(on_bad_data="raise", **{"data.test": None})
    with pytest.raises(UserError) as error:
        train(recipe, tmp_path / "run", data=str(manifest), resume=False, say=said)
    assert str(error.value).startswith("manifest.jsonl:2 silent.wav: silent recording")
