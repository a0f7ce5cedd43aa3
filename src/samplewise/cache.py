"""Where data and environments are kept that were fetched or made."""

from __future__ import annotations

import os
from pathlib import Path

PLAIN = ("~", ".cache", "samplewise")  # what recipes and documents write for the cache, wherever it is


def cache_directory() -> Path:
    """`$XDG_CACHE_HOME/samplewise`, or `~/.cache/samplewise` where that is not set, or is no absolute path."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / PLAIN[-1]


def expanded(path: str | Path) -> Path:
    """A path with its `~`; one in `~/.cache/samplewise` is in the cache, wherever that is."""
    parts = Path(path).parts
    if parts[: len(PLAIN)] == PLAIN:
        return cache_directory().joinpath(*parts[len(PLAIN) :])
    return Path(path).expanduser()
