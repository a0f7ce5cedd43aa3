"""Which kernels run, and that it does not matter: numba where it can be imported, plain PyTorch elsewhere, the same numbers."""

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from samplewise.kernels import backend, eager
from samplewise.ops import transducer
from tests.conftest import BACKENDS
from tests.problems import FLOATS, make, ours, upstream

ROOT = Path(__file__).resolve().parents[2]

WITHOUT_NUMBA = """
import json, sys, warnings

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "numba":
            raise ImportError("numba is blocked")

sys.meta_path.insert(0, Blocked())
from tests.problems import make, ours, upstream
problem = make((9, 4, 1), (3, 0, 2))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    results = [ours(problem, reduction="none", upstream=upstream(problem), method=method)
               for method in ("batched", "samplewise", "tiled", "guided")]
assert "numba" not in sys.modules
messages = [f"{w.category.__name__}: {w.message}" for w in caught if "samplewise" in str(w.message)]
print(json.dumps([messages, [[value.tolist(), {n: g.tolist() for n, g in grads.items()}] for value, grads in results]]))
"""


def test_without_numba():
    """The same numbers, and one warning that says why it is slow."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_NUMBA], cwd=ROOT, env={**os.environ, "PYTHONWARNINGS": "default"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    messages, results = json.loads(done.stdout)
    assert len(messages) == 1 and "RuntimeWarning" in messages[0] and "numba is blocked" in messages[0]
    problem = make((9, 4, 1), (3, 0, 2))
    for method, (value, gradients) in zip(("batched", "samplewise", "tiled", "guided"), results, strict=True):
        right, right_gradients = ours(problem, reduction="none", upstream=upstream(problem), method=method)
        torch.testing.assert_close(torch.tensor(value), right, rtol=1e-5, atol=0)
        for name in FLOATS:
            torch.testing.assert_close(torch.tensor(gradients[name]), right_gradients[name], rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("method", ["batched", "samplewise", "tiled", "guided"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("activation", ["tanh", "relu", "gelu", "silu", "sigmoid", "identity"])
def test_the_whole_loss_on_plain_pytorch(method, dtype, activation, monkeypatch):
    problem = make((9, 4, 1), (3, 0, 2), vocab=40, dtype=dtype)
    options = {"reduction": "none", "upstream": upstream(problem), "method": method, "activation": activation, "tolerance": 0.0}
    right, right_gradients = ours(problem, **options)
    monkeypatch.setattr(transducer, "backend_for", lambda device: eager)
    value, gradients = ours(problem, **options)
    close = {"rtol": 1e-10, "atol": 1e-10} if dtype == torch.float64 else {"rtol": 0.02, "atol": 0.05}
    torch.testing.assert_close(value, right, **close)
    for name in FLOATS:
        torch.testing.assert_close(gradients[name], right_gradients[name], **close)


def test_names_and_arguments_are_the_same():
    """One call serves all backends."""
    import importlib

    for name in eager.__all__:
        signatures = {
            str(inspect.signature(getattr(importlib.import_module(f"samplewise.kernels.{b}"), name))) for b in BACKENDS
        }
        assert len(signatures) == 1, f"{name}: {signatures}"


def test_choice():
    assert backend.backend_for(torch.device("meta")) is eager
    if "numba" in BACKENDS:
        assert backend.backend_for(torch.device("cpu")).__name__ == "samplewise.kernels.numba"
