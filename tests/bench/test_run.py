"""`samplewise bench run` and what follows it, with real processes on tiny workloads."""

import json
from dataclasses import replace

import pytest

from samplewise.bench import commands, environments, machine
from samplewise.bench.cases import Case, suite
from samplewise.bench.names import BASES, SAMPLED, Method
from samplewise.bench.peers.adapters import STEPS
from samplewise.bench.peers.registry import BY_METHOD
from samplewise.bench.records import read_rows
from samplewise.bench.runner import CaseRun, Settings
from samplewise.cli import main

METHODS = ("--methods", "auto", "gemm3")


def run(path, *more):
    return main(["bench", "run", "--suite", "quick", "--case", "quick-ragged", "--rounds", "2", "--busy",
                 "--output", str(path), *more])  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def code():
    """One name for the code, whatever is edited meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "code_state", lambda *given, real=machine.code_state: real(*given) if given else "code")
        yield


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    path = tmp_path_factory.mktemp("bench") / "rows.jsonl"
    assert run(path, *METHODS) == 0
    return path


def rows_of(case, methods, tmp_path, **settings):
    rows = []
    CaseRun(case, Settings(threads=1, rounds=1, **settings), "commit", tmp_path, rows.append, lambda text: None).run(methods)
    return {row["method"]: row for row in rows}


def test_a_run_writes_a_row_a_method_with_all_that_it_needs(measured):
    rows = {row["method"]: row for row in read_rows([measured])}
    assert set(rows) == {"auto", "gemm3"} and all(row["status"] == "ok" and row["busy"] for row in rows.values())
    auto = rows["auto"]
    assert auto["seconds"]["n"] == 2 and len(auto["times"]) == 3 and auto["ratio"]["median"] > 1
    assert auto["check"]["ok"] and auto["check"]["on"] == "all of it" and auto["check"]["gradient"] < 1e-4
    assert 0 < auto["memory"]["workspace"] < 64 << 20 and auto["memory"]["gradients"] > 0
    assert auto["ours"]["predicted_workspace"] > 0 and auto["ours"]["chosen"]
    assert auto["commit"] == "code" and auto["sizes"]["seed"] == 1 and auto["versions"]["torch"]
    assert auto["session"] == rows["gemm3"]["session"] and rows["gemm3"]["memory"] is None


def test_what_is_there_is_not_measured_again(measured, monkeypatch, capsys):
    monkeypatch.setattr(commands, "CaseRun", None)  # would fail if it were
    before = measured.read_text()
    assert run(measured, *METHODS) == 0
    assert measured.read_text() == before and "already" in capsys.readouterr().err
    assert run(measured, *METHODS, "--dry-run", "--fresh") == 0
    assert capsys.readouterr().out.strip() == "quick-ragged: auto gemm3"
    assert run(measured, "--methods", "auto", "tiled", "--dry-run") == 0
    assert capsys.readouterr().out.strip() == "quick-ragged: tiled"


def test_report_of_a_run(measured, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    page = tmp_path / "page.md"
    page.write_text("<!-- bench:quick-ragged -->\n<!-- /bench -->\n")
    assert main(["bench", "report", str(measured), "--output", str(tmp_path / "results"), "--insert", str(page)]) == 0
    assert "| auto † |" in page.read_text() and (tmp_path / "results" / "index.html").exists()
    page.write_text("<!-- bench:planted -->\n<!-- /bench -->\n")
    assert main(["bench", "report", str(measured), "--output", str(tmp_path / "results"), "--insert", str(page)]) == 1
    assert "no measurement for planted" in capsys.readouterr().err


def test_beside_other_work_rows_are_marked_and_measured_again(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(machine, "others_now", lambda: 1.5)
    monkeypatch.setattr(machine.Watch, "others", lambda self: 1.5)
    path = tmp_path / "rows.jsonl"
    command = ["bench", "run", "--suite", "quick", "--case", "quick-random", "--methods", "gemm3", "--rounds", "1",
               "--output", str(path)]  # fmt: skip
    assert main(command) == 0
    told = " ".join("".join(capsys.readouterr()).split())
    assert "1 cases, 1 methods, 1 rounds" in told and "other processes use 1.50 cores" in told
    assert [row["busy"] for row in map(json.loads, path.read_text().splitlines())] == [True]
    monkeypatch.setattr(machine.Watch, "others", lambda self: 0.0)
    assert main(command) == 0 and main(command) == 0
    assert [row["busy"] for row in map(json.loads, path.read_text().splitlines())] == [True, False]


def test_out_of_memory_is_a_result(tmp_path):
    case = Case("some", "random", 2, 200, 30, 1024, 32, measures=("memory",))
    row = rows_of(case, ["batched"], tmp_path, limit=8 << 20)["batched"]
    assert row["status"] == "out of memory" and row["memory"] is None and row["reason"]


def test_a_wrong_result_has_no_time(tmp_path, monkeypatch):
    case = replace(suite("quick")[1], measures=("time",))
    monkeypatch.setattr(CaseRun, "truth", lambda self, case: wrong_truth(tmp_path))
    row = rows_of(case, ["plain"], tmp_path)["plain"]
    assert row["status"] == "wrong" and row["seconds"] is None and row["times"] is None and not row["check"]["ok"]


def wrong_truth(directory):
    import torch

    case = suite("quick")[1]
    b, t, u, v, d = case.batch, case.frames, case.labels, case.classes, case.dim
    shapes = [(b, t, d), (b, u + 1, d), (v, d), (v,)]
    path = directory / "truth.pt"
    torch.save({"loss": torch.tensor(1.0).double(), "gradients": [torch.ones(s).double() for s in shapes]}, path)
    return path


@pytest.mark.parametrize("method", SAMPLED)
def test_a_sampled_loss_has_its_errors_shown_and_its_time_too(method, tmp_path):
    case = Case("sampled-tiny", "random", 2, 30, 6, 600, 16)
    row = rows_of(case, (method,), tmp_path)[method]
    assert row["status"] == "ok" and row["seconds"]["median"] > 0 and row["memory"]["workspace"] > 0
    assert row["check"]["loss"] > 1e-3, "a loss over 256 of 600 classes cannot be the full one"
    assert Method.parse(method).approximate and not row["ours"]


def test_a_peer_that_is_not_there_is_a_row(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(environments.importlib.util, "find_spec", lambda name: None)
    environments.locate.cache_clear()
    row = rows_of(suite("quick")[0], ["fast-rnnt"], tmp_path)["fast-rnnt"]
    environments.locate.cache_clear()
    assert row["status"] == "not installed" and "samplewise bench install fast-rnnt" in row["reason"]


@pytest.mark.slow
@pytest.mark.parametrize("method", BY_METHOD)
def test_peers_that_are_installed_pass_the_check(method, tmp_path):
    if isinstance(environments.place_of(method), str):
        pytest.skip(environments.place_of(method))
    row = rows_of(replace(suite("quick")[2], measures=("check",)), [method], tmp_path)[method]
    assert row["status"] == "ok", row["reason"]


def test_every_method_of_a_peer_has_its_adapter():
    assert set(BY_METHOD) == set(STEPS) and set(STEPS) < set(BASES)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--methods", "fastest"], "unknown method 'fastest'"),
        (["run", "--peers", "espresso"], "unknown peer 'espresso'"),
        (["run", "--case", "nothing"], "no case of table is nothing"),
        (["run", "--budget", "much"], "--budget is 'much'"),
        (["install", "espresso"], "unknown peer 'espresso'"),
        (["install", "k2"], "give --path DIRECTORY"),
        (["install", "k2", "--path", "/nowhere"], "/nowhere: no such directory"),
        (["report", "/nowhere.jsonl"], "/nowhere.jsonl: No such file"),
    ],
)
def test_mistakes_on_the_command_line_are_said(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["bench", *arguments]) == 1
    assert message in capsys.readouterr().err


def test_another_environment_takes_a_peer_by_its_path(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    package = tmp_path / "build" / "k2"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    assert main(["bench", "install", "k2", "--path", str(tmp_path / "build")]) == 0
    assert main(["bench", "peers"]) == 0
    environments.locate.cache_clear()
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "given by path" in lines["k2"] and "not installed" in lines["nemo"]


def test_the_code_that_is_measured_has_a_name(monkeypatch):
    def fake(command, **options):
        answer = {"rev-parse": "abc123abc123\n", "diff": "- old\n+ new\n"}[command[3]]
        return type("Done", (), {"stdout": answer})

    assert machine.code_state(fake).startswith("abc123abc123+") and len(machine.code_state(fake)) == 21

    def none(command, **options):
        raise OSError

    assert machine.code_state(none) == f"version {machine.version_of('samplewise')}"


def test_dry_run_needs_no_quiet_machine_and_peers_can_be_left_out(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "run", "--case", "characters", "--dry-run", "--peers"]) == 0
    line = capsys.readouterr().out
    assert "gemm3" in line and not any(method in line.split() for method in BY_METHOD)
    assert main(["bench", "run", "--case", "characters", "--dry-run", "--peers", "fast-rnnt"]) == 0
    assert "fast-rnnt-pruned" in capsys.readouterr().out
    assert json.loads(json.dumps(suite("table")[0].sizes()))["seed"] == 1
