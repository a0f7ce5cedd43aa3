"""Which kernels serve a device: numba for the CPU, Triton for CUDA and ROCm, plain PyTorch elsewhere and where these fail."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, cast

import torch

from samplewise.errors import TransducerError
from samplewise.kernels.protocol import Kernels, WithExponentials, WithIntervals

if TYPE_CHECKING:  # mypy compares their signatures
    from samplewise.kernels import eager, numba, triton

    EVERY: tuple[Kernels, ...] = (eager, numba, triton)
    EXPONENTIALS: WithExponentials = numba
    INTERVALS: WithIntervals = numba

BACKENDS = {"cpu": "numba", "cuda": "triton"}  # PyTorch calls ROCm "cuda", too
FUSED = os.environ.get("SAMPLEWISE_FUSED_EMISSION") == "1"  # off until it has been measured to win
_forced: list[str] = []
_given_up: set[str] = set()
_lock = threading.RLock()
_forked = False


def backend_for(device: torch.device) -> Kernels:
    """The module of kernels for tensors on `device`. A compiler that is missing or broken is a warning, once, and the same
    numbers.

    Raises:
        TransducerError: this process was forked from one whose CPU kernels had started threads that do not survive it.
    """
    if _forced:
        return _module(_forced[-1])
    if _forked and device.type == "cpu":
        _check_threads()
    with _lock:
        return _working(BACKENDS.get(device.type, "eager"), device)


def _after_fork() -> None:
    """In a forked child: kernels that the parent had loaded have no threads here, and their locks may be held by nobody."""
    global _forked, _lock
    _forked, _lock = "samplewise.kernels.numba" in sys.modules, threading.RLock()


def _check_threads() -> None:
    if sys.modules["numba"].threading_layer() == "omp" and sys.platform == "linux":
        raise TransducerError(
            "this process was forked after its parent had used the CPU kernels, whose OpenMP threads do not survive a fork (the"
            " process would be killed): start it by 'spawn' or 'forkserver', or fork before the first loss is computed"
        )


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def fused_emission_of(kernels: Kernels, dtype: torch.dtype) -> Callable[..., None] | None:
    """The kernel that makes emissions without joint encodings and logits in memory, where it is asked for and there is one."""
    return getattr(kernels, "fused_emission", None) if FUSED and dtype != torch.float64 else None


def exponentials_of(kernels: Kernels) -> Callable[..., tuple[torch.Tensor, torch.Tensor] | None] | None:
    """The kernel that makes exponentials of the encodings once a row: a CPU's alone, for on a GPU a tanh costs next to nothing,
    and the host would have to wait to see whether they serve."""
    return getattr(kernels, "exponentials", None)


@contextlib.contextmanager
def use(name: str) -> Iterator[Kernels]:
    """Let "eager", "numba" or "triton" serve every device meanwhile, in all threads: for tests and measurements."""
    _forced.append(name)
    try:
        yield _module(name)
    finally:
        _forced.remove(name)


def has_intervals(kernels: Kernels) -> bool:
    """Whether they are `WithIntervals`: a CPU's alone."""
    return hasattr(kernels, "sweep")


def _module(name: str) -> Kernels:
    return cast(Kernels, importlib.import_module(f"samplewise.kernels.{name}"))


@functools.cache
def _working(name: str, device: torch.device) -> Kernels:
    try:
        module = _module(name)
        if name == "triton":  # it imports without a driver or a C compiler, and fails where the first kernel starts
            importlib.import_module("samplewise.kernels.triton.probe").check(device)
        return module
    except Exception as error:
        if name == "eager":
            raise
        _warn(name, f"{type(error).__name__}: {error}")
        return _module("eager")


def _warn(name: str, reason: str) -> None:
    """Once for each backend, however many devices there are."""
    if name not in _given_up:
        _given_up.add(name)
        message = f"samplewise runs on plain PyTorch kernels, which are slower: {name} cannot be used"
        warnings.warn(f"{message} ({reason.splitlines()[0]})", RuntimeWarning, stacklevel=4)
