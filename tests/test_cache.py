"""One cache directory for all that looks for something in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from samplewise.cache import cache_directory, expanded

SOURCES = sorted((Path(__file__).parents[1] / "src").rglob("*.py"))


def test_the_cache_is_where_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert cache_directory() == Path("/elsewhere/samplewise")
    assert expanded("~/.cache/samplewise/spoken") == Path("/elsewhere/samplewise/spoken")
    assert expanded("~/.cache/samplewise") == Path("/elsewhere/samplewise")
    assert expanded("~/.cache/other") == tmp_path / ".cache" / "other" and expanded("~/data") == tmp_path / "data"
    assert expanded("data/.cache/samplewise") == Path("data/.cache/samplewise") and expanded("/a/b") == Path("/a/b")


@pytest.mark.parametrize("value", ["", "relative/path", None])
def test_what_is_no_absolute_path_does_not_count(monkeypatch, tmp_path, value):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False) if value is None else monkeypatch.setenv("XDG_CACHE_HOME", value)
    assert cache_directory() == tmp_path / ".cache" / "samplewise"
    assert expanded("~/.cache/samplewise/spoken") == tmp_path / ".cache" / "samplewise" / "spoken"


def test_no_other_place_looks_at_the_environment():
    assert [path.name for path in SOURCES if "XDG_CACHE_HOME" in path.read_text(encoding="utf-8")] == ["cache.py"]
