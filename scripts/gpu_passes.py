"""The kernels of one step on fixed buffers, for scripts/gpu_check.py."""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from samplewise.kernels.layout import packed_table


class Passes:
    """The kernels and products of one step on fixed buffers, as a graph captures them: all but `select`, whose size varies."""

    def __init__(self, kernels: ModuleType, device: torch.device, classes: int = 65, dim: int = 32) -> None:
        def randn(*shape: int) -> Tensor:
            return torch.randn(*shape, device=device)

        self.kernels = kernels
        self.table, nodes = packed_table((10, 20), (9, 4), 20, 10, 9, device)
        self.rows, self.columns, self.weight = randn(40, dim), randn(20, dim), randn(classes, dim)
        self.targets, self.bias = torch.randint(1, classes, (18,), device=device), randn(classes)
        self.node = torch.arange(nodes, device=device)
        self.frame, self.token, self.label = torch.empty(3, nodes, dtype=torch.int64, device=device)
        self.z, self.h, self.dz = (torch.empty(nodes, n, device=device) for n in (dim, classes, dim))
        self.denominator = torch.empty(nodes, dtype=torch.float64, device=device)
        self.emissions = torch.empty(2, nodes, device=device)
        self.losses = torch.ones(2, dtype=torch.float64, device=device)
        self.weights = torch.ones_like(self.losses)
        self.sums = [torch.zeros_like(x) for x in (self.rows, self.columns, self.bias)]

    def __call__(self) -> list[Tensor]:
        k, (d_rows, d_columns, d_bias) = self.kernels, self.sums
        for total in self.sums:
            total.zero_()
        k.locate(self.node, self.table, self.targets, self.frame, self.token, self.label)
        k.joint(self.rows, self.columns, self.frame, self.token, "tanh", self.z)
        torch.mm(self.z, self.weight.t(), out=self.h)
        k.emission(self.h, self.bias, self.node, self.label, 0, self.denominator, *self.emissions)
        k.lattice(*self.emissions, self.table, self.weights, self.losses, *self.emissions)
        k.emission_gradient(self.h, self.bias, self.node, self.label, 0, self.denominator, *self.emissions, d_bias)
        torch.mm(self.h, self.weight, out=self.dz)
        k.joint_gradient(self.dz, self.z, self.rows, self.columns, self.frame, self.token, "tanh", d_rows, d_columns)
        return [self.losses.clone(), *(x.clone() for x in self.sums)]
