"""What every encoder offers to the model and to the checks of the data."""

from __future__ import annotations

from torch import Tensor, nn


class Encoder(nn.Module):
    """What an encoder offers: the width `dim` of its output, its own formula for lengths, perhaps its layers.

    Attributes:
        depth: number of layers whose outputs `layers` gives, the last one included; 0 if it cannot give them.
    """

    dim: int
    depth: int = 0

    def output_length(self, frames: int) -> int:
        """Encoder frames of an utterance of so many feature frames."""
        raise NotImplementedError

    def forward(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Encode features (B, F, M) of `lengths` (B,) to (B, T, dim) and the lengths of that (B,)."""
        raise NotImplementedError

    def layers(self, features: Tensor, lengths: Tensor) -> tuple[list[Tensor], Tensor]:
        """What `forward` gives, with the outputs (B, T, dim) of all `depth` layers; the last is `forward`'s."""
        raise NotImplementedError
