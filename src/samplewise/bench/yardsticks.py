"""What any method that visits the whole lattice has to pay: its matrix products and its tanh, and nothing else.

The products run over all N nodes in one tile that is used again and again, so that they need no N x V memory; its rows
are those at which this machine is fastest.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from samplewise.bench.cases import Case

TILES = (128, 256, 512, 1024, 2048, 4096)
PROBE_SECONDS = 0.1


class Products:
    """`passes` of the three products of the output layer: h = z W^T; then dz = h W and dW += h^T z."""

    def __init__(self, case: Case, passes: int, dtype: torch.dtype) -> None:
        self.nodes, self.passes, self.dtype = case.nodes, passes, dtype
        generator = torch.Generator().manual_seed(case.seed)
        self.weight = torch.randn(case.classes, case.dim, generator=generator).to(dtype)
        self.d_weight = torch.zeros_like(self.weight)
        candidates = [rows for rows in TILES if rows <= self.nodes] or [self.nodes]
        self.rows = min(candidates, key=self.seconds_a_row)
        self.buffers = self.allocate(self.rows)

    def allocate(self, rows: int) -> tuple[Tensor, Tensor, Tensor]:
        generator = torch.Generator().manual_seed(0)
        z = torch.randn(rows, self.weight.shape[1], generator=generator).to(self.dtype)
        return z, torch.empty(rows, self.weight.shape[0], dtype=self.dtype), torch.empty_like(z)

    def seconds_a_row(self, rows: int) -> float:
        buffers = self.allocate(rows)
        self.tile(buffers)
        start, tiles = time.perf_counter(), 0
        while time.perf_counter() - start < PROBE_SECONDS:
            self.tile(buffers)
            tiles += 1
        return (time.perf_counter() - start) / (rows * tiles)

    def tile(self, buffers: tuple[Tensor, Tensor, Tensor]) -> None:
        z, h, dz = buffers
        torch.mm(z, self.weight.t(), out=h)  # (R, D) (D, V)
        if self.passes == 3:
            torch.mm(h, self.weight, out=dz)  # (R, V) (V, D)
            torch.mm(h.t(), z, out=self.d_weight)  # (V, R) (R, D)

    def __call__(self) -> None:
        whole, rest = divmod(self.nodes, self.rows)
        for _ in range(whole):
            self.tile(self.buffers)
        if rest:
            z, h, dz = self.buffers
            self.tile((z[:rest], h[:rest], dz[:rest]))


class Tanh:
    """tanh of all N x D pre-activations, 256 rows at a time."""

    rows = 256

    def __init__(self, case: Case) -> None:
        self.nodes = case.nodes
        self.x = torch.randn(self.rows, case.dim, generator=torch.Generator().manual_seed(0))
        self.out = torch.empty_like(self.x)

    def __call__(self) -> None:
        for _ in range(max(1, round(self.nodes / self.rows))):
            torch.tanh(self.x, out=self.out)


def make_yardstick(name: str, case: Case, dtype: torch.dtype) -> Callable[[], None]:
    if name == "tanh":
        return Tanh(case)
    return Products(case, {"gemm1": 1, "gemm3": 3}[name], dtype)
