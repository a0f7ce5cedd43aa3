"""The scripts that lay out AN4 and kathleen, on miniatures: what they write is what the recipes read."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from samplewise.asr.corpora import make_corpora
from samplewise.asr.problems import BadDataLog
from samplewise.asr.recipe import load_recipe

ROOT = Path(__file__).resolve().parents[1]


def lay_out(corpus: str, source: Path, target: Path) -> str:
    spec = importlib.util.spec_from_file_location("small_corpora", ROOT / "scripts" / "small_corpora.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said):
        patch.setattr(sys, "argv", ["small_corpora.py", corpus, str(source), str(target)])
        try:
            module.main()
        except SystemExit as stop:
            return str(stop)
    return said.getvalue()


def corpora(name: str, target: Path, bad: BadDataLog):
    return make_corpora(load_recipe(ROOT / "recipes" / f"{name}.yaml"), str(target), 16000, bad, lambda line: None)


@pytest.mark.parametrize("order", ["<", ">"])
def test_an4(tmp_path, order):
    frames = np.arange(13 * 40, dtype=np.float32).reshape(40, 13) / 64
    for folder, name in (
        ("an4_clstk/fash", "an251-fash-b"),
        ("an4_clstk/fash", "an9-fash-b"),
        ("an4test_clstk/fcaw", "an406-fcaw-b"),
    ):
        path = tmp_path / "an4" / "feat" / folder / f"{name}.mfc"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(np.array([frames.size], f"{order}i4").tobytes() + frames.astype(f"{order}f4").tobytes())
    (tmp_path / "an4" / "etc").mkdir()
    (tmp_path / "an4/etc/an4_train.transcription").write_text("<s> U M SIX </s> (an251-fash-b)\n<s> NO </s> (an8-fash-b)\n")
    (tmp_path / "an4/etc/an4_test.transcription").write_text("RUBOUT G M (an406-fcaw-b)\n")
    assert '{"train": 1, "test": 1}' in (said := lay_out("an4", tmp_path / "an4", tmp_path / "data")), said
    assert "train: 1 utterances; 1 more have no transcript" in said
    bad = BadDataLog("raise")
    found = corpora("an4_characters", tmp_path / "data", bad)
    assert list(found.train.texts()) == ["u m six"] and list(found.test.texts()) == ["rubout g m"]
    utterance = found.test.utterance(0, 0)
    assert utterance.speaker == "fcaw" and np.array_equal(utterance.samples, frames)
    (tmp_path / "an4/feat/an4_clstk/fash/an251-fash-b.mfc").write_bytes(b"\1\0\0\0")
    assert "is not a file of cepstra, or was cut short" in lay_out("an4", tmp_path / "an4", tmp_path / "more")


def test_kathleen(tmp_path):
    (tmp_path / "voice" / "data").mkdir(parents=True)
    for name, text in (("arctic_a0001_20", "Second."), ("arctic_a0001_10", "First, etc."), ("arctic_b0539_7", "Test.")):
        soundfile.write(tmp_path / "voice/data" / f"{name}.wav", 0.1 * np.sin(np.arange(16000)), 16000)
        (tmp_path / "voice/data" / f"{name}.txt").write_text(f"{text}\n")
    assert '{"train": 1, "test": 1}' in (said := lay_out("kathleen", tmp_path / "voice", tmp_path / "data")), said
    found = corpora("kathleen", tmp_path / "data", BadDataLog("raise"))
    assert list(found.train.texts()) == ["first etc"] and list(found.test.texts()) == ["test"]
    assert len(found.train.utterance(0, 0).samples) == 16000
    assert "no data/arctic_*.wav" in lay_out("kathleen", tmp_path, tmp_path / "more")
