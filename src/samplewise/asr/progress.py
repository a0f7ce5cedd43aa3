"""What there is to see while something goes on: bars on standard error, where there is somebody to see them, or nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import BinaryIO, TypeVar

from rich.console import Console
from rich.progress import track, wrap_file

T = TypeVar("T")


def silent(line: str) -> None:
    """Say nothing, in place of `print`."""


def bar(items: Sequence[T], doing: str) -> Iterable[T]:
    """The items, with a bar that goes away at the end; no bar where standard error is not a terminal."""
    return track(items, doing, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())


def reading(file: BinaryIO, size: int, doing: str) -> AbstractContextManager[BinaryIO]:
    """A context that gives the file, with a bar over its `size` bytes."""
    hidden = not sys.stderr.isatty()
    return wrap_file(file, size, description=doing, console=Console(stderr=True), transient=True, disable=hidden)
