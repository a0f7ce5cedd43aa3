"""The names that arguments take, as types: a type checker sees "tilled" before a run does. No torch here."""

from __future__ import annotations

from typing import Literal

Reduction = Literal["none", "sum", "mean", "mean_volume", "mean_target"]
Method = Literal["auto", "batched", "samplewise", "tiled", "guided"]
OnNonfinite = Literal["keep", "zero", "raise"]
Activation = Literal[
    "tanh", "relu", "sigmoid", "gelu", "silu", "identity", "leaky_relu", "linear", "swish", "gelu_python",
]  # fmt: skip
TopologyName = Literal["regular", "modified", "constrained", "hat", "multi_blank", "tdt"]
