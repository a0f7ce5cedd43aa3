"""The truth of every topology, for tests and benchmarks: entries, arcs, recursion and enumeration in plain PyTorch.

It shares no code with the kernels; autograd differentiates it. The definitions are those of `topology.py`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from samplewise.topology import NEXT_LABEL, Topology

NOWHERE = -1e30  # the log-probability of what cannot be, whose derivative is a number


def entries(scores: Tensor, labels: Tensor, blank: int, topology: Topology, *, normalise: bool = True) -> Tensor:
    """The log-probabilities (E, T, U+1) of a topology's entries, from scores (T, U+1, V); those of a label that is none are
    NOWHERE."""
    rows = scores.shape[2]
    extra = topology.extra
    label = torch.cat((labels.long(), torch.zeros(1, dtype=torch.int64)))[None, :, None].expand(len(scores), -1, 1)
    by_head: list[Tensor] = []
    for head in topology.heads:
        if head.kind == "sigmoid":
            by_head.append(scores[..., blank])
            continue
        columns = range(rows - extra, rows) if head.start != 0 else range(rows - extra if extra else rows)
        part = scores[..., columns.start : columns.stop]
        if head.drop:
            part = part.index_fill(2, torch.tensor([blank]), -math.inf)
        by_head.append((part.log_softmax(2) if normalise else part) - head.shift)
    found = []
    for entry in topology.entries:
        part = by_head[entry.head]
        if topology.heads[entry.head].kind == "sigmoid":
            found.append(torch.nn.functional.logsigmoid(-part if entry.complement else part))
        elif entry.column == NEXT_LABEL:
            by_label = part.gather(2, label)[..., 0]
            found.append(torch.cat((by_label[:, :-1], torch.full_like(by_label[:, :1], NOWHERE)), 1))
        elif entry.head > 0:
            found.append(part[..., int(entry.column)])
        else:
            found.append(part[..., topology.column(entry.column, blank)])
    return torch.stack(found)


def arc_weights(
    found: Tensor, topology: Topology, penalty: Tensor | float = 0.0, allowed: Tensor | None = None
) -> list[Tensor]:
    """The log-weight (T, U+1) of each arc at every node, from entries (E, T, U+1); NOWHERE where there is no such arc."""
    weights = []
    for arc in topology.arcs:
        weight = found[list(arc.entries)].sum(0)
        if arc.labels:
            weight = weight + penalty
            if arc.ahead is not None:
                weight = weight + torch.nn.functional.pad(found[arc.ahead][:, 1:], (0, 1))
            if allowed is not None:
                weight = weight.masked_fill(~torch.nn.functional.pad(allowed, (0, 1)), NOWHERE)
        weights.append(weight)
    return weights


def log_likelihood(found: Tensor, topology: Topology, penalty: Tensor | float = 0.0, allowed: Tensor | None = None) -> Tensor:
    """The recursion over entries (E, T, U+1), along diagonals t + u, on which no arc begins and ends. A path that lands on T
    does so once: at its end."""
    T, width = found.shape[1:]
    weights = arc_weights(found, topology, penalty, allowed)
    u = torch.arange(width)
    coming: dict[int, list[Tensor]] = {0: [torch.where(u == 0, 0.0, NOWHERE).to(found)]}
    ends = []
    for d in range(T + width - 1):
        if d not in coming:
            continue
        alpha = torch.logsumexp(torch.stack(coming.pop(d)), 0)  # (U+1,)
        t = d - u
        here = (t >= 0) & (t < T)
        for arc, weight in zip(topology.arcs, weights, strict=True):
            after = torch.where(here, alpha + weight[t.clamp(0, T - 1), u], NOWHERE)
            last = (t + arc.frames == T) & (u + arc.labels == width - 1) & here
            if last.any() and (topology.label_ends or not arc.labels):
                ends.append(after[last].squeeze())
            after = torch.where(t + arc.frames < T, after, NOWHERE)
            if arc.labels:
                after = torch.nn.functional.pad(after[:-1], (1, 0), value=NOWHERE)
            coming.setdefault(d + arc.frames + arc.labels, []).append(after)
    total = torch.logsumexp(torch.stack(ends), 0) if ends else torch.full((), NOWHERE, dtype=found.dtype)
    return torch.where(total < NOWHERE / 2, -math.inf, total)


def enumerated(found: Tensor, topology: Topology, penalty: Tensor | float = 0.0, allowed: Tensor | None = None) -> Tensor:
    """-log of the summed probability of every alignment, arc by arc from (0, 0) to (T, U); infinite where there is none."""
    T, width = found.shape[1:]
    weights = arc_weights(found, topology, penalty, allowed)
    paths: list[Tensor] = []

    def go(t: int, u: int, path: list[Tensor]) -> None:
        for arc, weight in zip(topology.arcs, weights, strict=True):
            if u + arc.labels >= width or (arc.labels and allowed is not None and not allowed[t, u]):
                continue
            onwards, then = [*path, weight[t, u]], (t + arc.frames, u + arc.labels)
            if then[0] < T:
                go(*then, onwards)
            elif then == (T, width - 1) and (topology.label_ends or not arc.labels):
                paths.append(torch.stack(onwards).sum())

    go(0, 0, [])
    return -torch.logsumexp(torch.stack(paths), 0) if paths else torch.full((), math.inf, dtype=found.dtype)
