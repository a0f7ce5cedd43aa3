"""The script behind `make test-peers`: what it tests, what it leaves out, and its status."""

import importlib
from pathlib import Path

import pytest

from samplewise.bench.errors import BenchError
from samplewise.bench.peers.registry import PEERS

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return importlib.import_module("test_peers")


def test_every_peer_with_tests_can_be_installed(script):
    found = script.with_tests()
    assert "nemo" in found and all(peer in PEERS and PEERS[peer].requirements for peer in found)
    assert not set(found) & set(script.LEFT_OUT)


def test_a_failing_test_and_a_failed_installation_fail(script, monkeypatch, capsys):
    monkeypatch.setattr(script, "with_tests", lambda: ["nemo", "fast-rnnt"])
    monkeypatch.setattr(script, "HERE", {})
    monkeypatch.setattr(script, "LEFT_OUT", {"no_such_library": "a reason"})
    monkeypatch.setattr(script, "locate", lambda peer: "not installed")

    def install(peer, *_):
        raise BenchError(f"{peer} has no wheel")

    monkeypatch.setattr(script, "install", install)
    assert script.main([]) == 1
    out = capsys.readouterr().out
    assert "| nemo | not installed | nemo has no wheel |" in out
    assert (
        "| no_such_library | not tested | a reason; import here: ModuleNotFoundError: No module named 'no_such_library' |"
        in out
    )
    assert script.main(["fast-rnnt"]) == 1 and "no_such_library" not in capsys.readouterr().out
    monkeypatch.setattr(script, "with_tests", lambda: ["fast-rnnt"])
    assert script.main([]) == 0  # it is built from source, for which not every machine has the tools
    with pytest.raises(SystemExit, match="no tests of espnet; there are those of fast-rnnt"):
        script.main(["espnet"])


@pytest.mark.parametrize(
    "line, status", [("assert True", 0), ("assert False", 1), ("import pytest; pytest.skip(allow_module_level=True)", 5)]
)
def test_the_status_is_that_of_the_tests(script, monkeypatch, tmp_path, capsys, line, status):
    path = tmp_path / "test_it.py"
    path.write_text(f"{line}\n" if "skip" in line else f"def test_it():\n    {line}\n")
    monkeypatch.setattr(script, "with_tests", lambda: [])
    monkeypatch.setattr(script, "ROOT", tmp_path)
    monkeypatch.setattr(script, "HERE", {"pytest": "test_i*.py"})
    monkeypatch.setattr(script, "LEFT_OUT", {})
    assert script.main([]) == (status > 0)
    assert (
        f"| pytest | {f'FAILED (exit status {status})' if status else 'passed'} | pytest {pytest.__version__} |"
        in capsys.readouterr().out
    )


def test_what_can_be_imported_after_all_is_said(script):
    row = script.left_out("json", "a reason")
    assert row.what == "it can be imported here, but has no tests of its own (a reason)" and not row.failed
