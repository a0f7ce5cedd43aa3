"""Upper bounds of emissions: which classes a stretch of nodes is bounded with, and what rounding may take off.

A stretch is some neighbouring frames of an utterance. At a few of its nodes, the probes, the whole softmax is computed; the
classes that matter there are taken. They decide how close the bounds are, never whether they hold.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from samplewise.kernels.activations import TABLE
from samplewise.kernels.layout import FRAMES, LABELS, START, STRIDE, TARGET_BASE, on_device
from samplewise.ops.problem import Group, Problem, wide_dtype
from samplewise.ops.tiles import Tile, forward_tile, joint_tile, no_emissions
from samplewise.planning.planner import PROBES, bound_choices, probed_at_once, stretch_frames, stretches_at_once

SAMPLE = 8  # stretches that say how many classes it takes
LIKELY = -1.5  # log of what a class has somewhere in a stretch that should be among those it is bounded with
FEW, LARGE = 32, 1 << 12  # classes, and nodes of an utterance, up to which its labels are not looked for
NEARLY, NEAR = 1.5, 0.3  # the gap to a denominator, of what more classes would leave, and besides, in nats
ELEMENTS_AT_ONCE = 1 << 17  # whose norms are taken
ROWS_AT_ONCE = 256  # of the output layer that are summed in the real dtype; their sums add up in float64


class Whole(NamedTuple):
    """Of the whole output layer what bounds are made of. Classes whose bias is -inf are none: they count nowhere."""

    weight_sum: Tensor  # (D,) float64 where the device has it
    bias_sum: Tensor  # ()
    size: Tensor  # () how many classes there are
    norms: Tensor  # (V,) of the rows

    @classmethod
    def of(cls, problem: Problem) -> Whole:
        weight, counts = problem.weight, ~torch.isneginf(problem.bias)
        wide, ones = wide_dtype(problem.device), counts.to(problem.real)
        parts = [
            some @ rows.to(problem.real)
            for some, rows in zip(ones.split(ROWS_AT_ONCE), weight.split(ROWS_AT_ONCE), strict=True)
        ]
        bias_sum = torch.where(counts, problem.bias, 0.0).sum(dtype=wide)
        return cls(torch.stack(parts).sum(0, dtype=wide), bias_sum, ones.sum(), norms_of(weight, problem.real))


def bound(
    problem: Problem, group: Group, whole: Whole, slack: Slack, tile: Tile, frames: tuple[int, int], table: Tensor,
    classes: Tensor | None, ub_blank: Tensor, ub_label: Tensor,
) -> Tensor:  # fmt: skip
    """Write upper bounds of both emissions of every node of some frames of each utterance, and return the classes (Q, S+1) that
    they were made with, which may be given. `table` (G, 7) says where nodes lie in the outputs; else it is the group's."""
    lengths, here = problem.lengths, slice(group.first, group.stop)
    stretches = on_device(problem.device, cut(lengths.frames[here], lengths.labels[here], frames))  # (Q, 3)
    rows = group.joint_rows(problem.activation)
    few = how_many(problem, group, whole, stretches, tile) if classes is None else classes.shape[1] - 1
    found = []
    some = stretches_at_once(problem.weight.shape[1], few)
    for first in range(0, len(stretches), some):
        part = stretches[first : first + some]
        if classes is None:
            chosen = torch.cat([found for _, found, _ in choose(problem, group, part, tile, few)])
        else:
            chosen = with_first(classes[first : first + some], problem.blank)
        found.append(chosen)
        problem.kernels.bounds(
            *rows, table, group.targets, problem.weight, problem.bias, part, chosen,
            *gather(problem, whole, part, chosen, slack), ub_blank, ub_label,
            problem.dropout_in(group),
        )  # fmt: skip
    return torch.cat(found)


def with_first(classes: Tensor, blank: int) -> Tensor:
    """Classes (Q, S+1) that begin with this one, in whose place is what was the first."""
    found = torch.where(classes == blank, classes[:, :1], classes)
    found[:, 0] = blank
    return found


