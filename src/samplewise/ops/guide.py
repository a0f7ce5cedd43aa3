"""The guide: every node's emissions estimated from few classes, utterance by utterance, stretch by stretch.

A stretch is some neighbouring nodes. At a few of them, the probes, the whole softmax is computed. It says which classes matter
there; these and blank are always taken, others are drawn uniformly and stand for all the rest. Of the utterance's labels a
stretch takes those that are likely at some frame or after some label of it, and every node takes its own next one. The probes
also say how far the estimated denominators are off, and the estimates are corrected by that, interpolated over u. Every stretch
draws anew. So neither an unlucky draw nor a class that leaks probability for hundreds of frames adds up along a path.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from samplewise.kernels.layout import FRAMES, LABELS, START, STRIDE, TOKEN_BASE
from samplewise.ops.problem import Group, Problem
from samplewise.ops.tiles import Emissions, Kept, Tile, floats, joint_tile
from samplewise.plan.planner import PROBES, STRETCHES_AT_ONCE, guide_classes, stretch_height

MOST_PLACES = 128  # of a stretch at which labels are looked for, if it has not more frames
UNLIKELY = -9.0  # log of what a label may have beside the likeliest of labels and blank, and still be counted among the rest


@dataclass(frozen=True)
class Utterance:
    """One utterance of a group: its row of the table, and its labels."""

    start: int
    stride: int
    frames: int
    token_base: int
    labels: Tensor  # (U+1,) the class that may come next after u labels; -1 after the last
    distinct: Tensor  # (A,) blank and the distinct labels, ascending

    @property
    def nodes(self) -> int:
        return self.frames * self.stride

    @property
    def height(self) -> int:
        """Nodes of a stretch."""
        return stretch_height(self.nodes)


@dataclass(frozen=True)
class Choice:
    """What the probes of some stretches say: the classes (s, S) of each, blank first; the log of what each class stands for,
    (s, S); whether the next label after u labels is among the classes, (s, U+1); and how far the estimated log denominators
    are above the true ones, (s, U+1)."""

    classes: Tensor
    log_weight: Tensor
    known: Tensor
    excess: Tensor


def guide(problem: Problem, group: Group, out: Emissions, kept: Kept | None) -> None:
    """Estimated emissions of every node of the group. `kept` is empty yet, and lends its memory."""
    generator = torch.Generator(device=problem.device).manual_seed(0)
    for row, b in zip(group.table.tolist(), range(group.first, group.stop), strict=True):
        own = problem.targets[b, : row[LABELS]]
        blank = own.new_tensor([problem.blank])
        one = Utterance(
            row[START], row[STRIDE], row[FRAMES], row[TOKEN_BASE], torch.cat((own, own.new_tensor([-1]))),
            torch.cat((blank, own)).unique(),
        )  # fmt: skip
        tile = Tile.of(problem, one.height, gradient=False, classes=0)
        if kept is not None and kept.z.shape[0] >= one.height:
            tile = replace(tile, z=kept.z[: one.height])
        starts = list(range(one.start, one.start + one.nodes, one.height))
        weight = floats(problem, 0, problem.weight.shape[1])
        for i in range(0, len(starts), STRETCHES_AT_ONCE):
            some = starts[i : i + STRETCHES_AT_ONCE]
            choice = choose(problem, group, one, some, tile, generator)
            few = choice.classes.shape[1]
            if few != weight.shape[0]:
                tile, weight = replace(tile, h=floats(problem, one.height, few)), floats(problem, few, weight.shape[1])
            for s, first in enumerate(some):
                here = slice(first, min(first + one.height, one.start + one.nodes))
                stretch(problem, group, one, here, tile.head(here.stop - first), choice, s, weight, out)


def choose(problem: Problem, group: Group, one: Utterance, starts: list[int], tile: Tile, generator: torch.Generator) -> Choice:
    """Look at the whole softmax of the probes of some stretches, and choose the classes of each stretch."""
    node, levels = probes(one, starts, problem.device)
    look = Tile.of(problem, node.numel(), gradient=False, classes=0)
    joint_tile(problem, group, node.flatten(), look)
    scores = torch.mm(look.z, problem.weight.t()).to(problem.real).add_(problem.bias)  # (s P, V)
    scores = scores.view(*node.shape, -1)  # (s, P, V)
    truth = torch.logsumexp(scores, dim=2)  # (s, P)
    mass = (scores - truth[..., None]).exp_().sum(1)  # (s, V)
    labels = likely_labels(problem, group, one, starts, tile)  # (s, L)
    blank = labels.new_full((len(starts), 1), problem.blank)
    mass[:, problem.blank] = -1.0
    mass.scatter_(1, labels, -1.0)
    left, half = mass.shape[1] - 1 - labels.shape[1], guide_classes(mass.shape[1]) // 2
    likely = mass.topk(min(half, left), dim=1).indices  # (s, k)
    chance = torch.rand(mass.shape, generator=generator, device=mass.device)
    chance[:, one.distinct] = -1.0  # a label would stand for many others where it is likely, and hide its own node
    chance.scatter_(1, likely, -1.0)
    drawn = min(half, int((chance >= 0).sum(1).min()))
    classes = torch.cat((blank, labels, likely, chance.topk(drawn, dim=1).indices), dim=1)  # (s, S)
    log_weight = torch.zeros(classes.shape, dtype=problem.real, device=mass.device)
    if drawn:
        log_weight[:, -drawn:] = math.log((left - likely.shape[1]) / drawn)
    present = torch.zeros(mass.shape, dtype=torch.bool, device=mass.device).scatter_(1, classes, True)  # (s, V)
    known = present[:, one.labels]  # (s, U+1); of label -1 whatever
    estimate = torch.logsumexp(scores.gather(2, classes[:, None].expand(-1, node.shape[1], -1)) + log_weight[:, None], dim=2)
    u = (node - one.start) % one.stride  # (s, P)
    label = one.labels[u]
    score = scores.gather(2, label.clamp(min=0)[..., None])[..., 0].masked_fill(known.gather(1, u) | (label < 0), -torch.inf)
    excess = torch.logaddexp(estimate, score) - truth  # (s, P)
    excess = excess.view(len(starts), levels, -1).mean(2).nan_to_num(0.0, 0.0, 0.0)  # (s, levels)
    return Choice(classes, log_weight, known, excess @ interpolation(levels, one.stride, excess))


def likely_labels(problem: Problem, group: Group, one: Utterance, starts: list[int], tile: Tile) -> Tensor:
    """Labels (s, L) of the utterance that are not unlikely somewhere in each stretch: as many in all, the likeliest.

    Looked for at every frame and after every label, with nodes that have both at once; of many labels after every other one or
    so, and in the next stretch after those between.
    """
    frames = -(-one.height // one.stride)
    places = min(one.height, max(one.stride, frames), max(MOST_PLACES, frames))
    place, first = torch.arange(places, device=problem.device), torch.tensor(starts, device=problem.device)[:, None] - one.start
    u = (place * max(1, one.stride // places) + first // one.height) % one.stride  # (s, P)
    t = first // one.stride + place * (one.height // one.stride) // places
    node = t * one.stride + u  # (s, P)
    node = (one.start + node.clamp(max=one.nodes - 1)).flatten()
    weight, bias = problem.weight[one.distinct], problem.bias[one.distinct]
    found = []
    for part in node.split(max(places, tile.rows // places * places)):
        rows = tile.head(part.numel())
        joint_tile(problem, group, part, rows)
        scores = torch.mm(rows.z, weight.t()).to(problem.real).add_(bias)  # (R, A)
        scores -= scores.amax(1, keepdim=True)
        found.append(scores.view(-1, places, scores.shape[1]).amax(1).nan_to_num(nan=0.0))  # (., A)
    chances = torch.cat(found)  # (s, A)
    chances[:, one.distinct == problem.blank] = -torch.inf
    count = min(int((chances > UNLIKELY).sum(1).max()), one.distinct.numel() - 1)
    return one.distinct[chances.topk(count, dim=1).indices]


def interpolation(levels: int, width: int, like: Tensor) -> Tensor:
    """(levels, width) weights that make values at equally spaced levels values at all places between them."""
    place = torch.linspace(0, levels - 1, width, dtype=like.dtype, device=like.device)
    distance = (place - torch.arange(levels, device=like.device)[:, None]).abs()
    return (1 - distance).clamp_(min=0)


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
    group: Group,
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
    joint_tile(problem, group, node, tile)
    classes = choice.classes[s]
    torch.index_select(problem.weight, 0, classes, out=weight)
    torch.mm(tile.z, weight.t(), out=tile.h)  # (R, D) (D, S)
    bias = problem.bias[classes] + choice.log_weight[s]
    emissions = (out.log_denominator, out.lp_blank, out.lp_label)
    problem.kernels.emission(tile.h, bias, node, torch.full_like(node, -1), 0, *emissions)
    place = tile.token - one.token_base
    label, known, excess = one.labels[place], choice.known[s][place], choice.excess[s][place]
    problem.kernels.add_label(tile.z, problem.weight, problem.bias, node, label, known, excess, *emissions)
