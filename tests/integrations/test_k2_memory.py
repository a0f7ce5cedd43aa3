"""The simple loss, where scores are large, too, and the exact loss of a Joiner never hold an array of all frames, symbols and
classes: peaks of a fresh process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOUR_D = 4 * 4 * 100 * 41 * 800  # bytes of the array that is not there, 50 MiB
SCRIPT = """
import gc, json
import torch
from samplewise.integrations import k2
from samplewise.integrations.icefall import joiner_loss
from tests.integrations.test_icefall import Joiner

def high_water():
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))

torch.set_num_threads(1)
symbols, rows = torch.randint(1, 800, (4, 40)), [torch.randn(4, n, 800) for n in (41, 100)]
joiner, encoder_out, decoder_out = Joiner(torch.nn.Linear(8, 800)), torch.randn(4, 100, 6), torch.randn(4, 41, 5)

def simple(scale):
    lm, am = ((x * scale).requires_grad_() for x in rows)
    k2.rnnt_loss_smoothed(lm, am, symbols, 0, 0.25, 0.0, return_grad=True)[0].backward()

def dense():
    logits = joiner(encoder_out[:, :, None], decoder_out[:, None])
    k2.rnnt_loss(logits, symbols, 0).backward()

steps = {
    "simple": lambda: simple(1.0), "large": lambda: simple(300.0), "dense": dense,
    "joiner": lambda: joiner_loss(joiner, encoder_out, decoder_out, symbols, memory_budget="8MiB").backward(),
}
peaks = {}
for name, step in steps.items():
    step()
    gc.collect()
    open("/proc/self/clear_refs", "w").write("5")
    before = high_water()
    step()
    peaks[name] = high_water() - before
print(json.dumps(peaks))
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peaks are read from Linux's /proc")
def test_no_array_of_all_frames_symbols_and_classes():
    path = os.pathsep.join((str(ROOT), str(ROOT / "src")))
    environment = {**os.environ, "PYTHONPATH": path, "MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_MMAP_THRESHOLD_": "65536"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    peaks = json.loads(done.stdout)
    assert peaks["dense"] > FOUR_D, "the measure sees it"
    assert max(peaks[name] for name in ("simple", "large", "joiner")) < FOUR_D / 2, peaks
