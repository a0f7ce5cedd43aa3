"""`results.json`: what a run gave, from what, with what, in numbers that a document can be made of."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("samplewise", "torch", "transformers", "accelerate", "jiwer", "numpy", "numba", "soundfile", "soxr")
RESULTS_FILE = "results.json"


def versions() -> dict[str, str]:
    """Of Python and of the packages that take part."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def commit() -> str | None:
    """The commit of the checkout that this package runs from, with -dirty if files differ; None outside of one."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def command_line() -> str:
    """The command as it can be typed again."""
    return shlex.join(["samplewise", *sys.argv[1:]])


def machine() -> dict[str, Any]:
    """What the run had to work with."""
    found: dict[str, Any] = {
        "system": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
    return found
