"""How kernels are compiled, and where their machine code is kept from one process to the next.

numba's own cache looks at the file of a compiled function alone: not at what it calls in other files. So the code of each state
of all sources has a directory of its own; a change of any of them, by hand or by a new version, is a change of the directory.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numba

from samplewise.cache import cache_directory

HERE = Path(__file__).resolve().parent
LOCK = threading.RLock()
SETTINGS: Any = numba.config


def kernel(**options):
    """`numba.njit` for a parallel kernel, cached on disk where a place for it can be written."""
    options = {"parallel": True, "nogil": True, "error_model": "numpy", **options}

    def compile(function):
        place = directory(SETTINGS.CACHE_DIR, state(HERE))
        if place is None:
            return numba.njit(**options)(function)
        with kept_in(place):
            return numba.njit(cache=True, **options)(function)

    return compile


@contextlib.contextmanager
def kept_in(place: Path) -> Iterator[None]:
    """numba keeps there what is compiled from here on; afterwards it is as it was."""
    with LOCK:
        before = SETTINGS.CACHE_DIR
        SETTINGS.CACHE_DIR = str(place)
        try:
            yield
        finally:
            SETTINGS.CACHE_DIR = before


def directory(given: str, key: str) -> Path | None:
    """A directory for a state of the sources that can be written: in the one that NUMBA_CACHE_DIR gives, or else beside the
    sources or in the cache; None if there is none."""
    for base in [Path(given)] if given else [HERE / "__pycache__", cache_directory() / "numba"]:
        place = base / f"samplewise-{key}"
        with contextlib.suppress(OSError):
            place.mkdir(parents=True, exist_ok=True)
        if os.access(place, os.W_OK):
            return place
    return None


@functools.cache
def state(folder: Path) -> str:
    """A hash of all sources of a folder and of the one above it, whose numbers kernels are compiled with."""
    files = sorted([*folder.glob("*.py"), *folder.parent.glob("*.py")])
    return hashlib.sha256(b"".join(path.name.encode() + path.read_bytes() for path in files)).hexdigest()[:16]
