"""The list of changes that tests should notice applies to the code as it is; its runner tells what no test notices."""

from __future__ import annotations

import importlib
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def runner(monkeypatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "scripts")  # processes that it starts import it by its name
    module = importlib.import_module("mutants")
    monkeypatch.setattr(module, "PRELOAD", [])
    return module


def test_every_entry_applies(runner):
    mutants = runner.read(ROOT)
    assert len(mutants) > 100
    assert all(mutant.change(ROOT) != (ROOT / mutant.file).read_text(encoding="utf-8") for mutant in mutants)


ENTRY = {"name": "less", "file": "code.py", "find": "x < 3", "replace": "x < 2", "tests": ["test_code.py"]}


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A project of one function and one test, under git."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # starts faster
    (tmp_path / "scripts" / "mutations").mkdir(parents=True)
    (tmp_path / "code.py").write_text("def few(x):\n    return x < 3\n\n\ndef many(x):\n    return x > 9\n")
    (tmp_path / "test_code.py").write_text("from code import few\n\n\ndef test_few():\n    assert few(2) and not few(3)\n")
    (tmp_path / ".gitignore").write_text(".pytest_cache/\n")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)

    def write(*entries):
        (tmp_path / "scripts" / "mutations" / "list.yaml").write_text(yaml.safe_dump([{**ENTRY, **entry} for entry in entries]))
        return tmp_path

    return write


SURVIVOR = {"name": "more", "find": "x > 9", "replace": "x > 8"}


def test_survivors_are_told_and_are_a_failure(runner, checkout, capsys):
    root = checkout({}, SURVIVOR)
    before = (root / "code.py").read_text()
    assert runner.main(["--jobs", "1"], root) == 1
    said = capsys.readouterr().out
    assert "SURVIVED: more\n" in said and "1 of 2 changes were caught" in said
    assert (root / "code.py").read_text() == before
    assert runner.main(["--jobs", "1", "--only", "less"], root) == 0
    assert "1 of 1" in capsys.readouterr().out


def test_a_change_that_ends_the_tests_early_or_never_is_not_caught(runner, checkout, capsys):
    root = checkout({"replace": "sleep(60)", "name": "slow"})
    (root / "code.py").write_text("from time import sleep\n\n\ndef few(x):\n    return x < 3\n")
    assert runner.main(["--jobs", "1", "--limit", "2"], root) == 1
    assert "TOO LONG: slow" in capsys.readouterr().out
    root = checkout({"find": "def few", "replace": "def lots"})
    assert runner.main(["--jobs", "1"], root) == 2
    assert "DID NOT RUN: less" in capsys.readouterr().out


def test_of_the_tests_only_some(runner, checkout, capsys):
    root = checkout({"only": "other"}, {"name": "first", "only": "few"})
    with (root / "test_code.py").open("a") as file:
        file.write("\n\ndef test_other():\n    assert few(1)\n")
    assert runner.main(["--jobs", "1"], root) == 1
    assert "SURVIVED: less\n" in capsys.readouterr().out


def test_tests_that_fail_anyway_catch_nothing(runner, checkout, capsys):
    root = checkout({})
    (root / "test_code.py").write_text("def test_few():\n    assert False\n")
    assert runner.main(["--jobs", "1"], root) == 2
    assert "tests fail without any change" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"find": "x < 4"}, "less: its text is 0 times in code.py, not once; say the line as it is now: 'x < 4'"),
        ({"find": "return"}, "less: its text is 2 times"),
        ({"replace": "x < 3"}, "less: it changes nothing"),
        ({"replace": "x <"}, "less: with its change code.py is no Python"),
        ({"file": "gone.py"}, "less: there is no gone.py"),
        ({"tests": ["test_gone.py"]}, "less: there is no test_gone.py"),
        ({"tests": ["test_code.py::test_gone"]}, "less: test_code.py has no test_gone"),
        ({"tests": []}, "less: it names no tests"),
        ({"why": "so"}, "entry 1 of list.yaml: it must have file, find, name, replace, tests, perhaps only"),
    ],
)
def test_entries_that_do_not_apply_are_errors(runner, checkout, capsys, entry, message):
    assert runner.main([], checkout(entry)) == 2
    assert message in capsys.readouterr().err


def test_names_are_told_apart(runner, checkout, capsys):
    assert runner.main([], checkout({}, {})) == 2
    assert "less: another entry has this name" in capsys.readouterr().err
    root = checkout({}, {**SURVIVOR, "name": "less-else"})
    assert runner.main(["--only", "nothing"], root) == 2
    assert "--only nothing: no name" in capsys.readouterr().err
    assert runner.main(["--only", "less", "--list"], root) == 0
    shown = capsys.readouterr().out
    assert "'x < 3' -> 'x < 2'" in shown and "less-else" not in shown
    assert runner.main(["--only", "else", "--list"], root) == 0
    assert "less-else" in capsys.readouterr().out
