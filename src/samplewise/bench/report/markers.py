"""Tables put between <!-- bench:NAME --> and <!-- /bench --> in Markdown files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from samplewise.asr.writing import write_text
from samplewise.bench.errors import BenchError

MARKER = re.compile(r"(<!-- bench:([\w-]+) -->\n).*?(<!-- /bench -->)", re.DOTALL)
OPENING = re.compile(r"^<!-- bench:[\w-]+ -->$", re.MULTILINE)


def insert(path: Path, tables: Mapping[str, str]) -> list[str]:
    """Fill the file's markers; return the names for which there is no table, whose old content stays."""
    text = path.read_text()
    if len(MARKER.findall(text)) != len(OPENING.findall(text)):
        raise BenchError(f"{path}: a <!-- bench:NAME --> without its <!-- /bench --> on a line of its own")
    missing = []

    def fill(match: re.Match[str]) -> str:
        if match[2] not in tables:
            missing.append(match[2])
            return match[0]
        return f"{match[1]}{tables[match[2]]}\n{match[3]}"

    filled = MARKER.sub(fill, text)
    if filled != text:
        write_text(path, filled)
    return missing
