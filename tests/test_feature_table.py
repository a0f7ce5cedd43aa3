"""The table of features in docs/migrate.md: ours are tried, and the page has what the script makes."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        spec = importlib.util.spec_from_file_location("feature_table", ROOT / "scripts" / "feature_table.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(ROOT / "scripts"))
    return module


def test_the_page_has_the_table(script):
    assert script.table() in (ROOT / "docs" / "migrate.md").read_text(), (
        "python scripts/feature_table.py --insert docs/migrate.md has to be run"
    )


def test_what_does_not_work_is_not_in_the_table(script, monkeypatch):
    monkeypatch.setattr(script, "ROWS", (("nothing", lambda: False, ("no",) * len(script.PEERS)),))
    with pytest.raises(SystemExit, match="nothing: samplewise does not do"):
        script.table()
