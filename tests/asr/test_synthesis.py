"""Digits by eSpeak NG: the library, the binary, and neither."""

from __future__ import annotations

import numpy as np
import pytest
import soundfile

from samplewise.asr import synthesis
from samplewise.asr.corpus import WORDS
from samplewise.asr.errors import UserError

RATE = 8000
SCRIPT = """#!/bin/sh
while [ "$1" != "-w" ]; do shift; done
cp "{wave}" "$2"
"""


def test_the_library_speaks_every_digit_in_every_voice():
    recordings = synthesis.synthesise_digits(RATE, takes=1)
    assert len(recordings) == len(WORDS) * len(synthesis.VOICES)
    assert len({r.speaker for r in recordings}) == len(synthesis.VOICES)
    for recording in recordings:
        assert 0.1 < len(recording.samples) / RATE < 1.5
        assert 0.05 < np.abs(recording.samples).max() <= 1.2
        assert recording.samples.dtype == np.float32


def test_takes_differ_and_both_splits_are_there(monkeypatch):
    monkeypatch.setattr(synthesis, "VOICES", ("en-us",))
    recordings = synthesis.synthesise_digits(RATE, takes=synthesis.TEST_TAKES + 2)
    zeros = [r for r in recordings if r.digit == 0]
    assert [r.split for r in zeros] == ["test"] * synthesis.TEST_TAKES + ["train"] * 2
    assert len({r.samples.tobytes() for r in zeros}) == len(zeros)


def broken_library(rate):
    raise OSError("no such library")


def test_the_binary_is_used_if_the_library_fails(tmp_path, monkeypatch):
    soundfile.write(tmp_path / "spoken.wav", 0.1 * np.ones(4000, dtype=np.float32), 16000)
    binary = tmp_path / "espeak-ng"
    binary.write_text(SCRIPT.format(wave=tmp_path / "spoken.wav"))
    binary.chmod(0o755)
    monkeypatch.setattr(synthesis, "Library", broken_library)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    speak = synthesis.find_speaker(RATE)
    assert isinstance(speak, synthesis.Binary)
    assert len(speak("one", "en", 150, 50)) == 2000


def test_without_any_espeak_it_says_what_to_do(monkeypatch):
    monkeypatch.setattr(synthesis, "Library", broken_library)
    monkeypatch.setattr(synthesis.shutil, "which", lambda name: None)
    with pytest.raises(UserError, match=r"no such library.*--data"):
        synthesis.find_speaker(RATE)


def test_trimming_keeps_what_is_loud():
    samples = np.concatenate([np.zeros(100), [0.5, 0.0, -0.2], np.full(50, 1e-3)]).astype(np.float32)
    np.testing.assert_allclose(synthesis.trim(samples), [0.5, 0.0, -0.2])
