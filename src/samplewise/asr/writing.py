"""Writing files: whole or not at all, and where that fails, which file, what it lacks, and how to go on.

Everything that this package writes for its user goes through these functions.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from samplewise import strict_json
from samplewise.asr.errors import UserError, WriteError
from samplewise.planning.budget import show_bytes

FULL = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the quota is used up"}
REFUSED = (errno.EROFS, errno.EACCES, errno.EPERM)
ONLY_WRITING = (*FULL, errno.EROFS)  # numbers of errors that no reading gives
MAKE_ROOM = "Make room there and give the same command again: what was saved before is whole."
OTHER_PLACE = "Make it writable, or choose another place, and give the same command again."
AGAIN = "Put that right and give the same command again: what was saved before is whole."


@contextlib.contextmanager
def saving(path: Path, needed: int | None = None, failures: tuple[type[Exception], ...] = (OSError,)) -> Iterator[None]:
    """Within `with`, failures to write become errors for the user.

    Args:
        path: what is written.
        needed: its bytes, if they are known.
        failures: what the writer raises.

    Raises:
        WriteError: in place of the failures.
    """
    try:
        yield
    except UserError:
        raise
    except failures as error:
        raise WriteError(explained(path, error, needed)) from None


def explained(path: Path, error: Exception, needed: int | None) -> str:
    number = getattr(error, "errno", None)
    free = free_bytes(path)
    if number is None and free is not None and free < (needed or 1):
        number = errno.ENOSPC  # a writer that does not tell why
    if number in FULL:
        wanted = f"{show_bytes(needed)} are needed, " if needed is not None else ""
        left = f"{show_bytes(free)} are free in {path.parent}" if free is not None else f"in {path.parent}"
        return f"cannot write {path}: {FULL[number]}: {wanted}{left}. {MAKE_ROOM}"
    reason = os.strerror(number) if number is not None else str(error).strip().splitlines()[0]
    return f"cannot write {path}: {reason}. {OTHER_PLACE if number in REFUSED else AGAIN}"


def free_bytes(path: Path) -> int | None:
    """Free for this user on the disk that holds the path, or will; None if that cannot be told."""
    for place in path.parents:
        with contextlib.suppress(OSError):
            return shutil.disk_usage(place).free
    return None


def need(path: Path, needed: int) -> None:
    """Refuse to begin what the disk has no room for; raise WriteError."""
    free = free_bytes(path)
    if free is not None and free < needed:
        raise WriteError(explained(path, OSError(errno.ENOSPC, ""), needed))


def make_directory(path: Path) -> None:
    with saving(path):
        path.mkdir(parents=True, exist_ok=True)


def write_bytes(path: Path, content: bytes | memoryview) -> None:
    """Write a file whole or not at all: where it fails, what was there before stays.

    Raises:
        WriteError: it cannot be written.
    """
    partial = path.with_name(path.name + ".partial")
    with saving(path, len(content)):
        try:
            partial.write_bytes(content)
            partial.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
            raise


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def write_json(path: Path, values: Any) -> None:
    write_text(path, strict_json.text(values, indent=2, ensure_ascii=False) + "\n")


def write_lines(path: Path, lines: Iterable[Any]) -> None:
    """A file of JSON lines."""
    write_text(path, "".join(strict_json.text(line, ensure_ascii=False) + "\n" for line in lines))


def append_line(path: Path, values: Any) -> None:
    """Add a line to a file of JSON lines; on a new line, if the last one was cut short by a kill or a full disk.

    Raises:
        WriteError: it cannot be written.
    """
    line = (strict_json.text(values, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")
    with saving(path, len(line)), path.open("a+b") as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            line = line if file.read(1) == b"\n" else b"\n" + line
        file.write(line)


def read_json_lines(path: Path, *, leave_out: Literal["cut", "last", "broken"] = "cut") -> Iterator[Any]:
    """The values of the lines.

    Args:
        leave_out: lines that are no JSON: "cut", those that begin as an object does, which `append_line` leaves in a file
            where a kill cut one short; "last", one at the very end alone; "broken", all of them.

    Raises:
        OSError: it cannot be read.
        ValueError: another line is no JSON; the message has its number.
    """
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    for number, line in enumerate(lines, 1):
        try:
            if line.strip():
                yield json.loads(line)
        except ValueError:
            cut = line.startswith("{") and (leave_out != "last" or number == len(lines))
            if leave_out != "broken" and not cut:
                raise ValueError(f"line {number}: not JSON") from None


def remove_cut_line(path: Path) -> None:
    """Take away a last line that a kill cut short; for files that a single process writes."""
    with saving(path), contextlib.suppress(FileNotFoundError):
        content = path.read_bytes()
        last = content.rpartition(b"\n")[2]
        try:
            json.loads(last or b"0")
        except ValueError:
            os.truncate(path, len(content) - len(last))
