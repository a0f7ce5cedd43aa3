"""Test the drop-in modules against the real libraries, each in an environment of its own, and say why others are left out.

Usage: python scripts/test_peers.py [PEER ...]

A peer is one that has tests/peers/test_PEER.py; its environment is that of `samplewise bench install PEER`, made where there is
none, with what it lacks taken from the present one. transformers is tested in the present environment. The status is 1 if a
test fails or none runs, and if a peer could not be installed, other than one that has to be built from source here.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from samplewise.bench.environments import install, locate
from samplewise.bench.errors import BenchError
from samplewise.bench.peers.registry import PEERS

ROOT = Path(__file__).resolve().parents[1]
HERE = {"transformers": "tests/integrations/test_transformers*.py"}
# Why a library is not tested by itself; its recorded numbers are, in tests/integrations.
LEFT_OUT = {
    "torchaudio": "PyPI's wheel needs CUDA libraries: beside a CPU build of torch its import fails",
    "speechbrain": "it imports torchaudio, whose wheel from PyPI needs CUDA libraries",
    "k2": "no wheel on PyPI for a present Python and torch",
    "espnet": "beside torch 2.13 pip goes back to a version of 2024 that wants numpy 1.23; its loss needs warp-transducer",
    "warp_rnnt": "a source build that needs nvcc",
    "warprnnt_pytorch": "warp-transducer is not on PyPI: a source build",
    "funasr": "its transducer loss is warp_rnnt",
}


class Row(NamedTuple):
    peer: str
    result: str
    what: str
    failed: bool = False


def with_tests() -> list[str]:
    files = (ROOT / "tests" / "peers").glob("test_*.py")
    return sorted(path.stem.removeprefix("test_").replace("_", "-") for path in files)


def test(peer: str, python: str, paths: list[Path], versions: dict[str, str]) -> Row:
    """Run files of tests by an interpreter. A peer's warnings are its own."""
    names = [str(path.relative_to(ROOT)) for path in paths]
    print(f"\n== {peer}: {' '.join(names)}", flush=True)
    options = ["-m", "pytest", "-o", "filterwarnings=", "-p", "no:cacheprovider", "-rs", *names]
    code = subprocess.run([python, *options], cwd=ROOT).returncode
    what = ", ".join(f"{name} {version}" for name, version in versions.items())
    return Row(peer, "passed" if code == 0 else f"FAILED (exit status {code})", what, code != 0)


def test_here(peer: str, pattern: str) -> Row:
    module = importlib.import_module(peer)
    return test(peer, sys.executable, sorted(ROOT.glob(pattern)), {peer: module.__version__})


def test_there(peer: str, named: bool) -> Row:
    """Install a peer if it is not yet, and run its tests. `named`: it was asked for by name."""
    if peer not in PEERS:
        return Row(peer, "FAILED", f"tests/peers/test_{peer}.py is of no known peer: {', '.join(PEERS)}", True)
    found = locate(PEERS[peer])
    if isinstance(found, str):
        print(f"\n== {peer}: {found}", flush=True)
        try:
            install(peer, None, print)
        except BenchError as error:
            return Row(peer, "not installed", str(error), failed=not PEERS[peer].build or named)
        found = locate(PEERS[peer])
    assert not isinstance(found, str), found  # `install` has seen that it can be imported
    return test(peer, found.python, [ROOT / "tests" / "peers" / f"test_{peer.replace('-', '_')}.py"], found.versions)


def left_out(peer: str, reason: str) -> Row:
    """Why, and what an import says in the present environment."""
    done = subprocess.run([sys.executable, "-c", f"import {peer}"], capture_output=True, text=True)
    if done.returncode == 0:
        return Row(peer, "not tested", f"it can be imported here, but has no tests of its own ({reason})")
    last = (done.stderr.strip().splitlines() or ["no message"])[-1]
    return Row(peer, "not tested", f"{reason}; import here: {last}")


def table(rows: list[Row]) -> str:
    lines = ["| peer | result | version, or why not |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {row.peer} | {row.result} | {row.what} |" for row in rows)])


def main(wanted: list[str]) -> int:
    known = [*HERE, *with_tests()]
    unknown = [peer for peer in wanted if peer not in known]
    if unknown:
        raise SystemExit(f"no tests of {', '.join(unknown)}; there are those of {', '.join(known)}")
    chosen = wanted or known
    rows = [test_here(peer, pattern) for peer, pattern in HERE.items() if peer in chosen and list(ROOT.glob(pattern))]
    rows += [test_there(peer, peer in wanted) for peer in with_tests() if peer in chosen]
    if not wanted:
        rows += [left_out(peer, reason) for peer, reason in LEFT_OUT.items()]
    print(f"\n{table(rows)}")
    return int(any(row.failed for row in rows))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
