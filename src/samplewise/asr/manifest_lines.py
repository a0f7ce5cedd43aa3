"""The lines of a manifest, one by one: an odd line costs itself and no other, and its values are what they are taken for."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from samplewise import strict_json
from samplewise.asr.errors import UserError
from samplewise.asr.problems import BadDataError, named

HEAD = 1024  # bytes in which a zero tells that this is no text
UTF16 = (b"\xff\xfe", b"\xfe\xff")
BOM = b"\xef\xbb\xbf"


def numbered_lines(path: Path) -> list[tuple[int, bytes]]:
    """The lines of a file of JSON lines that are not blank, and their numbers.

    They end at line feeds alone: other separators of lines may stand in a text.

    Raises:
        UserError: there is no such file, it cannot be read, or it is no text in UTF-8.
    """
    if not os.path.isfile(path):  # False for names that no system takes, where Path.is_file raises
        raise UserError(f"no manifest at {path}; expected a file of JSON lines with audio and text, or its directory")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"the manifest {path} cannot be read: {error}") from None
    if content.startswith(UTF16):
        raise UserError(
            f"the manifest {path} is in UTF-16; write it in UTF-8: iconv -f UTF-16 -t UTF-8 {path.name} > manifest.jsonl"
        )
    if b"\0" in content[:4] or (b"\0" in content[:HEAD] and not content.lstrip().startswith(b"{")):
        raise UserError(f"{path} is no manifest: it is not text in UTF-8; expected a file of JSON lines with audio and text")
    lines = content.removeprefix(BOM).split(b"\n")
    return [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]


def values_of(line: bytes, where: str) -> dict[str, Any]:
    """What one line says; BadDataError names the line `where`."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadDataError(where, "not in UTF-8", f"{error.reason} at byte {error.start + 1} of the line") from None
    with named(where, "not a line of JSON"):
        values = json.loads(text)
    if not isinstance(values, dict):
        raise BadDataError(where, "not a line of JSON", f"expected an object, found {type(values).__name__}")
    return values


def text_of(values: dict[str, Any], key: str) -> str:
    """The transcript of a line; an empty one can be scored, and is left out where there is something to learn."""
    text = values.get("text")
    if text is None:
        raise BadDataError(key, "no transcript", 'one of which nothing is said has "text": ""')
    if not isinstance(text, str):
        raise BadDataError(key, "a transcript that is not text", f"found {strict_json.text(text)[:40]}; texts have quotes")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise BadDataError(key, "a transcript that is not Unicode", f"a lone surrogate, {text[error.start]!r}") from None
    return text


def seconds_of(values: dict[str, Any], name: str, key: str) -> float | None:
    """A time (s) that a line may have: finite and not negative."""
    value = values.get(name)
    if value is None:
        return None
    try:
        seconds = float(value) if not isinstance(value, bool) else math.nan
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if not math.isfinite(seconds) or seconds < 0:
        raise BadDataError(key, f"a {name} that is no time", f"{value!r:.40}; expected seconds, or none where it is not known")
    return seconds


def duration_of(values: dict[str, Any], key: str) -> float | None:
    """How long an utterance is said to be (s): more than nothing."""
    seconds = seconds_of(values, "duration", key)
    if seconds == 0:
        raise BadDataError(key, "a duration that is no time", "0; expected seconds, or none where it is not known")
    return seconds


def file_of(path: Path, key: str) -> Path:
    """The path of a file that is there."""
    with named(key, "a path that cannot be used"):
        there = path.is_file()
    if not there:
        raise BadDataError(key, "missing file", str(path))
    return path
