"""Memory is measured as memory: the peak of a fresh process, beyond inputs and gradients, stays within the budget."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import samplewise
from samplewise import TransducerError
from tests.problems import FLOATS, make, ours, truth

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
SLACK = 4 * MIB  # pages, allocator, threads

# Peak resident memory of calls, each above what the process had before it; a first call has compiled
# what it needs.
SCRIPT = """
import gc, json, sys
import torch
from tests.problems import FLOATS, make, ours

def high_water():
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))

torch.set_num_threads(1)
for settings in json.loads(sys.argv[1]):
    dtype = getattr(torch, settings.pop("dtype", "float32"))
    batch, frames, labels, vocab, dim = settings.pop("sizes", (5, 100, 30, 1000, 64))
    problem = make((frames,) * batch, (labels,) * batch, vocab, dim, dtype=dtype)
    problem.targets.clamp_(max=vocab - 10)  # the last rows may be those of durations
    ours(problem, **settings)
    gc.collect()
    open("/proc/self/clear_refs", "w").write("5")
    before = high_water()
    ours(problem, **settings)
    print(high_water() - before)
"""
GRADIENTS = 4 * (5 * 100 * 64 + 5 * 31 * 64 + 1000 * 64 + 1000)  # bytes in float32, and just as many for copies of the inputs
LOGITS = 4 * 5 * 100 * 31 * 1000

WITHIN = [
    {"method": method, "memory_budget": budget * MIB, "reduction": reduction}
    for method, budget in [("tiled", 10), ("tiled", 30), ("guided", 12), ("samplewise", 30), ("auto", 20)]
    for reduction in ("none", "sum")
]
WITHIN += [{"method": "tiled", "memory_budget": 10 * MIB, "reduction": "sum", "dtype": "bfloat16"}]
WITHIN += [
    {"method": method, "memory_budget": budget * MIB, "reduction": "sum", "topology": topology, "dropout": 0.2}
    for topology in ("tdt", "hat")
    for method, budget in [("tiled", 10), ("guided", 14), ("samplewise", 30)]
]
# Few labels and many frames: exponentials of the encodings would take 32 MiB, and the nodes of all 1.
SHORT = [
    {"method": method, "memory_budget": 13 * MIB, "reduction": "sum", "sizes": (32, 1000, 1, 40, 256)}
    for method in ("tiled", "samplewise", "guided")
]
SHORT_GRADIENTS = 4 * (32 * 1000 * 256 + 32 * 2 * 256 + 40 * 256 + 40)
BATCHED = {"method": "batched", "reduction": "sum"}


@pytest.fixture(scope="module")
def peaks() -> dict[str, int]:
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("peaks are read from Linux's /proc")
    settings = [*WITHIN, *SHORT, BATCHED]
    # Freed blocks go back to the system at once, or the next peak would hide in them.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
    command = [sys.executable, "-c", SCRIPT, json.dumps(settings)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(zip(map(json.dumps, settings), map(int, done.stdout.split()), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("settings", WITHIN, ids=lambda s: "-".join(map(str, s.values())))
def test_peak_stays_within_the_budget(settings, peaks):
    peak = peaks[json.dumps(settings)]
    assert peak <= settings["memory_budget"] + 2 * GRADIENTS + SLACK, f"{peak / MIB:.1f} MiB"


@pytest.mark.slow
@pytest.mark.parametrize("settings", SHORT, ids=lambda s: s["method"])
def test_exponentials_count(settings, peaks):
    peak = peaks[json.dumps(settings)]
    assert peak <= settings["memory_budget"] + 2 * SHORT_GRADIENTS + SLACK, f"{peak / MIB:.1f} MiB"


@pytest.mark.slow
def test_the_measurement_sees_the_logits(peaks):
    """The batched method does hold the logits, and the measurement shows it; all of the budgets are less than half of them."""
    assert peaks[json.dumps(BATCHED)] > LOGITS


@pytest.mark.parametrize("method", ["batched", "samplewise", "tiled", "guided", "auto"])
def test_a_refused_budget_names_the_least_that_works(method):
    problem = make((40, 9, 30), (12, 4, 8), vocab=60, dim=16, dtype=torch.float64)
    with pytest.raises(TransducerError, match="memory_budget is 1000 bytes") as refusal:
        ours(problem, method=method, memory_budget=1000)
    message = str(refusal.value)
    assert "utterance is 0, of 40 frames and 12 labels" in message
    least = int(message.split("needs at least ")[1].split()[0])
    value, gradients = ours(problem, method=method, memory_budget=least)
    right, right_gradients = truth(problem)
    torch.testing.assert_close(value, right)
    for name in FLOATS:
        torch.testing.assert_close(gradients[name], right_gradients[name])
    with pytest.raises(TransducerError, match=f"needs at least {least} "):
        ours(problem, method=method, memory_budget=least - 1)


@pytest.mark.parametrize("method", ["samplewise", "tiled", "guided"])
def test_any_budget_gives_the_same_loss(method):
    problem = make((40, 9, 30, 1, 25), (12, 4, 8, 3, 0), vocab=60, dim=16, dtype=torch.float64)
    right, right_gradients = truth(problem, reduction="none")
    for budget in ("2400 KB", "2400kib", "2.5MiB", 3 * MIB, "1.5GB", "1 GiB"):
        value, gradients = ours(problem, method=method, memory_budget=budget, reduction="none", tolerance=0.0)
        torch.testing.assert_close(value, right, rtol=1e-12, atol=0)
        for name in FLOATS:
            torch.testing.assert_close(gradients[name], right_gradients[name], rtol=1e-9, atol=1e-11)


def test_no_gradient_needs_less():
    """Evaluation must fit where training did."""
    problem = make((40, 30), (12, 8), vocab=60, dim=16)
    with pytest.raises(TransducerError) as refusal:
        ours(problem, method="tiled", memory_budget=1)
    least = int(str(refusal.value).split("needs at least ")[1].split()[0])
    with torch.no_grad():
        assert samplewise.transducer_loss(**problem.inputs, method="tiled", memory_budget=least).isfinite()
