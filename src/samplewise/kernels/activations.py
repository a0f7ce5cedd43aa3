"""The activations of a joint network: their names, and what each is in PyTorch.

Another one is a line of `TABLE` here, one of `kernels/numba/activations.py`, and a branch of each of the two functions in
`kernels/triton/numbers.py`. All else that names activations takes the names from here. `reference.py` shares nothing with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

SLOPE = 0.01  # of leaky_relu below 0, as in PyTorch


class Activation(NamedTuple):
    """What the kernels, and those who call them, know of one."""

    function: Callable[[Tensor], Tensor]  # differentiable
    in_place: Callable[[Tensor], Tensor]  # the same, and may overwrite what it is given
    derivative: Callable[[Tensor], Tensor | float]  # of the sum x where `of_sum`, elsewhere of y = act(x)
    of_sum: bool = False  # x = encoder row + predictor row
    bounded: bool = False  # |act(x)| <= 1 for all x; elsewhere |act(x)| <= |x|


def _sigmoid_slope(x: Tensor) -> Tensor:
    return torch.sigmoid(x) * torch.sigmoid(-x)  # 1 - y has no digits left where y is nearly 1


def _gelu_slope(x: Tensor) -> Tensor:
    return 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))) + x * torch.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)


def _silu(x: Tensor) -> Tensor:
    return functional.silu(x, inplace=True)


def _silu_slope(x: Tensor) -> Tensor:
    gate = torch.sigmoid(x)
    return gate * (1.0 + x * (1.0 - gate))


def _leaky_relu(x: Tensor) -> Tensor:
    return functional.leaky_relu(x, SLOPE, inplace=True)


def _same(x: Tensor) -> Tensor:
    return x


TABLE = {
    "tanh": Activation(torch.tanh, torch.tanh_, lambda y: 1.0 - y * y, bounded=True),
    "relu": Activation(torch.relu, torch.relu_, lambda y: (y > 0).to(y.dtype)),
    "sigmoid": Activation(torch.sigmoid, torch.sigmoid_, _sigmoid_slope, of_sum=True, bounded=True),
    "gelu": Activation(functional.gelu, functional.gelu, _gelu_slope, of_sum=True),
    "silu": Activation(functional.silu, _silu, _silu_slope, of_sum=True),
    "identity": Activation(_same, _same, lambda y: 1.0),
    "leaky_relu": Activation(functional.leaky_relu, _leaky_relu, lambda y: torch.where(y > 0, torch.ones_like(y), SLOPE)),
}

ALIASES = {"linear": "identity", "swish": "silu", "gelu_python": "gelu"}  # other names of exactly these, those of transformers


def activate(x: Tensor, activation: str) -> Tensor:
    """act(x), in place where PyTorch has it in place."""
    return TABLE[activation].in_place(x)


def derivative(x: Tensor, y: Tensor, activation: str) -> Tensor | float:
    """act'(x), from y = act(x), or from x where it is made of the sum."""
    found = TABLE[activation]
    return found.derivative(x if found.of_sum else y)