def how_many(problem: Problem, group: Group, whole: Whole, stretches: Tensor, tile: Tile) -> int:
    """How few classes make bounds nearly as close as many do, by the probes of some stretches; on a GPU, for which the
    host does not wait, a number between."""
    choices = bound_choices(problem.weight.shape[0])
    if problem.device.type != "cpu":
        return choices[len(choices) // 2]
    some = stretches[:: max(1, len(stretches) // SAMPLE)]
    gaps, likely = torch.zeros(len(choices), dtype=torch.float64), 0
    for scores, classes, best in choose(problem, group, some, tile, choices[-1]):
        likely += int((best > LIKELY).sum())
        scores = scores.clamp(min=torch.finfo(scores.dtype).min / scores.shape[1])  # classes that are none
        everything = scores.sum(1)  # of normalised scores (q P, V), whose true denominator is 1
        few = scores.gather(1, classes.repeat_interleave(PROBES, 0))  # (q P, S+1)
        for i, count in enumerate(choices):
            known = few[:, : count + 1]
            rest = (whole.size - count - 1).clamp(min=1)
            others = (everything - known.sum(1)) / rest + rest.log()
            gaps[i] -= torch.logaddexp(known.logsumexp(1), others).clamp(max=0).sum()
    gaps /= max(1, PROBES * len(some))
    close = (gaps <= NEARLY * gaps[-1] + NEAR) & (torch.tensor(choices) >= min(choices[-1], likely / len(some)))
    return choices[int(close.nonzero()[0])] if bool(close.any()) else choices[0]


def choose(
    problem: Problem, group: Group, stretches: Tensor, tile: Tile, few: int
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:  # fmt: skip
    """Normalised scores (q P, V) of the probes of some stretches at a time; their classes (q, S+1): blank, and those that are
    likeliest at a probe or, of the utterance's own labels, at a frame, the likeliest first; and the log of how likely."""
    tile = tile if tile.rows >= PROBES else Tile.of(problem, PROBES, gradient=False)
    node = probes(group.table, stretches)  # (Q, P)
    at_once = min(max(1, tile.rows // PROBES), probed_at_once(problem.weight.shape[0], problem.real.itemsize))
    for some, stretch in zip(node.split(at_once), stretches.split(at_once), strict=True):
        count = some.numel()
        here, found = tile.head(count), no_emissions(count, problem)
        forward_tile(problem, group, some.flatten(), here)
        place = torch.arange(count, device=problem.device)
        problem.lattice.emission(here.h, problem.bias, place, here.label, found)
        scores = here.h.to(problem.real)
        scores += problem.bias
        scores -= found.denominators[0].to(problem.real)[:, None]
        best = scores.view(*some.shape, -1).amax(1)  # (q, V)
        best.clamp_(min=torch.finfo(best.dtype).min)  # those that are no classes: blank must not be chosen before them
        best[:, problem.blank] = -torch.inf
        if problem.weight.shape[0] > FEW and problem.device.type == "cpu":
            add_labels(problem, group, stretch, tile, best)
        likeliest = best.topk(few, dim=1)
        yield scores, torch.cat((torch.full_like(some[:, :1], problem.blank), likeliest.indices), 1), likeliest.values


def add_labels(problem: Problem, group: Group, stretches: Tensor, tile: Tile, best: Tensor) -> None:
    """Raise `best` (Q, V) at the utterance's own labels to what each has beside the others and blank at any frame of a stretch:
    what a model hears at a frame is mostly one of them. One node a frame is looked at, of large utterances."""
    for g in stretches[:, 0].unique().tolist():
        row = group.table[g].tolist()
        labels = row[LABELS]
        if labels == 0 or row[FRAMES] * row[STRIDE] < LARGE:
            continue
        mine = (stretches[:, 0] == g).nonzero()[:, 0]
        first, stop = stretches[mine, 1:].unbind(1)
        step = int((stop - first).max())
        t = torch.minimum(first[:, None] + torch.arange(step), stop[:, None] - 1)  # (q, step): the last frame again and again
        node = (row[START] + t * row[STRIDE] + t * labels // row[FRAMES]).flatten()
        own = group.targets[row[TARGET_BASE] : row[TARGET_BASE] + labels]
        columns = torch.cat((own, own.new_tensor([problem.blank])))
        weight, bias = problem.weight[columns], problem.bias[columns]
        parts = []
        for some in node.split(max(1, tile.rows // step) * step):
            here = tile.head(some.numel()) if some.numel() <= tile.rows else Tile.of(problem, step, gradient=False, classes=0)
            joint_tile(problem, group, some, here)
            scores = torch.mm(here.z, weight.t()).to(problem.real).add_(bias)
            scores -= torch.logsumexp(scores, 1, keepdim=True)
            parts.append(scores.view(-1, step, labels + 1)[..., :-1].amax(1))
        found = torch.cat(parts)  # (q, U)
        best[mine] = best[mine].scatter_reduce(1, own.expand(len(mine), -1), found, "amax")


def gather(
    problem: Problem, whole: Whole, stretches: Tensor, classes: Tensor, slack: Slack
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """`rows`, `row_bias`, `rest` and `slack` of the kernel, for the classes (Q, S+1) of some stretches."""
    weight, bias = problem.weight[classes].to(problem.real), problem.bias[classes]  # (Q, S+1, D), (Q, S+1)
    counts = ~torch.isneginf(bias)
    rest = whole.size - counts.sum(1).to(problem.real)  # (Q,)
    others = (whole.weight_sum - torch.where(counts[..., None], weight, 0.0).sum(1)).to(problem.real)  # (Q, D)
    other_bias = (whole.bias_sum - torch.where(counts, bias, 0.0).sum(1)).to(problem.real)
    rows = torch.cat((weight, others[:, None]), 1), torch.cat((bias, other_bias[:, None]), 1)
    return *rows, rest, slack.of_stretches(stretches, classes, others, rest)


class Slack(NamedTuple):
    """How far rounding may let an exact log-probability rise above a bound that has none of this added.

    A score is an inner product of D terms. Summed in any order in a format of unit roundoff u it is off by at most D u |w| |z|;
    that holds of the exact pass and of the bounds, so twice that. Besides: joint encodings of both differ by a few roundings of
    a number below 1 for tanh and sigmoid, of a sum elsewhere; matrix products may round factors and scores further
    (`product_error`). A bias is added with one more rounding. A log-probability has two such scores: its own, and the
    denominator, which is off by no more than the worst of what it sums, or by the mean over the classes that a mean stands for.
    """

    of_class: Tensor  # (V,)
    of_all: Tensor  # () of all classes that there are, summed
    of_sums: Tensor  # () of a score of all rows summed: that sum is rounded, too
    of_labels: Tensor  # (G,) the largest of an utterance's own labels
    per_norm: Tensor  # of a score, for a row of norm 1
    counts: Tensor  # (V,) which classes there are
    eps: float

    @classmethod
    def of(cls, problem: Problem, group: Group, whole: Whole) -> Slack:
        eps, (vocab, dim) = torch.finfo(problem.real).eps, problem.weight.shape
        bounded = TABLE[problem.activation].bounded
        reach = problem.bias.new_full((), math.sqrt(dim))
        if not bounded:
            reach = longest(group.encoder_rows, group.table[:, FRAMES], problem.real)
            reach = reach + longest(group.predictor_rows, group.table[:, LABELS] + 1, problem.real)
        if problem.dropout is not None:
            reach = reach * problem.dropout.scale
        relative = (dim + 16) * eps + product_error(problem)  # eps = 2 u, twice D u
        per_norm = relative * reach + (8 * eps * math.sqrt(dim) if bounded else 4 * eps * reach)
        if problem.dropout is not None:  # a product more, rounded in the real dtype here and in the compute dtype there
            scale = problem.dropout.scale
            per_norm = per_norm * scale + (eps + torch.finfo(problem.compute).eps) * reach
        counts = ~torch.isneginf(problem.bias)
        of_class = per_norm * whole.norms + 2 * eps * torch.where(counts, problem.bias, 0.0).abs()
        of_all = torch.where(counts, of_class, 0.0).sum(dtype=wide_dtype(problem.device))
        a_sum = (min(ROWS_AT_ONCE, vocab) + 16) * eps / 2 + product_error(problem, single=True)
        of_sums = a_sum * reach * torch.where(counts, whole.norms, 0.0).sum()
        of_labels = of_class.new_zeros(len(group.table))
        if group.targets.numel():
            targets = group.targets.view(len(group.table), -1)
            used = torch.arange(targets.shape[1], device=targets.device) < group.table[:, LABELS, None]
            of_labels = of_class[torch.where(used, targets, problem.blank)].amax(1)
        return cls(of_class, of_all, of_sums, of_labels, per_norm, counts, eps)

    def of_scores(self, weight: Tensor, bias: Tensor) -> Tensor:
        """() for log-probabilities of a few rows of the output layer, and no others."""
        norms = norms_of(weight, bias.dtype)
        biases = torch.where(torch.isneginf(bias), 0.0, bias).abs()
        return 2 * (self.per_norm * norms + 2 * self.eps * biases).amax() + 32 * self.eps

    def of_stretches(self, stretches: Tensor, classes: Tensor, others: Tensor, rest: Tensor) -> Tensor:
        """(Q,), for the classes (Q, S+1), the summed rows (Q, D) of the others, and how many these are."""
        chosen, own = self.of_class[classes], self.of_labels[stretches[:, 0]]
        of_others = (self.of_all - torch.where(self.counts[classes], chosen, 0.0).sum(1, dtype=self.of_all.dtype)).clamp(min=0)
        of_others = of_others.to(rest.dtype) + self.of_sums + self.per_norm * torch.linalg.vector_norm(others, dim=1) + own
        mean = torch.where(rest > 0.5, of_others / (rest - 1).clamp(min=1), 0.0)  # a label may be one of them, and is taken out
        worst = torch.maximum(torch.maximum(chosen.amax(1), own), mean)
        return 2 * worst + 32 * self.eps  # and the exponentials' and the logarithm's own


def product_error(problem: Problem, *, single: bool = False) -> float:
    """What matrix products round besides sums in the real dtype, relative to |w| |z|; `single`: where they have that dtype.

    In half precision they take rounded encodings and round the score: half an epsilon each, and a little for what is rounded
    twice. In float32 PyTorch may round both factors: here, and, on plain PyTorch kernels, in the bounds.
    """
    rounds = problem.real == torch.float32 and torch.get_float32_matmul_precision() != "highest"
    if problem.compute != problem.real and not single:
        return 1.5 * torch.finfo(problem.compute).eps
    return 2 * torch.finfo(torch.bfloat16).eps if rounds else 0.0


def norms_of(rows: Tensor, real: torch.dtype) -> Tensor:
    """(N,) of rows (N, D): some at a time, for PyTorch makes a copy in the real dtype of what it takes the norms of."""
    parts = rows.split(max(1, ELEMENTS_AT_ONCE // rows.shape[1]))
    return torch.cat([torch.linalg.vector_norm(part, dim=1, dtype=real) for part in parts])


def longest(rows: Tensor, lengths: Tensor, real: torch.dtype) -> Tensor:
    """The largest norm of an utterance's own rows, so many (G,) of each; what the padding holds is nobody's."""
    norms = norms_of(rows, real).view(len(lengths), -1)
    used = torch.arange(norms.shape[1], device=rows.device) < lengths[:, None]
    return torch.where(used, norms, 0.0).amax()


def cut(frames: Sequence[int], labels: Sequence[int], some: tuple[int, int]) -> list[tuple[int, int, int]]:
    """(utterance, first frame, stop) of every stretch of some frames of each utterance."""
    found = []
    for g, (count, width) in enumerate(zip(frames, labels, strict=True)):
        step, stop = stretch_frames(width + 1), min(some[1], count)
        found += [(g, t, min(t + step, stop)) for t in range(some[0], stop, step)]
    return found


def probes(table: Tensor, stretches: Tensor) -> Tensor:
    """(Q, P) ascending nodes spread over frames and labels of each stretch, another set of labels in the next one."""
    at, stretch = torch.arange(PROBES, device=stretches.device), torch.arange(len(stretches), device=stretches.device)
    row = table[stretches[:, 0]]  # (Q, 7)
    frames = (stretches[:, 2] - stretches[:, 1])[:, None]
    t = stretches[:, 1, None] + (2 * (at * 3 % PROBES) + 1) * frames // (2 * PROBES)
    width = row[:, LABELS, None] + 1
    u = ((2 * at + 1) * width // (2 * PROBES) + stretch[:, None] * 5) % width
    return (row[:, START, None] + t * row[:, STRIDE, None] + u).sort(1).values
