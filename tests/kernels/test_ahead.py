"""Triton's kernels compile, down to machine code, for GPUs that are not there."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

ROOT = Path(__file__).resolve().parents[2]
KERNELS = {
    "_locate": 1,
    "_joint": 10,
    "_add_runs": 2 * 10,
    "_emission": 6,
    "_emission_gradient": 6,
    "_bounds": 10,
    "_fused_emission": 8,
    "_forward": 2 * 4,
    "_backward": 2 * 4,
    "_below": 2 * 2,
    "_mark": 2 * 2,
}  # and the least number of variants: dtypes, activations, sizes


def compiled(*target: str, tmp_path: Path, **changes: str) -> subprocess.CompletedProcess:
    """Runs `tests.kernels.ahead` without the interpreter, and with an empty cache."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), **changes}
    command = [sys.executable, "-m", "tests.kernels.ahead", *target]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("target", [("cuda", "90", "32"), ("hip", "gfx942", "64")], ids=" ".join)
def test_every_kernel_compiles(target, tmp_path):
    done = compiled(*target, tmp_path=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line.split() for line in done.stdout.splitlines()]
    assert all(int(size) > 1000 for _, size in lines)
    found = Counter(name for name, _ in lines)
    assert all(found[name] >= (least if target[0] == "cuda" else 1) for name, least in KERNELS.items()), found
