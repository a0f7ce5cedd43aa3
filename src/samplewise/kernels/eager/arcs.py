"""As `lattice.py`, for every topology: forward and backward variables over its arcs, the loss, and the entries' posteriors.

All utterances advance together over the anti-diagonals d = t + u: an arc of f frames and l labels leads from diagonal d to
d + f + l, so the cells of one are independent.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from samplewise.kernels.layout import FRAMES, LABELS, START, STRIDE
from samplewise.topology import Arc, Bound


def arcs_lattice(
    entries: Tensor, utterances: Tensor, form: Bound, weights: Tensor, losses: Tensor, gammas: Tensor | None
) -> None:
    """Losses (G,) float64 and, unless None, the posterior of each entry times the utterance's weight, (E, N): of all arcs that
    it is a part of.

    entries (E, N) by node, utterances (G, 7) the table of `layout.py`, weights (G,) float64. The posteriors may be the entries
    themselves, which then are overwritten. An utterance whose loss is not finite has no occupancy.
    """
    walk = _Walk(entries, utterances, form, losses.dtype)
    above = walk.nothing(form.reach)
    above[0, :, 0] = 0.0
    alphas, leaving = walk.forward(above, 0)
    losses.copy_(-leaving[0].gather(1, walk.labels)[:, 0])
    if gammas is not None:
        below = walk.nothing(form.reach)
        factor = torch.where(torch.isfinite(losses), weights, 0.0)
        walk.backward(alphas, below, 0, losses, factor, gammas)


def arcs_forward_piece(entries: Tensor, piece: Tensor, form: Bound, after: int, above: Tensor) -> None:
    """Alpha through some consecutive frames of an utterance, of which `after` more come behind them.

    piece (1, 7) is their table, as if they were an utterance of their own. `above` (reach, U+1) float64 is the log of what
    arrives from the frames before at the first frames here (first of all: 0 at [0, 0], else -inf), and becomes what arrives at
    the frames behind; after the last piece its number [0, U] is minus the loss.
    """
    above.copy_(_Walk(entries, piece, form, above.dtype).forward(above[:, None], after)[1][:, 0])


def arcs_backward_piece(
    entries: Tensor, piece: Tensor, form: Bound, after: int, above: Tensor, below: Tensor, loss: float | Tensor,
    weight: float | Tensor, gammas: Tensor,
) -> None:  # fmt: skip
    """The entries' posteriors, as by `arcs_lattice`, of some consecutive frames of an utterance whose loss is known.

    `above` (reach, U+1) is what `arcs_forward_piece` was given, `below` (reach, U+1) float64 the log of beta of the frames
    behind (last of all: -inf), which becomes that of the first frames here.
    """
    walk = _Walk(entries, piece, form, above.dtype)
    alphas, _ = walk.forward(above[:, None], after)
    losses = torch.as_tensor(loss, dtype=above.dtype, device=above.device).reshape(1)
    factor = torch.where(torch.isfinite(losses), torch.as_tensor(weight, dtype=above.dtype, device=above.device), 0.0)
    below.copy_(walk.backward(alphas, below[:, None], after, losses, factor, gammas)[:, 0])


class _Walk:
    """The lattices of a group, read one anti-diagonal at a time; the places of a diagonal are (G, U+1), by u."""

    def __init__(self, entries: Tensor, utterances: Tensor, form: Bound, dtype: torch.dtype) -> None:
        self.entries, self.form, self.dtype = entries, form, dtype
        self.start, self.stride = utterances[:, START, None], utterances[:, STRIDE, None]
        self.labels, self.frames = utterances[:, LABELS, None], utterances[:, FRAMES, None]
        longest = (utterances[:, FRAMES] + utterances[:, LABELS]).max()
        self.steps, widest = torch.stack((longest, utterances[:, LABELS].max())).tolist()
        self.u = torch.arange(widest + 1, device=entries.device)[None]

    def nothing(self, rows: int) -> Tensor:
        shape = (rows, len(self.start), self.u.numel())
        return torch.full(shape, -math.inf, dtype=self.dtype, device=self.u.device)

    def inside(self, d: int) -> Tensor:
        t = d - self.u
        return (t >= 0) & (t < self.frames) & (self.u <= self.labels)

    def node(self, d: int) -> Tensor:
        """Indices of the places, of those that are outside that of any node."""
        at = self.start + (d - self.u) * self.stride + self.u
        return torch.where(self.inside(d), at, self.start)

    def weight(self, arc: Arc, d: int) -> Tensor:
        """(G, U+1) log-weights of an arc, -inf outside and where no label is left."""
        node, inside = self.node(d), self.inside(d)
        total = sum(self.entries[e][node].to(self.dtype) for e in arc.entries)
        if arc.labels:
            inside = inside & (self.u < self.labels)
            if arc.ahead is not None:
                total = total + self.entries[arc.ahead][torch.where(inside, node + 1, node)].to(self.dtype)
        return total.masked_fill(~inside, -math.inf)  # type: ignore[union-attr]

    def ends(self, arc: Arc, d: int, after: int) -> Tensor:
        """Where an arc ends the path: at (T, U)."""
        if arc.labels and not self.form.label_ends:
            return torch.zeros_like(self.u, dtype=torch.bool).expand(len(self.start), -1)
        t = d - self.u
        return (t + arc.frames == self.frames + after) & (self.u + arc.labels == self.labels)

    def goes_on(self, arc: Arc, d: int, after: int) -> Tensor:
        return d - self.u + arc.frames < self.frames + after

    def forward(self, above: Tensor, after: int) -> tuple[list[Tensor], Tensor]:
        """Alpha by diagonal, and what arrives behind the last frame, (reach, G, U+1)."""
        reach = self.form.reach
        coming: dict[int, Tensor] = {}
        leaving, alphas = self.nothing(reach), []
        for d in range(self.steps):
            alpha = coming.pop(d, self.nothing(1)[0])
            t = d - self.u
            for r in range(reach):
                alpha = torch.where(t == r, torch.logaddexp(alpha, above[r]), alpha)
            alphas.append(alpha)
            for arc in self.form.arcs:
                out = alpha + self.weight(arc, d)
                out = torch.where(self.goes_on(arc, d, after) | self.ends(arc, d, after), out, -math.inf)
                row = t + arc.frames - self.frames
                if arc.labels:
                    out, row = (torch.nn.functional.pad(x[:, :-1], (1, 0), value=v) for x, v in ((out, -math.inf), (row, -1)))
                for r in range(reach):
                    leaving[r] = torch.where(row == r, torch.logaddexp(leaving[r], out), leaving[r])
                out = torch.where(row < 0, out, -math.inf)
                to = d + arc.frames + arc.labels
                coming[to] = torch.logaddexp(coming[to], out) if to in coming else out
        for r in range(reach):  # what passes by the frames here
            for before in range(reach):
                there = (before - self.frames == r).expand(-1, self.u.numel())
                leaving[r] = torch.where(there, torch.logaddexp(leaving[r], above[before]), leaving[r])
        return alphas, leaving

    def backward(
        self, alphas: list[Tensor], below: Tensor, after: int, losses: Tensor, factor: Tensor, gammas: Tensor
    ) -> Tensor:  # fmt: skip
        """Write the entries' posteriors; return beta of the first frames, (reach, G, U+1)."""
        reach, form = self.form.reach, self.form
        betas: dict[int, Tensor] = {}
        entries, first = self.entries, self.nothing(self.form.reach)
        ahead = [arc.ahead for arc in form.arcs if arc.ahead is not None]
        if ahead and gammas.data_ptr() == entries.data_ptr():
            self.entries = entries.clone()  # a node's are still wanted where it has been written
        usable = (factor != 0)[:, None]
        for d in range(self.steps - 1, -1, -1):
            t, beta, posteriors = d - self.u, self.nothing(1)[0], []
            for arc in form.arcs:
                weight = self.weight(arc, d)
                then = betas.get(d + arc.frames + arc.labels, self.nothing(1)[0])
                row = t + arc.frames - self.frames  # of the frames behind
                if arc.labels:
                    then = torch.nn.functional.pad(then[:, 1:], (0, 1), value=-math.inf)
                then = torch.where(row < 0, then, -math.inf)
                for r in range(reach):
                    later = below[r]
                    if arc.labels:
                        later = torch.nn.functional.pad(later[:, 1:], (0, 1), value=-math.inf)
                    then = torch.where((row == r) & self.goes_on(arc, d, after), later, then)
                then = torch.where(self.ends(arc, d, after), 0.0, then)
                total = weight + then
                posteriors.append((alphas[d] + total + losses[:, None]).clamp(max=0.0).exp() * factor[:, None])
                beta = torch.logaddexp(beta, total)
            betas[d] = beta
            betas.pop(d + reach + 2, None)
            for r in range(reach):
                first[r] = torch.where(self.inside(d) & (t == r), beta, first[r])
            self.write(d, posteriors, usable, gammas)
        for r in range(reach):  # what passes by the frames here
            for behind in range(reach):
                there = (r - self.frames == behind).expand(-1, self.u.numel())
                first[r] = torch.where(there, below[behind], first[r])
        self.entries = entries
        return first

    def write(self, d: int, posteriors: list[Tensor], usable: Tensor, gammas: Tensor) -> None:
        inside, node = self.inside(d), self.node(d)
        share = [torch.where(usable, p, 0.0) for p in posteriors]
        for e in range(len(gammas)):
            total = sum(
                (p for p, arc in zip(share, self.form.arcs, strict=True) if e in arc.entries), torch.zeros_like(share[0])
            )
            gammas[e][node[inside]] = total[inside].to(gammas.dtype)
        for p, arc in zip(share, self.form.arcs, strict=True):
            if arc.ahead is not None:  # the node after it has been written: it is on a later diagonal
                label = inside & (self.u < self.labels)
                gammas[arc.ahead][node[label] + 1] += p[label].to(gammas.dtype)
