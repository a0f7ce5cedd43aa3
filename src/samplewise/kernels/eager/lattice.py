"""Forward and backward variables, the loss and the arc posteriors on any device (paper: f^W_2, f^W_3).

All utterances advance together over the anti-diagonals d = t + u, which depend on the one before alone: T + U steps of vectors
of U + 1, no loop over frames times labels. Every path leaves one node of every diagonal, so posteriors are a softmax over the
arcs of a diagonal, and alpha and beta may be kept relative to the largest of theirs: small numbers, of which float32 keeps as
many digits after a thousand frames as after one. (Some devices have no float64.)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from samplewise.kernels.layout import FRAMES, LABELS, START, STRIDE


def lattice(
    lp_blank: Tensor, lp_label: Tensor, utterances: Tensor, weights: Tensor, losses: Tensor,
    gamma_blank: Tensor | None, gamma_label: Tensor | None,
) -> None:  # fmt: skip
    """Losses (G,) float64 and, unless None, the arc posteriors times the utterance's weight.

    lp_blank and lp_label (N,) are the emissions by node, utterances (G, 7) the table of `layout.py`, weights (G,) float64. The
    posteriors (N,) may be the emissions themselves, which then are overwritten; without gamma_label, gamma_blank gets the sum
    of both. An utterance whose loss is not finite has no occupancy.
    """
    diagonals = Diagonals(lp_blank, lp_label, utterances, losses.dtype)
    alphas = diagonals.forward(losses, keep=gamma_blank is not None)
    if gamma_blank is not None:
        usable = torch.isfinite(losses) & (weights != 0)
        diagonals.backward(alphas, torch.where(usable, weights, 0.0), gamma_blank, gamma_label)


class Diagonals:
    """The lattices of a group, read one anti-diagonal at a time."""

    def __init__(self, lp_blank: Tensor, lp_label: Tensor, utterances: Tensor, dtype: torch.dtype) -> None:
        self.lp_blank, self.lp_label, self.dtype = lp_blank, lp_label, dtype
        self.start, self.stride = utterances[:, START, None], utterances[:, STRIDE, None]
        self.labels, self.frames = utterances[:, LABELS, None], utterances[:, FRAMES, None]
        longest = (utterances[:, FRAMES] + utterances[:, LABELS]).max()
        self.steps, widest = torch.stack((longest, utterances[:, LABELS].max())).tolist()
        self.u = torch.arange(widest + 1, device=lp_blank.device)[None]  # (1, U+1)

    def place(self, d: int) -> tuple[Tensor, Tensor]:
        """Of every place of diagonal d, (G, U+1), the label of the nearest node on it, and that node's index.

        Nodes stand for the places beside them so that nothing has to be sorted out, for which the host would have to wait. Of
        an utterance that the diagonal has left behind, some node.
        """
        lowest, highest = (d + 1 - self.frames).clamp(min=0), self.labels.clamp(max=d)
        u = torch.minimum(torch.maximum(self.u, lowest), highest)
        t = torch.minimum(d - u, self.frames - 1)
        return u, self.start + t * self.stride + u

    def at(self, d: int) -> tuple[Tensor, Tensor]:
        """Both emissions of diagonal d, each (G, U+1); outside they are -inf."""
        t, (_, node) = d - self.u, self.place(d)
        outside = (t < 0) | (t >= self.frames) | (self.u > self.labels)
        blank = self.lp_blank[node].to(self.dtype).masked_fill(outside, -math.inf)
        label = self.lp_label[node].to(self.dtype).masked_fill(outside | (self.u == self.labels), -math.inf)
        return blank, label

    def forward(self, losses: Tensor, keep: bool) -> list[Tensor]:
        """Write the losses; return alpha by diagonal, each (G, U+1), if it is to be kept."""
        alpha = torch.full((len(self.start), self.u.numel()), -math.inf, dtype=self.dtype, device=self.u.device)
        alpha[:, 0] = 0.0
        alphas, ends = [], self.frames + self.labels - 1
        parts = [torch.zeros_like(alpha[:, :1])]  # of the log-likelihoods
        for d in range(self.steps):
            if keep:
                alphas.append(alpha)
            blank, label = self.at(d)
            stay, move = alpha + blank, alpha + label
            last = (ends == d) & (self.u == self.labels)
            final = torch.where(last, stay, 0.0).sum(1, keepdim=True)
            moved = torch.nn.functional.pad(move[:, :-1], (1, 0), value=-math.inf)
            alpha, level = relative(torch.logaddexp(stay, moved))
            parts.append(torch.where(ends > d, level, final))
        losses.copy_(-torch.cat(parts, 1).sum(1))
        return alphas

    def backward(self, alphas: list[Tensor], weights: Tensor, gamma_blank: Tensor, gamma_label: Tensor | None) -> None:
        """Write the arc posteriors, which may overwrite the emissions: a node is read before it is written."""
        beta = torch.full_like(alphas[0], -math.inf)
        weight = weights[:, None]
        for d in range(self.steps - 1, -1, -1):
            blank, label = self.at(d)
            t = d - self.u
            final = (t == self.frames - 1) & (self.u == self.labels)
            after_blank = torch.where(t == self.frames - 1, -math.inf, beta).masked_fill(final, 0.0)
            after_label = torch.nn.functional.pad(beta[:, 1:], (0, 1), value=-math.inf)
            by_blank, by_label = blank + after_blank, label + after_label
            beta, _ = relative(torch.logaddexp(by_blank, by_label))
            reach = alphas.pop()
            shares = torch.cat((reach + by_blank, reach + by_label), 1).softmax(1)  # (G, 2 (U+1))
            shares = torch.where(weight == 0, 0.0, shares * weight)
            (u, node), there = self.place(d), d < self.frames + self.labels
            by_arc = shares.chunk(2, 1)
            outputs = (
                [(gamma_blank, by_arc[0] + by_arc[1])]
                if gamma_label is None
                else [*zip((gamma_blank, gamma_label), by_arc, strict=True)]
            )
            for out, share in outputs:
                out[node] = torch.where(there, share.gather(1, u).to(out.dtype), out[node])


def relative(x: Tensor) -> tuple[Tensor, Tensor]:
    """x (G, U+1) less the largest number of each row, and that number (G, 1); 0 where it is not finite."""
    level = x.amax(1, keepdim=True)
    level = torch.where(torch.isfinite(level), level, 0.0)
    return x - level, level
