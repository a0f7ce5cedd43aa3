"""Rows of measurements, one JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from samplewise import strict_json
from samplewise.asr.writing import append_line, make_directory, read_json_lines, remove_cut_line
from samplewise.bench.errors import BenchError

Row = dict[str, Any]
SCHEMA = 1
FINAL = ("ok", "wrong", "out of memory", "too slow")  # not measured again for the same code


def read_rows(paths: Iterable[Path]) -> list[Row]:
    rows = []
    for path in paths:
        try:
            found = list(read_json_lines(path, leave_out="last"))
        except OSError as error:
            raise BenchError(f"{path}: {error.strerror}") from error
        except ValueError as error:
            raise BenchError(f"{path}, {error}") from None
        for number, row in enumerate(found, 1):
            if not isinstance(row, dict) or row.get("schema") != SCHEMA:
                raise BenchError(f"{path}, row {number}: not a measurement of `samplewise bench run`")
        rows += found
    return rows


def append_row(path: Path, row: Row) -> None:
    make_directory(path.parent)
    remove_cut_line(path)
    append_line(path, strict_json.told(row))


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
