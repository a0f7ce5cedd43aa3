"""Exact neural transducer losses that never hold the 4-D output tensor (B, T, U+1, V)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from samplewise import topology
    from samplewise.errors import TransducerError
    from samplewise.functional import joint_loss, rnnt_loss, transducer_loss
    from samplewise.labels import label_lengths
    from samplewise.lattice import lattice_loss
    from samplewise.modules import Joiner, TransducerLoss
    from samplewise.observation import Observation, observe
    from samplewise.planning.plan import Plan, plan
    from samplewise.vocabulary import SampledVocabulary, sample_vocabulary

__all__ = [
    "Joiner",
    "Observation",
    "Plan",
    "SampledVocabulary",
    "TransducerError",
    "TransducerLoss",
    "joint_loss",
    "label_lengths",
    "lattice_loss",
    "observe",
    "plan",
    "rnnt_loss",
    "sample_vocabulary",
    "topology",
    "transducer_loss",
]
__version__ = "0.1.0"

# Where the public names are: PyTorch is loaded with the first of them, not by `samplewise --help`.
_HOMES = {
    "errors": ("TransducerError",), "functional": ("joint_loss", "rnnt_loss", "transducer_loss"), "labels": ("label_lengths",),
    "lattice": ("lattice_loss",), "modules": ("Joiner", "TransducerLoss"),
    "observation": ("Observation", "observe"), "planning.plan": ("Plan", "plan"),
    "vocabulary": ("SampledVocabulary", "sample_vocabulary"),
}  # fmt: skip
_HOME = {name: f"samplewise.{home}" for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in ("errors", "integrations", "topology"):
        return importlib.import_module(f"samplewise.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'samplewise' has no attribute {name!r}")
    found = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = found  # the next time it is simply there
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
