"""The machine that measures: what it is, whether others use it, and which code is measured."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

SOURCES = Path(__file__).resolve().parents[1]
MOST_BY_OTHERS = 0.2  # cores that other processes may use


class Watch:
    """How many cores other processes than this one and its children used since the watch started."""

    def __init__(self) -> None:
        self.start, self.busy, self.own, self.stolen = time.monotonic(), busy_seconds(), own_seconds(), stolen_seconds()

    def others(self) -> float:
        wall = max(time.monotonic() - self.start, 1e-9)
        return max(0.0, (busy_seconds() - self.busy - (own_seconds() - self.own)) / wall)

    def steal(self) -> float:
        """Cores that the hypervisor gave to someone else."""
        return (stolen_seconds() - self.stolen) / max(time.monotonic() - self.start, 1e-9)


def busy_seconds() -> float:
    times = psutil.cpu_times()
    return sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq"))


def stolen_seconds() -> float:
    return getattr(psutil.cpu_times(), "steal", 0.0)


def own_seconds() -> float:
    """Processor seconds of this process, its living descendants, and its children that have ended."""
    total = 0.0
    own = psutil.Process()
    for process in (own, *own.children(recursive=True)):
        try:
            total += sum(process.cpu_times()[:4])  # user, system, and both of children that have ended
        except psutil.Error:
            continue
    return total


def others_now(seconds: float = 1.0) -> float:
    watch = Watch()
    time.sleep(seconds)
    return watch.others()


def load_average() -> list[float]:
    return [round(value, 2) for value in psutil.getloadavg()]


def describe_machine() -> dict[str, Any]:
    return {
        "cpu": cpu_model(),
        "cores": psutil.cpu_count(logical=False) or psutil.cpu_count(),
        "memory": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.release()}",
    }


def cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def default_threads() -> int:
    cores = psutil.cpu_count(logical=False) or 1
    affinity = getattr(os, "sched_getaffinity", None)
    return min(cores, len(affinity(0))) if affinity else cores


def versions() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        **{name: version_of(name) for name in ("samplewise", "torch", "numpy", "numba")},
    }


def version_of(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def code_state(run: Callable[..., Any] = subprocess.run) -> str:
    """The commit that is measured, with a hash of what the working tree changes in the library; the version outside git."""

    def git(*arguments: str) -> str:
        done = run(["git", "-C", str(SOURCES), *arguments], capture_output=True, text=True, check=True)
        return done.stdout

    try:
        commit = git("rev-parse", "--short=12", "HEAD").strip()
        changes = git("diff", "HEAD", "--", ".", ":(exclude)bench", ":(exclude)asr", ":(exclude)cli.py")
    except (OSError, subprocess.CalledProcessError):
        return f"version {version_of('samplewise')}"
    return commit + (f"+{hashlib.sha256(changes.encode()).hexdigest()[:8]}" if changes else "")
