"""Where compiled kernels are kept: a change of any source is another place, so no process takes code of yesterday's."""

import importlib
import os

import pytest

pytest.importorskip("numba")
from samplewise.kernels.numba import compiling


def test_kernels_are_kept_by_the_state_of_all_sources():
    modules = [importlib.import_module(f"samplewise.kernels.numba.{path.stem}") for path in compiling.HERE.glob("*.py")]
    caches = [getattr(x, "_cache", None) for module in modules for x in vars(module).values()]
    kept = {str(cache.cache_path) for cache in caches if getattr(cache, "cache_path", None)}
    assert kept
    for path in kept:
        assert path.startswith(os.environ["NUMBA_CACHE_DIR"]) and f"samplewise-{compiling.state(compiling.HERE)}" in path


def test_a_change_of_any_file_is_another_state(tmp_path):
    numba, found = tmp_path / "numba", set()
    numba.mkdir()
    (numba / "lattice.py").write_text("x = 1\n")
    (numba / "math.py").write_text("y = 2\n")
    (tmp_path / "masks.py").write_text("z = 3\n")
    found.add(compiling.state.__wrapped__(numba))
    (numba / "math.py").write_text("y = 3\n")  # of the same size, as a released file may be of the same date
    found.add(compiling.state.__wrapped__(numba))
    (numba / "math.py").rename(numba / "scalars.py")
    found.add(compiling.state.__wrapped__(numba))
    (tmp_path / "masks.py").write_text("z = 4\n")
    found.add(compiling.state.__wrapped__(numba))
    assert len(found) == 4


def test_where_kernels_are_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(compiling, "HERE", tmp_path / "sources")
    assert compiling.directory(str(tmp_path / "given"), "k") == tmp_path / "given" / "samplewise-k"
    assert compiling.directory("", "k") == tmp_path / "sources" / "__pycache__" / "samplewise-k"
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(compiling, "HERE", tmp_path / "file")  # nothing can be made in it
    assert compiling.directory("", "k") == tmp_path / "cache" / "samplewise" / "numba" / "samplewise-k"
    assert compiling.directory(str(tmp_path / "file"), "k") is None, "not the plain cache that the given one would hide"


def test_the_setting_is_as_it_was(tmp_path):
    import numba

    before = numba.config.CACHE_DIR
    with pytest.raises(KeyError), compiling.kept_in(tmp_path):
        assert str(tmp_path) == numba.config.CACHE_DIR
        raise KeyError
    assert before == numba.config.CACHE_DIR
