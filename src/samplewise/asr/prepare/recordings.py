"""Recordings of a corpus that cannot be read: lhotse's recipes stop at the first one; here it is noted, and they go on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lhotse import AudioSource, Recording

from samplewise.asr.problems import BadDataError, BadDataLog, named

RATE, SECONDS = 16000, 10**6  # of what stands for an unreadable recording: so long that no piece of it is cut


@contextlib.contextmanager
def unreadable_noted(bad: BadDataLog) -> Iterator[set[str]]:
    """While lhotse prepares a corpus: recordings whose header cannot be read go to `bad`, and their paths are in the set."""
    unreadable: set[str] = set()
    from_file = Recording.from_file

    def noting(path: Path | str, recording_id: str | None = None, **options: Any) -> Recording:
        place = Path(path).resolve()
        try:
            with named(str(place)):
                return from_file(path, recording_id=recording_id, **options)
        except BadDataError as error:
            bad.add(error.problem)
            unreadable.add(str(place))
            source = AudioSource(type="file", channels=[0], source=str(path))
            return Recording(recording_id or place.stem, [source], RATE, RATE * SECONDS, float(SECONDS))

    Recording.from_file = staticmethod(noting)  # type: ignore[method-assign]
    try:
        yield unreadable
    finally:
        Recording.from_file = staticmethod(from_file)  # type: ignore[method-assign]
