"""Sound files of any format libsndfile reads, at any sampling rate, as one channel of float32."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import soundfile
import soxr

from samplewise.asr.problems import BadDataError

SILENCE = 1e-4  # peak amplitude below which a recording holds nothing: under 4 steps of 16 bits
TOLERANCE = 0.1  # seconds by which a recording may be shorter than its manifest says


def read_audio(path: str | Path, sample_rate: int, duration: float | None = None, start: float | None = None) -> np.ndarray:
    """Read a recording or a piece of it, mix its channels, resample it.

    Args:
        path: a wav, flac, ogg (Vorbis, Opus) or other file known to libsndfile.
        sample_rate: sampling rate of what is returned (Hz).
        duration: how long it ought to be (s), if known; a shorter one is refused as truncated.
        start: where a piece of `duration` begins (s); None: the whole recording.

    Returns:
        Samples (S,) float32, nominally in -1..1.

    Raises:
        BadDataError: missing file, unreadable file, empty, truncated, silent, or with values that are not finite.
    """
    path = Path(path)
    if not path.is_file():
        raise BadDataError(str(path), "missing file")
    if (missing := missing_wav_bytes(path)) > 0:
        raise BadDataError(str(path), "truncated recording", f"its header promises {missing} bytes more")
    try:
        with soundfile.SoundFile(path) as file:
            promised, rate = file.frames, file.samplerate
            if start is not None and duration is not None:
                promised = min(round(duration * rate), max(0, promised - round(start * rate)))
                file.seek(min(round(start * rate), file.frames))
            channels = file.read(promised if start is not None else -1, dtype="float32", always_2d=True)  # (S, channels)
    except (soundfile.SoundFileError, OSError, RuntimeError) as error:
        raise BadDataError(str(path), "unreadable recording", str(error)) from None
    samples = channels.mean(axis=1)
    check_samples(samples, rate, str(path), promised, duration)
    if rate != sample_rate:
        samples = soxr.resample(samples, rate, sample_rate)
    return np.ascontiguousarray(samples, dtype=np.float32)


def check_samples(samples: np.ndarray, rate: int, key: str, promised: int, duration: float | None) -> None:
    """Raise BadDataError for an empty, truncated, broken or silent recording."""
    seconds = len(samples) / rate
    if len(samples) == 0:
        raise BadDataError(key, "empty recording")
    if 0 < promised < 2**40 and len(samples) < promised:
        raise BadDataError(key, "truncated recording", f"{len(samples)} of {promised} samples are there")
    if duration is not None and seconds < duration - TOLERANCE:
        raise BadDataError(key, "truncated recording", f"{seconds:.2f} s of {duration:.2f} s are there")
    if not np.isfinite(samples).all():
        raise BadDataError(key, "samples that are not finite")
    if np.abs(samples).max() < SILENCE:
        raise BadDataError(key, "silent recording", f"{seconds:.2f} s, no sample above {SILENCE:g}")


def missing_wav_bytes(path: Path) -> int:
    """Bytes by which a RIFF file's data chunk ends after the file does (libsndfile reads such files without a word)."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(12)
        if len(head) < 12 or head[:4] != b"RIFF" or head[8:] != b"WAVE":
            return 0
        while len(chunk := file.read(8)) == 8:
            name, length = struct.unpack("<4sI", chunk)
            if name == b"data":
                streamed = length in (0, 0x7FFFFFFF, 0x7FFFF000, 0xFFFFFFFF)  # written before the length was known
                return 0 if streamed else file.tell() + length - size
            file.seek(length + length % 2, 1)
    return 0
