"""The script that checks a GPU runs to its end without one, on small shapes in the interpreter; and its checks can fail."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from samplewise.bench.gpu import advice

pytest.importorskip("triton", reason="Triton is not installed")

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "gpu_check.py"


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU it checks that one")
def test_it_runs_to_its_end(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, str(SCRIPT), "--tiny", "--out", str(tmp_path / "gpu.json")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert found["errors"] == [] and found["about"]["interpreter"] is True
    assert len(found["checks"]) > 150 and all(check["passed"] for check in found["checks"])
    checked = {check["name"].split(",")[0] for check in found["checks"]}
    assert {
        "emission",
        "emission_gradient",
        "joint",
        "joint_gradient",
        "lattice",
        "tiled",
        "guided",
        "rnnt_loss",
        "bounds",
    } <= checked
    results = {row["method"]: row["result"] for row in found["measurements"]}
    assert results["auto"] == results["plain"] == results["products"] == "ok"
    assert found["advice"]["auto"] in ("tiled", "guided") and set(found["advice"]["ratios"]) == {
        "tiny, float32",
        "tiny, planted, float32",
    }


@pytest.mark.parametrize(
    "ratios, auto",
    [((0.3, 1.02), "guided"), ((0.3, 1.1), "tiled"), ((0.97, 1.0), "tiled"), ((), None)],
)
def test_what_auto_should_take(ratios, auto):
    """ "guided" if it wins somewhere and loses nowhere; nothing is said of cases that only one of the two has."""
    rows = [{"name": "alone", "dtype": "float32", "method": "guided", "result": "ok", "seconds": 9.0}]
    for i, ratio in enumerate(ratios):
        both = {"name": f"case {i}", "dtype": "float32", "result": "ok"}
        rows += [{**both, "method": "tiled", "seconds": 2.0}, {**both, "method": "guided", "seconds": 2.0 * ratio}]
    rows.append({"name": "case 0", "dtype": "bfloat16", "method": "tiled", "result": "out of memory"})
    found = advice(rows)
    assert found["auto"] == auto and len(found["ratios"]) == len(ratios)


@pytest.mark.parametrize("got", [[1.0, 2.1], [1.0, float("nan")], [1.0, float("inf")], [1.0]])
def test_a_wrong_number_is_a_failure(got, monkeypatch, tmp_path, capsys):
    monkeypatch.syspath_prepend(SCRIPT.parent)  # as for a script that is run
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--tiny", "--device", "cpu"])
    report = runpy.run_path(str(SCRIPT))["Report"](tmp_path / "out.json")
    right = torch.tensor([1.0, 2.0])
    report.compare("right", right, right, 0.0)
    assert report.failed == 0
    report.compare("wrong", torch.tensor(got), right, 0.01)
    assert report.failed == 1 and "FAILED wrong" in capsys.readouterr().out
    assert [check["passed"] for check in json.loads((tmp_path / "out.json").read_text())["checks"]] == [True, False]


def test_without_a_gpu_it_says_how(monkeypatch):
    if torch.cuda.is_available():
        pytest.skip("there is one")
    monkeypatch.syspath_prepend(SCRIPT.parent)
    monkeypatch.setattr(sys, "argv", [str(SCRIPT)])
    with pytest.raises(SystemExit, match="there is no GPU here; --tiny"):
        runpy.run_path(str(SCRIPT), run_name="__main__")
