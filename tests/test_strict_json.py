"""JSON that every reader takes, from every place that writes some."""

from __future__ import annotations

import ast
import json
import math
from pathlib import Path

import numpy as np
import pytest

from samplewise import strict_json
from samplewise.asr.writing import write_json
from samplewise.bench.records import append_row

ROOT = Path(__file__).parents[1]
PIPES = {"protocol.py", "worker.py"}  # between two processes of the benchmark, both Python
WILD = {"a": math.nan, "b": [1.0, -math.inf, {"c": np.float64("inf")}], "d": (0.5, True, None, "nan"), "e": {}}
TAME = {"a": None, "b": [1.0, None, {"c": None}], "d": [0.5, True, None, "nan"], "e": {}}
NAMES = {"a": "nan", "b[1]": "-inf", "b[2].c": "inf"}


def strictly(text: str):
    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_what_is_not_finite_is_null_and_named():
    assert strictly(strict_json.text(WILD)) == TAME
    assert strict_json.told(WILD) == {**TAME, "not_finite": NAMES}
    assert strict_json.told(TAME) == TAME, "nothing is said where nothing is amiss"
    assert strict_json.told(strict_json.told(WILD)) == strict_json.told(WILD)


def test_files_are_read_by_everybody(tmp_path):
    write_json(tmp_path / "a.json", WILD)
    assert strictly((tmp_path / "a.json").read_text()) == TAME
    append_row(tmp_path / "b.jsonl", WILD)
    assert strictly((tmp_path / "b.jsonl").read_text()) == {**TAME, "not_finite": NAMES}


SOURCES = sorted((*(ROOT / "src").rglob("*.py"), *(ROOT / "scripts").glob("*.py")))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_no_other_place_writes_json(path):
    calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    named = [call for call in calls if ast.unparse(call.func) in ("json.dump", "json.dumps")]
    loose = [ast.unparse(call) for call in named if "allow_nan" not in [word.arg for word in call.keywords]]
    assert not loose or path.name in PIPES, f"{loose}: use strict_json.text, or allow_nan=False"


def test_that_the_test_above_can_fail():
    assert any("json.dumps(" in path.read_text(encoding="utf-8") for path in SOURCES if path.name in PIPES)
