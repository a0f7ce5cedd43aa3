"""Odd and damaged sound files: all of their samples are read, or it is said what is wrong; never silently fewer."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import numpy as np
import pytest
import soundfile

from samplewise.asr import sound_files
from samplewise.asr.audio import read_audio
from samplewise.asr.problems import BadData, BadDataError
from samplewise.asr.sound_files import read_sound

RATE = 16000
LENGTH = 24000


def noise(level: float = 0.1, samples: int = LENGTH) -> np.ndarray:
    return (level * np.random.default_rng(0).standard_normal(samples)).astype(np.float32)


def encoded(form: str, subtype: str | None = None, samples: np.ndarray | None = None, **options) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, noise() if samples is None else samples, RATE, format=form, subtype=subtype, **options)
    return file.getvalue()


def stored(directory: Path, content: bytes, name: str = "a.wav") -> Path:
    path = directory / name
    path.write_bytes(content)
    return path


def problem(path: Path, **options) -> BadData:
    with pytest.raises(BadDataError) as error:
        read_audio(path, RATE, **options)
    return error.value.problem


def with_length(content: bytes, length: int, after: bytes = b"data") -> bytes:
    at = content.index(after) + 4
    return content[:at] + struct.pack("<I", length) + content[at + 4 :]


STREAMED = [0x7FFFFF00, 0x7FFFFFFF, 0x7FFFF000, 0x80000000, 0xFFFFFFFF - 36, 0xFFFFFFFF, 0]


@pytest.mark.parametrize("length", STREAMED, ids=hex)
def test_a_streamed_wav_is_read_to_its_end(tmp_path, length):
    content = encoded("WAV")
    path = stored(tmp_path, with_length(with_length(content, min(length + 36, 2**32 - 1), b"RIFF"), length))
    whole, _ = soundfile.read(io.BytesIO(content), dtype="float32")
    assert len(whole) == LENGTH
    np.testing.assert_array_equal(read_audio(path, RATE), whole)
    np.testing.assert_array_equal(read_audio(path, RATE, duration=0.5, start=0.25), whole[4000:12000])


def test_a_streamed_au_is_read_to_its_end(tmp_path):
    content = encoded("AU", "PCM_16")
    for length in (b"\xff\xff\xff\xff", b"\0\0\0\0"):
        assert len(read_audio(stored(tmp_path, content[:8] + length + content[12:], "a.au"), RATE)) == LENGTH


def test_an_empty_wav_with_notes_after_it_is_empty(tmp_path):
    content = encoded("WAV", samples=noise(samples=0)) + b"LIST" + struct.pack("<I", 4) + b"INFO"
    assert problem(stored(tmp_path, content)).reason == "empty recording"


def test_gsm_is_read(tmp_path):
    path = stored(tmp_path, encoded("WAV", "GSM610"))
    whole = read_audio(path, RATE)
    assert LENGTH <= len(whole) <= LENGTH + 320, "whole blocks"
    np.testing.assert_array_equal(read_audio(path, RATE, duration=0.5, start=0.25), whole[4000:12000])


def test_flac_of_unknown_length_is_read(tmp_path):
    content = bytearray(encoded("FLAC"))
    whole, _ = soundfile.read(io.BytesIO(content), dtype="float32")
    content[21] &= 0xF0  # STREAMINFO: 36 bits of the number of samples
    content[22:26] = bytes(4)
    path = stored(tmp_path, bytes(content), "a.flac")
    np.testing.assert_array_equal(read_audio(path, RATE), whole)
    np.testing.assert_array_equal(read_audio(path, RATE, duration=0.5, start=0.25), whole[4000:12000])


def vbr_mp3(loud_first: bool) -> tuple[bytes, bytes]:
    """MP3 of variable bit rate: as it was written, and without the first frame, which tells its length."""
    pieces = [noise(0.3, LENGTH // 2), noise(1e-4, LENGTH // 2)]
    samples = np.concatenate(pieces if loud_first else pieces[::-1])
    content = encoded("MP3", samples=samples, bitrate_mode="VARIABLE", compression_level=0.5)
    assert b"Xing" in content[:64]
    second = content.index(content[:2], 4)  # the sync word of the next frame
    assert b"Xing" not in content[second:]
    return content, content[second:]


@pytest.mark.parametrize("loud_first", [True, False])
@pytest.mark.parametrize("tag", [b"", b"TAG" + 125 * b"x"])
def test_vbr_mp3_without_a_length_is_read_to_its_end(tmp_path, loud_first, tag):
    told, untold = vbr_mp3(loud_first)
    assert len(read_audio(stored(tmp_path, told + tag, "a.mp3"), RATE)) == LENGTH
    path = stored(tmp_path, untold + tag, "a.mp3")
    with soundfile.SoundFile(path) as file:
        assert abs(file.frames - LENGTH) > LENGTH // 4, "else the test shows nothing"
    whole = read_audio(path, RATE)
    assert LENGTH <= len(whole) < LENGTH + 4 * 576, "the encoder's delay and padding are not known either"
    np.testing.assert_allclose(read_audio(path, RATE, duration=0.5, start=0.25), whole[4000:12000], atol=1e-4)


def test_an_mp3_whose_first_frame_tells_all_but_its_length_is_read_to_its_end(tmp_path):
    told, _ = vbr_mp3(True)
    at = told.index(b"Xing") + 7
    path = stored(tmp_path, told[:at] + bytes([told[at] & 0xFE]) + told[at + 1 :], "a.mp3")
    with soundfile.SoundFile(path) as file:
        assert abs(file.frames - LENGTH) > LENGTH // 4, "else the test shows nothing"
    assert abs(len(read_audio(path, RATE)) - LENGTH) < 4 * 576


def test_joined_mp3_of_which_the_second_tells_no_length_is_named(tmp_path):
    told, untold = vbr_mp3(True)
    assert len(read_audio(stored(tmp_path, told + b"APETAGEX" + bytes(9000), "a.mp3"), RATE)) == LENGTH
    assert problem(stored(tmp_path, told + untold, "a.mp3")).reason == "several recordings in one file"


def test_an_id3_tag_in_front_of_an_mp3_hides_no_length(tmp_path):
    told, _ = vbr_mp3(True)
    tag = b"ID3\x04\0\0\0\0\x10\0" + bytes(2048)
    assert problem(stored(tmp_path, tag + told + told, "a.mp3")).reason == "several recordings in one file"
    assert len(read_audio(stored(tmp_path, tag + told, "a.mp3"), RATE)) == LENGTH


@pytest.mark.parametrize(("form", "subtype"), [("MP3", None), ("OGG", "VORBIS"), ("OGG", "OPUS")])
def test_joined_recordings_are_named(tmp_path, form, subtype):
    for samples in (noise(), noise(samples=2000)):
        content = encoded(form, subtype, samples)
        assert len(read_audio(stored(tmp_path, content), RATE)) == len(samples)
        found = problem(stored(tmp_path, content + content)).reason
        assert found in ("several recordings in one file", "unreadable recording"), "libsndfile does not open some of them"


@pytest.mark.parametrize("form", ["WAV", "WAVEX", "AIFF", "AU", "W64", "RF64", "NIST", "VOC", "FLAC", "OGG", "MP3", "CAF"])
def test_a_file_of_any_format_that_was_cut_is_named(tmp_path, form):
    content = encoded(form)
    assert len(read_audio(stored(tmp_path, content, f"a.{form}"), RATE)) == LENGTH
    found = problem(stored(tmp_path, content[: len(content) * 6 // 10], f"a.{form}"))
    assert found.reason == "truncated recording" or (form in ("FLAC", "CAF") and found.reason == "unreadable recording")


def test_a_name_decides_nothing(tmp_path):
    assert len(read_audio(stored(tmp_path, encoded("FLAC"), "a.raw"), RATE)) == LENGTH
    found = problem(stored(tmp_path, noise().tobytes(), "b.raw"))
    assert (found.reason, "b.raw" in found.key) == ("unreadable recording", True)


def test_names_that_a_system_does_not_take_are_named(tmp_path):
    assert "too long" in problem(tmp_path / ("a" * 256)).detail
    assert "too long" in problem(tmp_path.joinpath(*["a" * 200] * 30)).detail
    assert problem(tmp_path / "a\0b").reason == "missing file"
    assert problem(tmp_path).reason == "missing file"


def test_a_name_that_is_not_utf_8_is_read_and_can_be_printed(tmp_path):
    path = stored(tmp_path, encoded("WAV"), "a\udcff.wav")
    assert len(read_audio(path, RATE)) == LENGTH
    missing = problem(tmp_path / "b\udcff.wav")
    assert missing.key.endswith("b\\udcff.wav") and missing.key.encode()


def test_times_that_are_no_times_are_named(tmp_path):
    path = stored(tmp_path, encoded("WAV"))
    for start in (float("nan"), float("inf"), -1.0):
        assert problem(path, start=start, duration=1.0).reason in ("unreadable recording", "empty recording")
    assert problem(path, start=0.0, duration=float("nan")).reason == "unreadable recording"


def test_a_damaged_sampling_rate_is_named(tmp_path):
    content = encoded("WAV")
    at = content.index(b"fmt ") + 12
    for rate in (1, 2**31 - 1):
        found = problem(stored(tmp_path, content[:at] + struct.pack("<I", rate) + content[at + 4 :]))
        assert found.detail == f"a sampling rate of {rate} Hz"


def test_a_failing_disk_is_named(tmp_path, monkeypatch):
    path = stored(tmp_path, encoded("WAV"))

    class Failing(sound_files.Source):
        def readinto(self, buffer):
            raise OSError(5, "Input/output error")

    def failing(handle):
        source = sound_files.Source(handle)
        file = sound_files.Straight(source)
        source.file = Failing(handle)
        return file

    monkeypatch.setattr(sound_files, "open_sound", failing)
    found = problem(path)
    assert found.reason == "unreadable recording" and "Input/output error" in found.detail


def test_whatever_a_library_raises_is_named(tmp_path, monkeypatch):
    def fault(*given):
        raise ZeroDivisionError("of a new kind")

    monkeypatch.setattr("samplewise.asr.audio.read_sound", fault)
    path = stored(tmp_path, b"")
    assert problem(path) == BadData(str(path), "unreadable recording", "ZeroDivisionError: of a new kind")


def test_the_promise_of_a_piece_is_what_of_it_lies_within(tmp_path):
    path = stored(tmp_path, encoded("WAV"))
    assert read_sound(path).promised == LENGTH
    assert read_sound(path, 1.0, 5.0).promised == LENGTH - RATE
    assert read_sound(path, 9.0, 5.0).promised == 0
