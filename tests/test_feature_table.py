"""The table of features in docs/migrate.md: ours are tried, and the page has what the script makes."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def script(monkeypatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return importlib.import_module("feature_table")


def test_the_page_has_the_table(script):
    assert script.table() in (ROOT / "docs" / "migrate.md").read_text(), (
        "python scripts/feature_table.py --insert docs/migrate.md has to be run"
    )


def test_what_does_not_work_is_not_in_the_table(script, monkeypatch):
    monkeypatch.setattr(script, "ROWS", (("nothing", lambda: False, ("no",) * len(script.PEERS)),))
    with pytest.raises(SystemExit, match="nothing: samplewise does not do"):
        script.table()
