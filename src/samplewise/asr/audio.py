"""Sound files of any format libsndfile reads, at any sampling rate, as one channel of float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import soxr

from samplewise.asr.problems import BadDataError, named
from samplewise.asr.sound_files import read_sound

SILENCE = 1e-4  # peak amplitude below which a recording holds nothing: under 4 steps of 16 bits
TOLERANCE = 0.1  # seconds by which a recording may be shorter than its manifest says
LONGER = 2  # times, and a second more, that it may be longer: batches are made by what the manifest says


def read_audio(path: str | Path, sample_rate: int, duration: float | None = None, start: float | None = None) -> np.ndarray:
    """Read a recording or a piece of it, mix its channels, resample it.

    Args:
        path: a wav, flac, ogg (Vorbis, Opus) or other file known to libsndfile.
        sample_rate: sampling rate of what is returned (Hz).
        duration: how long it ought to be (s), if known; one that is shorter, or much longer, is refused.
        start: where a piece of `duration` begins (s); None: the whole recording.

    Returns:
        Samples (S,) float32, nominally in -1..1.

    Raises:
        BadDataError: a file that is missing, unreadable for whatever reason, empty, truncated, silent, or not finite.
    """
    path = Path(path)
    with named(str(path)):
        if not path.is_file():
            raise BadDataError(str(path), "missing file")
        sound = read_sound(path, start, duration)
        samples = sound.samples.mean(axis=1)
        check_samples(samples, sound.rate, str(path), sound.promised, duration)
        if sound.rate != sample_rate:
            samples = soxr.resample(samples, sound.rate, sample_rate)
        return np.ascontiguousarray(samples, dtype=np.float32)


def check_samples(samples: np.ndarray, rate: int, key: str, promised: int | None, duration: float | None) -> None:
    """Raise BadDataError for a recording that is empty, truncated, far too long, broken or silent."""
    seconds = len(samples) / rate
    if len(samples) == 0:
        raise BadDataError(key, "empty recording")
    if promised is not None and len(samples) < promised:
        raise BadDataError(key, "truncated recording", f"{len(samples)} of {promised} samples are there")
    if duration is not None and seconds < duration - TOLERANCE:
        raise BadDataError(key, "truncated recording", f"{seconds:.2f} s of {duration:.2f} s are there")
    if duration is not None and seconds > LONGER * duration + 1:
        raise BadDataError(key, "longer recording than its manifest says", f"{seconds:.2f} s, and not {duration:.2f} s")
    if not np.isfinite(samples).all():
        raise BadDataError(key, "samples that are not finite")
    if np.abs(samples).max() < SILENCE:
        raise BadDataError(key, "silent recording", f"{seconds:.2f} s, no sample above {SILENCE:g}")
