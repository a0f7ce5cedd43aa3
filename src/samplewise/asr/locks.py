"""Locks that go with the process that holds them, however it ends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout


def take_lock(path: Path) -> FileLock | None:
    """A lock that this process holds from now on; None if another process has it.

    On a file system without locks it is one that keeps nobody out.
    """
    lock = FileLock(path, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        return None
    except (OSError, NotImplementedError):
        pass
    return lock


@contextlib.contextmanager
def hold(path: Path) -> Iterator[bool]:
    """Within `with`, hold the lock; False if another process has it."""
    lock = take_lock(path)
    try:
        yield lock is not None
    finally:
        if lock is not None:
            lock.release()


def is_held(path: Path) -> bool:
    """Whether another process holds it now."""
    if not path.exists():
        return False
    with hold(path) as free:
        return not free
