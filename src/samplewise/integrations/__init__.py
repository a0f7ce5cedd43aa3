"""Losses, joints and patches under the names and arguments of the tools that people train with: one module for each.

A module imports its tool only where it needs it, so all of them can be imported where none of the tools is installed. What
changes in numbers and memory is said in docs/migrate.md.
"""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType


def __getattr__(name: str) -> ModuleType:
    """A module of this package, loaded when it is named."""
    if name.startswith("_") or importlib.util.find_spec(f"{__name__}.{name}") is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")
