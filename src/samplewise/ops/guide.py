"""The guide: every node's emissions estimated from few classes, utterance by utterance, stretch by stretch.

A stretch is some neighbouring nodes. At a few of them, the probes, the whole softmax is computed. It says which classes matter
there; these, blank and the utterance's labels are always taken, others are drawn uniformly and stand for all the rest. It also
says how far the estimated denominators are off, and the estimates are corrected by that, interpolated over u. Every stretch
draws anew. So neither an unlucky draw nor a class that leaks probability for hundreds of frames adds up along a path.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from samplewise.kernels.layout import FRAMES, LABELS, START, STRIDE, TARGET_BASE, TOKEN_BASE
from samplewise.ops.problem import Group, Problem
from samplewise.ops.tiles import Emissions, Kept, Tile, floats, joint_tile
from samplewise.plan.planner import LONGEST_STRETCH, PROBES, STRETCHES_AT_ONCE, guide_classes

STRETCHES, SHORTEST_STRETCH = 16, 64  # of an utterance, and in nodes


@dataclass(frozen=True)
class Utterance:
    """One utterance of a group: its row of the table, and the classes that are present in every stretch."""

    start: int
    stride: int
    frames: int
    token_base: int
    always: Tensor  # (A,) blank and the distinct labels, ascending
    blank: int  # column of the blank among them

    @property
    def nodes(self) -> int:
        return self.frames * self.stride

    @property
    def height(self) -> int:
        """Nodes of a stretch."""
        return min(self.nodes, LONGEST_STRETCH, max(SHORTEST_STRETCH, self.nodes // STRETCHES))


@dataclass(frozen=True)
class Choice:
    """What the probes of some stretches say: the classes (s, S) of each, the log of what each class stands for (S,), and how
    far the estimated log denominators are above the true ones at the probed labels, (s, G)."""

    classes: Tensor
    log_weight: Tensor
    excess: Tensor


def guide(problem: Problem, group: Group, out: Emissions, kept: Kept | None) -> None:
    """Estimated emissions of every node of the group. `kept` is empty yet, and lends its memory."""
    generator = torch.Generator(device=problem.device).manual_seed(0)
    columns = group.targets.clone()  # the labels as columns among their utterance's own classes
    mapped = replace(group, targets=columns)
    for row, b in zip(group.table.tolist(), range(group.first, group.stop), strict=True):
        own = problem.targets[b, : row[LABELS]]
        always, column = torch.cat((own.new_tensor([problem.blank]), own)).unique(return_inverse=True)
        columns[row[TARGET_BASE] : row[TARGET_BASE] + row[LABELS]] = column[1:]
        one = Utterance(row[START], row[STRIDE], row[FRAMES], row[TOKEN_BASE], always, int(column[0]))
        tile = Tile.of(problem, one.height, gradient=False, classes=0)
        if kept is not None and kept.z.shape[0] >= one.height:
            tile = replace(tile, z=kept.z[: one.height])
        starts = list(range(one.start, one.start + one.nodes, one.height))
        for i in range(0, len(starts), STRETCHES_AT_ONCE):
            some = starts[i : i + STRETCHES_AT_ONCE]
            choice = choose(problem, group, one, some, generator)
            if i == 0:  # as many classes in every stretch
                few = choice.classes.shape[1]
                tile = replace(tile, h=floats(problem, one.height, few))
                weight = floats(problem, few, problem.weight.shape[1])
            for s, first in enumerate(some):
                here = slice(first, min(first + one.height, one.start + one.nodes))
                stretch(problem, mapped, one, here, tile.head(here.stop - first), choice, s, weight, out)


def choose(problem: Problem, group: Group, one: Utterance, starts: list[int], generator: torch.Generator) -> Choice:
    """Look at the whole softmax of the probes of some stretches, and choose the classes of each stretch."""
    node, levels = probes(one, starts, problem.device)
    tile = Tile.of(problem, node.numel(), gradient=False, classes=0)
    joint_tile(problem, group, node.flatten(), tile)
    scores = torch.mm(tile.z, problem.weight.t()).to(problem.real).add_(problem.bias)  # (s P, V)
    scores = scores.view(*node.shape, -1)  # (s, P, V)
    truth = torch.logsumexp(scores, dim=2)  # (s, P)
    mass = (scores - truth[..., None]).exp_().sum(1)  # (s, V)
    mass[:, one.always] = -1.0
    left, half = mass.shape[1] - one.always.numel(), guide_classes(mass.shape[1]) // 2
    likely = mass.topk(min(half, left), dim=1).indices  # (s, k)
    chance = torch.rand(mass.shape, generator=generator, device=mass.device)
    chance[:, one.always] = -1.0
    chance.scatter_(1, likely, -1.0)
    left -= likely.shape[1]
    drawn = chance.topk(min(half, left), dim=1).indices  # (s, k)
    classes = torch.cat((one.always.expand(len(starts), -1), likely, drawn), dim=1)  # (s, S)
    log_weight = torch.zeros(classes.shape[1], dtype=problem.real, device=mass.device)
    if drawn.shape[1]:
        log_weight[-drawn.shape[1] :] = math.log(left / drawn.shape[1])
    picked = scores.gather(2, classes[:, None].expand(-1, scores.shape[1], -1))  # (s, P, S)
    excess = torch.logsumexp(picked + log_weight, dim=2) - truth  # (s, P)
    return Choice(classes, log_weight, excess.view(len(starts), levels, -1).mean(2).nan_to_num(0.0, 0.0, 0.0))


def probes(one: Utterance, starts: list[int], device: torch.device) -> tuple[Tensor, int]:
    """Probed nodes (s, P) of each stretch, ordered by label, and how many different labels they look at."""
    levels = min(PROBES, one.stride)
    each = PROBES // levels
    u = torch.linspace(0, one.stride - 1, levels, device=device).round().long().repeat_interleave(each)  # (P,)
    first = torch.tensor(starts, device=device)[:, None] - one.start
    last = (first + one.height).clamp(max=one.nodes) - 1
    spread = torch.arange(u.numel(), device=device) * 5 % u.numel()  # frames in another order than labels
    t = (first + (last - first) * spread // max(1, u.numel() - 1)) // one.stride
    return one.start + torch.minimum(torch.maximum(t * one.stride + u, first), last), levels


def stretch(
    problem: Problem,
    mapped: Group,
    one: Utterance,
    here: slice,
    tile: Tile,
    choice: Choice,
    s: int,
    weight: Tensor,
    out: Emissions,
) -> None:
    """Estimates for the R nodes `here` of stretch s. `weight` (S, D) is a buffer for the rows of its classes."""
    node = torch.arange(here.start, here.stop, device=problem.device)
    joint_tile(problem, mapped, node, tile)
    classes, excess = choice.classes[s], choice.excess[s]
    torch.index_select(problem.weight, 0, classes, out=weight)
    torch.mm(tile.z, weight.t(), out=tile.h)  # (R, D) (D, S)
    bias = problem.bias[classes] + choice.log_weight
    problem.kernels.emission(tile.h, bias, node, tile.label, one.blank, out.log_denominator, out.lp_blank, out.lp_label)
    levels = excess.numel()
    place = (tile.token - one.token_base) * ((levels - 1) / max(1, one.stride - 1))
    below = place.long().clamp(max=max(0, levels - 2))
    above = (below + 1).clamp(max=levels - 1)
    correction = torch.lerp(excess[below], excess[above], (place - below).to(excess.dtype))
    out.log_denominator[here] -= correction
    out.lp_blank[here] += correction
    out.lp_label[here] += correction
