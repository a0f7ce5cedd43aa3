"""Forward and backward variables, the loss and the arc posteriors on any device (paper: f^W_2, f^W_3).

All utterances advance together over the anti-diagonals d = t + u, which depend on the one before alone: T + U steps of vectors
of U + 1, no loop over frames times labels.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from samplewise.kernels.layout import FRAMES, LABELS, START, STRIDE


def lattice(
    lp_blank: Tensor, lp_label: Tensor, utterances: Tensor, weights: Tensor, losses: Tensor,
    gamma_blank: Tensor | None, gamma_label: Tensor | None, block_nodes: int,
) -> None:  # fmt: skip
    """Losses (G,) float64 and, unless None, the arc posteriors times the utterance's weight.

    lp_blank and lp_label (N,) are the emissions by node, utterances (G, 7) the table of `layout.py`, weights (G,) float64. The
    posteriors (N,) may be the emissions themselves, which then are overwritten. An utterance whose loss is not finite has no
    occupancy. `block_nodes` is for kernels that keep alpha in blocks.
    """
    diagonals = Diagonals(lp_blank, lp_label, utterances, losses.dtype)
    alphas = diagonals.forward(losses, keep=gamma_blank is not None)
    if gamma_blank is not None and gamma_label is not None:
        usable = torch.isfinite(losses) & (weights != 0)
        diagonals.backward(alphas, losses, torch.where(usable, weights, 0.0), gamma_blank, gamma_label)


class Diagonals:
    """The lattices of a group, read one anti-diagonal at a time."""

    def __init__(self, lp_blank: Tensor, lp_label: Tensor, utterances: Tensor, dtype: torch.dtype) -> None:
        self.lp_blank, self.lp_label, self.dtype = lp_blank, lp_label, dtype
        self.start, self.stride = utterances[:, START, None], utterances[:, STRIDE, None]
        self.labels, self.frames = utterances[:, LABELS, None], utterances[:, FRAMES, None]
        longest = (utterances[:, FRAMES] + utterances[:, LABELS]).max()
        self.steps, widest = torch.stack((longest, utterances[:, LABELS].max())).tolist()
        self.u = torch.arange(widest + 1, device=lp_blank.device)[None]  # (1, U+1)

    def at(self, d: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Node index, validity and both emissions of diagonal d, each (G, U+1); emissions outside are -inf."""
        t = d - self.u
        valid = (t >= 0) & (t < self.frames) & (self.u <= self.labels)
        node = torch.where(valid, self.start + t * self.stride + self.u, self.start)
        blank = self.lp_blank[node].to(self.dtype).masked_fill(~valid, -math.inf)
        label = self.lp_label[node].to(self.dtype).masked_fill(~valid | (self.u == self.labels), -math.inf)
        return node, valid, blank, label

    def forward(self, losses: Tensor, keep: bool) -> list[Tensor]:
        """Write the losses; return alpha by diagonal, each (G, U+1), if it is to be kept."""
        alpha = torch.full((len(self.start), self.u.numel()), -math.inf, dtype=self.dtype, device=self.u.device)
        alpha[:, 0] = 0.0
        alphas = [alpha] if keep else []
        ends = self.frames + self.labels - 1
        result = torch.zeros_like(losses)
        for d in range(self.steps):
            _, _, blank, label = self.at(d)
            last = (ends == d) & (self.u == self.labels)
            result += torch.where(last, alpha + blank, 0.0).sum(1)
            stay, move = alpha + blank, alpha + label
            moved = torch.nn.functional.pad(move[:, :-1], (1, 0), value=-math.inf)
            alpha = torch.logaddexp(stay, moved)
            if keep and d + 1 < self.steps:
                alphas.append(alpha)
        losses.copy_(-result)
        return alphas

    def backward(self, alphas: list[Tensor], losses: Tensor, weights: Tensor, gamma_blank: Tensor, gamma_label: Tensor) -> None:
        """Write the arc posteriors, which may overwrite the emissions: a node is read before it is written."""
        beta = torch.full_like(alphas[0], -math.inf)
        loss, weight = losses[:, None], weights[:, None]
        for d in range(self.steps - 1, -1, -1):
            node, valid, blank, label = self.at(d)
            t = d - self.u
            final = (t == self.frames - 1) & (self.u == self.labels)
            after_blank = torch.where(t == self.frames - 1, -math.inf, beta).masked_fill(final, 0.0)
            after_label = torch.nn.functional.pad(beta[:, 1:], (0, 1), value=-math.inf)
            by_blank, by_label = blank + after_blank, label + after_label
            beta = torch.logaddexp(by_blank, by_label)
            reach = alphas.pop() + loss
            for out, arc in ((gamma_blank, by_blank), (gamma_label, by_label)):
                share = torch.where(weight == 0, 0.0, torch.exp((reach + arc).clamp(max=0.0)) * weight).to(out.dtype)
                out[node[valid]] = share[valid]
