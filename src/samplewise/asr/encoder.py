"""What every encoder offers to the model and to the checks of the data."""

from __future__ import annotations

from torch import Tensor, nn


class Encoder(nn.Module):
    """What an encoder offers: the width `dim` of its output, and its own formula for lengths."""

    dim: int

    def output_length(self, frames: int) -> int:
        """Encoder frames of an utterance of so many feature frames."""
        raise NotImplementedError

    def forward(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Encode features (B, F, M) of `lengths` (B,) to (B, T, dim) and the lengths of that (B,)."""
        raise NotImplementedError
