"""A lattice of which each frame has an interval of nodes, by way of a whole lattice whose other nodes have probability 0."""

from __future__ import annotations

from torch import Tensor

from samplewise.kernels.eager.band import by_whole
from samplewise.kernels.triton.lattice import lattice


def band_lattice(
    lp_blank: Tensor, lp_label: Tensor, utterances: Tensor, base: Tensor, low: Tensor, high: Tensor, weights: Tensor,
    losses: Tensor, gamma_blank: Tensor | None, gamma_label: Tensor | None,
) -> None:  # fmt: skip
    """Losses (G,) float64 of the paths inside and, unless None, the arc posteriors; as in `eager.band`."""
    by_whole(lattice, lp_blank, lp_label, utterances, base, low, high, weights, losses, gamma_blank, gamma_label)
