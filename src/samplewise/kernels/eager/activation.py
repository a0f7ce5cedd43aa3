"""The activations of a joint network, forward and derivative."""

from __future__ import annotations

import math

import torch
from torch import Tensor

OF_SUMS = ("sigmoid", "gelu", "silu")  # whose derivative is made of x = encoder row + predictor row, not of act(x)


def activate(x: Tensor, activation: str) -> Tensor:
    """act(x), in place where PyTorch has it in place."""
    if activation == "tanh":
        return x.tanh_()
    if activation == "relu":
        return x.relu_()
    if activation == "sigmoid":
        return x.sigmoid_()
    if activation == "gelu":
        return torch.nn.functional.gelu(x)
    if activation == "silu":
        return torch.nn.functional.silu(x, inplace=True)
    return x


def derivative(x: Tensor, y: Tensor, activation: str) -> Tensor | float:
    """act'(x), from y = act(x), or from x for those `OF_SUMS`."""
    if activation == "tanh":
        return 1.0 - y * y
    if activation == "relu":
        return (y > 0).to(y.dtype)
    if activation == "sigmoid":
        return torch.sigmoid(x) * torch.sigmoid(-x)  # 1 - y has no digits left where y is nearly 1
    if activation == "gelu":
        return 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))) + x * torch.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)
    if activation == "silu":
        gate = torch.sigmoid(x)
        return gate * (1.0 + x * (1.0 - gate))
    return 1.0
