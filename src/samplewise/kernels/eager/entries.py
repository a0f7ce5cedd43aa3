"""As `emission.py`, for every topology: from a tile of logits to the entries of a node, and from them to the gradient."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from samplewise.kernels.eager.emission import pieces
from samplewise.topology import Bound


def entries(
    logits: Tensor, bias: Tensor, node: Tensor, label: Tensor, form: Bound, log_denominators: Tensor, out: Tensor
) -> None:
    """Log denominators of the heads of logits + bias, and the log-probabilities of a topology's entries.

    logits (R, C), bias (C,), node and label (R,) int64; label -1 means that no label is left (log-probability -inf).
    Row r writes column node[r] of log_denominators (H, N), float64, and of out (E, N). The denominator of a sigmoid is not
    written.
    """
    for here in pieces(logits):
        scores, at, y = logits[here].to(bias.dtype) + bias, node[here], label[here]
        tops, rests = {}, {}
        for h, (start, stop, drop, sigmoid, _) in enumerate(form.heads):
            if not sigmoid:
                part = _columns(scores, start, stop, drop)
                tops[h] = part.amax(1)
                rests[h] = torch.exp(part - tops[h][:, None]).sum(1).log_()  # apart from the top it keeps its digits
                log_denominators[h, at] = tops[h].to(log_denominators.dtype) + rests[h].to(log_denominators.dtype)
        for e, (h, column, complement) in enumerate(form.entries):
            score = scores.gather(1, y.clamp(min=0)[:, None])[:, 0] if column < 0 else scores[:, column]
            if form.heads[h][3]:
                value = torch.nn.functional.logsigmoid(-score if complement else score)
            else:
                value = (score - tops[h]) - rests[h]
            value = value - form.heads[h][4]
            out[e, at] = value.masked_fill(y < 0, -math.inf) if column < 0 else value


def entries_gradient(
    logits: Tensor, bias: Tensor, node: Tensor, label: Tensor, form: Bound, log_denominators: Tensor, gammas: Tensor,
    d_bias: Tensor,
) -> None:  # fmt: skip
    """Overwrite logits (R, C) with dL/dh: for every head the sum of its entries' posteriors, gammas (E, N), times its softmax,
    less the posteriors themselves at the entries' columns.

    Where a head has no posterior its columns become zeros whatever they held. d_bias (C,) accumulates the column sums.
    """
    for here in pieces(logits):
        scores, at, y = logits[here].to(bias.dtype) + bias, node[here], label[here]
        gradient = torch.zeros_like(scores)
        for h, (start, stop, drop, sigmoid, _) in enumerate(form.heads):
            own = [e for e, entry in enumerate(form.entries) if entry[0] == h]
            mass = gammas[own][:, at].sum(0)[:, None]
            part = scores[:, start:stop]
            if sigmoid:
                share = torch.sigmoid(part) * mass
            else:
                share = torch.exp(_columns(scores, start, stop, drop) - log_denominators[h, at][:, None].to(bias.dtype))
                share = share * (mass / share.sum(1, keepdim=True))
            share = share.masked_fill(mass == 0, 0.0)
            gradient[:, start:stop] += share
        for e, (_, column, complement) in enumerate(form.entries):
            if complement:
                continue
            gamma = gammas[e, at][:, None]
            if column < 0:
                gradient.scatter_add_(1, y.clamp(min=0)[:, None], -gamma.masked_fill(y[:, None] < 0, 0.0))
            else:
                gradient[:, column : column + 1] -= gamma
        logits[here] = gradient.to(logits.dtype)
        d_bias += gradient.sum(0)


def _columns(scores: Tensor, start: int, stop: int, drop: int) -> Tensor:
    part = scores[:, start:stop]
    return part if drop < 0 else part.index_fill(1, torch.tensor([drop - start], device=part.device), -math.inf)
