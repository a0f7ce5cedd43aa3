"""Whether Triton really works on a device: compiler, driver and launcher, on a lattice of two frames and one label."""

from __future__ import annotations

import math

import torch

from samplewise.kernels.layout import packed_table
from samplewise.kernels.triton.lattice import lattice


def check(device: torch.device) -> None:
    """Raise whatever Triton raises, or a RuntimeError if it finds other numbers than those of two paths of probability 1."""
    table, nodes = packed_table((2,), (1,), 2, 2, 1, device)
    emissions = torch.zeros(2, nodes, device=device)
    weights = torch.ones(1, dtype=torch.float64, device=device)
    losses = torch.zeros_like(weights)
    lattice(emissions[0], emissions[1], table, weights, losses, emissions[0], emissions[1])
    values = [*losses.tolist(), *emissions.flatten().tolist()]
    right = [-math.log(2), 0.5, 0.5, 0.0, 1.0, 0.5, 0.0, 0.5, 0.0]
    if not all(math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-6) for a, b in zip(values, right, strict=True)):
        raise RuntimeError(f"wrong numbers from its kernels: {values}")
