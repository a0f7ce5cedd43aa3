"""Rows of measurements, one JSON object a line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from samplewise import strict_json
from samplewise.bench.errors import BenchError

Row = dict[str, Any]
SCHEMA = 1
FINAL = ("ok", "wrong", "out of memory", "too slow")  # not measured again for the same code


def read_rows(paths: Iterable[Path]) -> list[Row]:
    rows = []
    for path in paths:
        try:
            lines = path.read_text().splitlines()
        except OSError as error:
            raise BenchError(f"{path}: {error.strerror}") from error
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError:
                if number == len(lines):  # a run that was killed while it wrote
                    continue
                raise BenchError(f"{path}, line {number}: not JSON") from None
            if not isinstance(row, dict) or row.get("schema") != SCHEMA:
                raise BenchError(f"{path}, line {number}: not a measurement of `samplewise bench run`")
            rows.append(row)
    return rows


def append_row(path: Path, row: Row) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        file.seek(0, os.SEEK_END)
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":  # cut short by a kill
                file.write(b"\n")
        file.write((strict_json.text(strict_json.told(row)) + "\n").encode())


def key_of(row: Row) -> str:
    """What makes a measurement the same one: code, workload, method, threads and budget."""
    return json.dumps(
        [row["commit"], row["case"], row["sizes"], row["method"], row["threads"], row["budget"]],
        sort_keys=True,
        allow_nan=False,
    )


def done_keys(rows: Iterable[Row], accept_busy: bool) -> set[str]:
    return {key_of(row) for row in rows if row["status"] in FINAL and (accept_busy or not row["busy"])}


def latest(rows: Iterable[Row]) -> list[Row]:
    """The last row of each case and method; one that has figures wins over one that has none."""
    found: dict[tuple[str, str], Row] = {}
    for row in rows:
        key = (row["case"], row["method"])
        if key not in found or row["status"] in FINAL or found[key]["status"] not in FINAL:
            found[key] = row
    return list(found.values())
