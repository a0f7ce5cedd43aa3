"""Reading sound: formats, rates, channels, and everything that a recording can have wrong with it."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import soundfile

from samplewise.asr.audio import read_audio
from samplewise.asr.problems import BadDataError

RATE = 16000


def sine(rate: int, seconds: float = 0.5, hertz: float = 440.0) -> np.ndarray:
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(int(rate * seconds)) / rate)).astype(np.float32)


def pitch(samples: np.ndarray, rate: int) -> float:
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    return spectrum.argmax() * rate / len(samples)


@pytest.mark.parametrize("suffix", ["wav", "flac", "ogg"])
@pytest.mark.parametrize("rate", [8000, 22050, 48000])
def test_any_format_at_any_rate(tmp_path, suffix, rate):
    path = tmp_path / f"a.{suffix}"
    soundfile.write(path, sine(rate), rate)
    samples = read_audio(path, RATE)
    assert samples.dtype == np.float32
    assert len(samples) == pytest.approx(RATE / 2, rel=0.02)
    assert pitch(samples, RATE) == pytest.approx(440, abs=4)


def test_channels_are_mixed(tmp_path):
    path = tmp_path / "a.wav"
    left, right = sine(RATE), sine(RATE, hertz=880)
    soundfile.write(path, np.stack([left, right], axis=1), RATE, subtype="FLOAT")
    np.testing.assert_allclose(read_audio(path, RATE), (left + right) / 2, atol=1e-6)


def refused(path, **options) -> str:
    with pytest.raises(BadDataError) as error:
        read_audio(path, RATE, **options)
    assert error.value.problem.key == str(path)
    return error.value.problem.reason


def test_missing_file(tmp_path):
    assert refused(tmp_path / "none.wav") == "missing file"


def test_silent_recording(tmp_path):
    soundfile.write(tmp_path / "a.wav", np.zeros(8000, dtype=np.float32), RATE)
    assert refused(tmp_path / "a.wav") == "silent recording"


def test_empty_recording(tmp_path):
    soundfile.write(tmp_path / "a.wav", np.zeros(0, dtype=np.float32), RATE)
    assert refused(tmp_path / "a.wav") == "empty recording"


def test_no_recording_at_all(tmp_path):
    (tmp_path / "a.wav").write_bytes(b"not a sound file")
    assert refused(tmp_path / "a.wav") == "unreadable recording"


def test_values_that_are_not_finite(tmp_path):
    samples = sine(RATE)
    samples[100] = np.nan
    soundfile.write(tmp_path / "a.wav", samples, RATE, subtype="FLOAT")
    assert refused(tmp_path / "a.wav") == "samples that are not finite"


@pytest.mark.parametrize("suffix", ["wav", "flac"])
def test_a_file_cut_short(tmp_path, suffix):
    path = tmp_path / f"a.{suffix}"
    soundfile.write(path, sine(RATE, 2.0) + 0.01 * np.random.default_rng(0).standard_normal(32000), RATE)
    assert len(read_audio(path, RATE)) == 32000
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert refused(path) in ("truncated recording", "unreadable recording")


def test_shorter_than_the_manifest_says(tmp_path):
    soundfile.write(tmp_path / "a.wav", sine(RATE, 1.0), RATE)
    assert refused(tmp_path / "a.wav", duration=2.0) == "truncated recording"
    assert len(read_audio(tmp_path / "a.wav", RATE, duration=1.05)) == RATE


def test_far_longer_than_the_manifest_says(tmp_path):
    soundfile.write(tmp_path / "a.wav", sine(RATE, 3.0), RATE)
    assert refused(tmp_path / "a.wav", duration=0.5) == "longer recording than its manifest says"
    assert len(read_audio(tmp_path / "a.wav", RATE, duration=1.1)) == 3 * RATE, "a rough one"
    assert len(read_audio(tmp_path / "a.wav", RATE, duration=0.5, start=0.0)) == RATE // 2, "a piece"


@pytest.mark.parametrize("suffix", ["wav", "flac"])
def test_a_piece_of_a_recording(tmp_path, suffix):
    path = tmp_path / f"a.{suffix}"
    soundfile.write(path, np.linspace(-0.9, 0.9, 2 * RATE), RATE)
    whole = read_audio(path, RATE)
    np.testing.assert_array_equal(read_audio(path, RATE, duration=0.5, start=0.25), whole[RATE // 4 : 3 * RATE // 4])
    np.testing.assert_array_equal(read_audio(path, RATE, duration=0.5, start=0.0), whole[: RATE // 2])
    assert len(read_audio(path, RATE, duration=0.55, start=1.5)) == RATE // 2, "a little too long, as manifests round"
    assert refused(path, duration=1.0, start=1.5) == "truncated recording"
    assert refused(path, duration=1.0, start=3.0) == "empty recording"


def test_a_streamed_wav_of_unknown_length_is_read(tmp_path):
    path = tmp_path / "a.wav"
    soundfile.write(path, sine(RATE), RATE)
    content = bytearray(path.read_bytes())
    at = content.index(b"data") + 4
    content[at : at + 4] = struct.pack("<I", 0xFFFFFFFF)
    path.write_bytes(bytes(content))
    assert len(read_audio(path, RATE)) == RATE // 2
