"""From a tile of logits to three numbers a node, and from them to the gradient of the tile (paper: f^W_1 and f^W_4)."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

AT_ONCE = 1 << 22  # scores that are looked at together


def emission(
    logits: Tensor, bias: Tensor, node: Tensor, label: Tensor, blank: int,
    log_denominator: Tensor, lp_blank: Tensor, lp_label: Tensor,
) -> None:  # fmt: skip
    """Log-softmax denominators of logits + bias, and the log-probabilities of blank and of the next label.

    logits (R, C), bias (C,), node and label (R,) int64; label -1 means that no label is left (log-probability -inf).
    Row r writes element node[r] of the three outputs (N,); log_denominator is float64, so that large scores keep their digits.
    """
    for here in pieces(logits):
        _emission(logits[here], bias, node[here], label[here], blank, log_denominator, lp_blank, lp_label)


def pieces(logits: Tensor) -> Iterator[slice]:
    """Rows that are worked on together: their scores in full precision take memory beyond the tile."""
    rows = max(1, AT_ONCE // logits.shape[1])
    return (slice(start, start + rows) for start in range(0, logits.shape[0], rows))


def _emission(
    logits: Tensor, bias: Tensor, node: Tensor, label: Tensor, blank: int,
    log_denominator: Tensor, lp_blank: Tensor, lp_label: Tensor,
) -> None:  # fmt: skip
    scores = logits.to(bias.dtype) + bias  # (R, C)
    top = scores.amax(dim=1, keepdim=True)
    scores -= top
    rest = torch.exp(scores).sum(1).log_()  # apart from top it keeps the digits that their sum would lose
    by_label = scores.gather(1, label.clamp(min=0)[:, None])[:, 0] - rest
    log_denominator[node] = top[:, 0].to(log_denominator.dtype) + rest.to(log_denominator.dtype)
    lp_blank[node] = scores[:, blank] - rest
    lp_label[node] = by_label.masked_fill(label < 0, -math.inf)


def emission_gradient(
    logits: Tensor, bias: Tensor, node: Tensor, label: Tensor, blank: int,
    log_denominator: Tensor, gamma_blank: Tensor, gamma_label: Tensor, d_bias: Tensor,
) -> None:  # fmt: skip
    """Overwrite logits (R, C) with dL/dh = gamma softmax(h) - gamma_blank e_blank - gamma_label e_label.

    Rows without occupancy become zeros whatever they held. d_bias (C,) accumulates the column sums.
    """
    for here in pieces(logits):
        _gradient(logits[here], bias, node[here], label[here], blank, log_denominator, gamma_blank, gamma_label, d_bias)


def _gradient(
    logits: Tensor, bias: Tensor, node: Tensor, label: Tensor, blank: int,
    log_denominator: Tensor, gamma_blank: Tensor, gamma_label: Tensor, d_bias: Tensor,
) -> None:  # fmt: skip
    by_blank, by_label = gamma_blank[node], gamma_label[node]
    occupancy = (by_blank + by_label)[:, None]
    level = log_denominator[node][:, None].to(bias.dtype)
    gradient = (logits.to(bias.dtype) + bias).sub_(level).exp_()  # (R, C)
    gradient *= occupancy / gradient.sum(1, keepdim=True)  # the softmax, however the scores were rounded before
    gradient[:, blank] -= by_blank
    gradient.scatter_add_(1, label.clamp(min=0)[:, None], -by_label.masked_fill(label < 0, 0.0)[:, None])
    gradient.masked_fill_(occupancy == 0, 0.0)
    d_bias += gradient.sum(0)
    logits.copy_(gradient)
