"""Rows as a run would have written them."""

from samplewise.bench.cases import FROM_FILES, SUITES, Case, suite
from samplewise.bench.figures import pairwise, summary

CASES = {case.name: case for name in SUITES if name not in FROM_FILES for case in suite(name)}
YARDSTICK_TIMES = [0.5, 0.2, 0.25, 0.3]


def row(case, method, status="ok", times=(3.0, 1.0, 2.0, 3.0), workspace=1 << 20, loss=1e-8, gradient=1e-6, **more):
    case = case if isinstance(case, Case) else CASES[case]
    ok = status == "ok"
    return {
        "schema": 1, "case": case.name, "method": method, "status": status, "reason": "" if ok else "for some reason",
        "seconds": summary(times) if ok and times else None, "times": list(times) if ok and times else None,
        "ratio": pairwise(times, YARDSTICK_TIMES) if ok and times else None,
        "memory": {"workspace": workspace} if ok and workspace else None,
        "check": {"loss": loss, "gradient": gradient}, "ours": None, "sizes": case.sizes(), "nodes": case.nodes,
        "commit": "0123456789ab", "session": "one", "threads": 2, "budget": None, "limit": 1 << 30,
        "versions": {"python": "3.11", "torch": "2.13.0", "numba": "0.68.1", "samplewise": "0.1.0"},
        "machine": {"cpu": "some processor", "cores": 2}, "load": [0.0, 0.0, 0.0], "others": 0.0, "busy": False,
        "when": "2026-11-29T12:00:00Z", **more,
    }  # fmt: skip
