"""Which kernels run, and that it does not matter: numba where it can be imported, plain PyTorch elsewhere, the same numbers."""

import importlib
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from samplewise.checks import ACTIVATIONS
from samplewise.kernels import backend, eager, protocol
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
@pytest.mark.parametrize("activation", ACTIVATIONS)
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


class Optional(protocol.WithExponentials, protocol.WithFusedEmission, protocol.WithIntervals):
    """All that a backend may have."""


def test_names_and_arguments_are_the_same():
    """One call serves all backends: they have what `protocol.Kernels` says, and of what some have, what it says of that."""
    everywhere, optional = (inspect.getmembers(part, inspect.isfunction) for part in (protocol.Kernels, Optional))
    needed = [name for name, _ in everywhere if not name.startswith("_")]
    assert sorted(eager.__all__) == needed
    for backend_name in BACKENDS:
        module = importlib.import_module(f"samplewise.kernels.{backend_name}")
        allowed = {name: function for name, function in optional if not name.startswith("_")}
        assert set(needed) <= set(module.__all__) <= set(allowed), backend_name
        for name in module.__all__:
            _, *parameters = inspect.signature(allowed[name]).parameters.values()  # without self
            found = inspect.signature(getattr(module, name))
            assert list(found.parameters.values()) == parameters, f"{backend_name}.{name}{found}"
            assert found.return_annotation == inspect.signature(allowed[name]).return_annotation


WITHOUT_TRITON = """
import sys, warnings
import torch
from samplewise.kernels import backend

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "triton":
            raise ImportError("triton is blocked")

sys.meta_path.insert(0, Blocked())
sys.modules.pop("triton", None)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    found = [backend.backend_for(torch.device("cuda", i)).__name__ for i in (0, 1, 0)]
print(*found, *(f"{w.category.__name__}: {w.message}" for w in caught if "samplewise" in str(w.message)), sep="\\n")
"""


def test_without_triton():
    """On a GPU machine that lacks Triton plain PyTorch runs, which has the same numbers; one warning says why it is slow."""
    done = subprocess.run([sys.executable, "-c", WITHOUT_TRITON], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *found, warning = done.stdout.splitlines()
    assert found == ["samplewise.kernels.eager"] * 3
    assert warning.startswith("RuntimeWarning: ") and "triton cannot be used (ImportError: triton is blocked)" in warning


@pytest.fixture
def fresh(monkeypatch):
    """As if no backend had been asked for yet."""
    backend._working.cache_clear()
    monkeypatch.setattr(backend, "_given_up", set())
    yield
    backend._working.cache_clear()


@pytest.mark.skipif("triton" not in BACKENDS, reason="Triton is not installed")
@pytest.mark.parametrize("fault", ["raises", "is wrong"])
def test_triton_that_is_broken(fault, monkeypatch, fresh):
    """A driver that is missing, or numbers that are wrong: the probe finds out before a loss does."""
    from samplewise.kernels.triton import probe

    def broken(*arguments):
        if fault == "raises":
            raise RuntimeError("0 active drivers ([])\nsecond line")

    monkeypatch.setattr(probe, "lattice", broken)
    monkeypatch.setattr(backend, "BACKENDS", {"cpu": "triton"})
    expected = "0 active drivers" if fault == "raises" else "wrong numbers from its kernels"
    with pytest.warns(RuntimeWarning, match=f"triton cannot be used .RuntimeError: {expected}") as caught:
        assert backend.backend_for(torch.device("cpu")) is eager
        assert backend.backend_for(torch.device("cpu")) is eager
    assert len(caught) == 1


@pytest.mark.skipif("triton" not in BACKENDS, reason="Triton is not installed")
def test_triton_that_works(monkeypatch, fresh):
    monkeypatch.setattr(backend, "BACKENDS", {"cpu": "triton"})
    assert backend.backend_for(torch.device("cpu")).__name__ == "samplewise.kernels.triton"


@pytest.mark.parametrize("name", BACKENDS)
def test_one_backend_for_everything(name):
    with backend.use(name) as module:
        assert backend.backend_for(torch.device("cpu")) is backend.backend_for(torch.device("meta")) is module
        with backend.use("eager"):
            assert backend.backend_for(torch.device("cpu")) is eager
        assert backend.backend_for(torch.device("cpu")) is module
    assert backend.backend_for(torch.device("meta")) is eager


@pytest.mark.skipif("triton" not in BACKENDS, reason="Triton is not installed")
def test_fused_emission_is_for_those_who_ask(monkeypatch):
    kernels = importlib.import_module("samplewise.kernels.triton")
    assert backend.fused_emission_of(kernels, torch.float32) is None
    monkeypatch.setattr(backend, "FUSED", True)
    assert backend.fused_emission_of(kernels, torch.float32) is kernels.fused_emission
    assert backend.fused_emission_of(kernels, torch.float64) is None and backend.fused_emission_of(eager, torch.float32) is None


def test_choice():
    assert backend.backend_for(torch.device("meta")) is eager
    if "numba" in BACKENDS:
        assert backend.backend_for(torch.device("cpu")).__name__ == "samplewise.kernels.numba"


FORKED = """
import json, multiprocessing, sys
import torch
from samplewise.kernels import backend
from tests.problems import make, ours

def child(queue):
    try:
        if len(sys.argv) > 1:
            ours(make((4, 2), (2, 1), vocab=5))
        queue.put(backend.backend_for(torch.device("cpu")).__name__)
    except Exception as error:
        queue.put(f"{type(error).__name__}: {error}")

if len(sys.argv) > 1:
    backend.backend_for(torch.device("cpu"))
context = multiprocessing.get_context("fork")
queue = context.SimpleQueue()
process = context.Process(target=child, args=(queue,))
process.start()
found = queue.get()
process.join(60)
print(json.dumps([found, process.exitcode]))
"""


@pytest.mark.skipif(sys.platform != "linux" or "numba" not in BACKENDS, reason="OpenMP of GNU, which a fork breaks")
@pytest.mark.parametrize("used", [True, False])
def test_a_forked_child(used):
    """After its parent has used the kernels a child is told why it cannot, instead of being killed; before, it can."""
    command = [sys.executable, "-c", FORKED, *(["used"] if used else [])]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    message, code = json.loads(run.stdout.splitlines()[-1])
    assert code == 0
    if used:
        assert message.startswith("TransducerError: this process was forked") and "spawn" in message
    else:
        assert message == "samplewise.kernels.numba"
