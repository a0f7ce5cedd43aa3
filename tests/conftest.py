"""What every test shares: fresh kernels whenever their sources change, the backends at hand, a reproducible hypothesis."""

import importlib
import importlib.util
import os
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent

# The tests' compiled kernels are kept apart from those in use. Set before numba is imported.
os.environ["NUMBA_CACHE_DIR"] = str(ROOT / ".pytest_cache" / "numba")

# HYPOTHESIS_PROFILE=fuzz looks for new examples; the default tries the same ones every time.
settings.register_profile("default", deadline=None, derandomize=True, database=None)
settings.register_profile("fuzz", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# Triton's kernels run in its interpreter, which must be asked for before they are imported.
os.environ.setdefault("TRITON_INTERPRET", "1")

COMPILERS = {"eager": "torch", "numba": "numba", "triton": "triton"}
BACKENDS = [name for name, compiler in COMPILERS.items() if importlib.util.find_spec(compiler)]


def quicken(interpreter) -> None:
    """Triton's interpreter prepares its language anew at every call of a helper, and takes its time for it: once is enough."""
    prepared = set()

    def call(function, *arguments, **named):
        module = function.fn.__module__
        if module.startswith("triton.") and module not in prepared:  # a kernel's own module is prepared as it is launched
            interpreter._patch_lang(function.fn)
            prepared.add(module)
        return function.rewrite()(*arguments, **named)

    interpreter.InterpretedFunction.__call__ = call


if "triton" in BACKENDS:
    quicken(importlib.import_module("triton.runtime.interpreter"))


@pytest.fixture(params=BACKENDS)
def kernels(request):
    """Each module of kernels in turn: one test serves them all."""
    return importlib.import_module(f"samplewise.kernels.{request.param}")


@pytest.fixture(autouse=True)
def same_start():
    """Every test starts from the same random numbers, whichever ran before it, and on one thread: the problems are tiny, and
    threads that wait for each other on a busy machine take most of the time. Tests of threads ask for more."""
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)


def pytest_report_header():
    missing = [f"{name} (not installed)" for name in COMPILERS if name not in BACKENDS]
    return "samplewise kernels: " + ", ".join(BACKENDS + missing)
