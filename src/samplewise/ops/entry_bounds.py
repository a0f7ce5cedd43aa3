"""Upper bounds of the entries of every topology: of the vocabulary's softmax from a few classes, of all else to the last digit.

The head over the vocabulary is a problem of its own, whose blank and labels are bounded as those of the regular lattice
(`bounds.py`); where it has several blanks, one launch each. Durations and a blank's sigmoid have few columns: their scores are
computed at every node, and what rounding may make of them is added.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from samplewise.ops.bounds import Slack, Whole, bound
from samplewise.ops.lattices import Arcs, Emissions, TwoArcs
from samplewise.ops.problem import Group, Problem, wide_dtype
from samplewise.ops.tiles import Tile, floats, joint_tile
from samplewise.topology import Bound


@dataclass(frozen=True)
class Vocabulary:
    """A problem's head over the vocabulary as a problem with a regular lattice, and where its numbers belong."""

    problem: Problem
    blanks: tuple[tuple[int, int], ...]  # entry and class of each blank that the head has
    label: int  # the entry of the next label
    shift: float
    others: Others | None

    @classmethod
    def of(cls, problem: Problem) -> Vocabulary:
        lattice = problem.lattice
        if not isinstance(lattice, Arcs):
            return cls(problem, ((0, problem.blank),), 1, 0.0, None)
        form, topology = lattice.form, lattice.topology
        start, stop, drop, _, shift = form.heads[topology.label_head]
        weight, bias = problem.weight[start:stop], problem.bias[start:stop]
        if drop >= 0:
            bias = bias.index_fill(0, torch.tensor([drop - start], device=bias.device), -torch.inf)
        blanks = tuple((e, c) for e, (head, c, _) in enumerate(form.entries) if head == topology.label_head and c >= 0)
        tokens = replace(problem, weight=weight, bias=bias, lattice=TwoArcs(problem.kernels, problem.blank))
        return cls(tokens, blanks or ((0, problem.blank),), topology.label_entry, shift, Others.of(problem, lattice))

    def tile(self, tile: Tile) -> Tile:
        """The tile with logits of these classes alone."""
        return tile.of_classes(self.problem.weight.shape[0])


@dataclass(frozen=True)
class Others:
    """The heads besides, as an output layer of its own."""

    weight: Tensor
    bias: Tensor
    form: Bound
    entries: slice

    @classmethod
    def of(cls, problem: Problem, lattice: Arcs) -> Others | None:
        columns, form, entries = lattice.form.without(lattice.topology.label_head)
        if not columns:
            return None
        index = torch.tensor(columns, device=problem.device)
        return cls(problem.weight[index], problem.bias[index], form, entries)

    def fill(self, problem: Problem, group: Group, first: int, slack: Slack, tile: Tile, entries: Tensor) -> None:
        """Upper bounds of these heads' entries (E, N) of nodes first..first+N-1."""
        out = entries[self.entries]
        weight = self.weight.t()
        h = floats(problem, tile.rows, len(self.weight))
        found = Emissions(
            torch.empty(len(self.form.heads), tile.rows, dtype=wide_dtype(problem.device), device=problem.device),
            torch.empty(len(out), tile.rows, dtype=problem.real, device=problem.device),
        )
        place = torch.arange(tile.rows, device=problem.device)
        for start in range(0, entries.shape[1], tile.rows):
            stop = min(start + tile.rows, entries.shape[1])
            here = tile.head(stop - start)
            joint_tile(problem, group, torch.arange(first + start, first + stop, device=problem.device), here)
            scores = torch.mm(here.z, weight, out=h[: stop - start])
            problem.kernels.entries(scores, self.bias, place[: stop - start], here.label, self.form, *found)
            out[:, start:stop] = found.entries[:, : stop - start]
        out += slack.of_scores(self.weight, self.bias)


def bound_entries(
    vocabulary: Vocabulary, problem: Problem, group: Group, whole: Whole, slack: Slack, tile: Tile, first: int,
    frames: tuple[int, int], table: Tensor, classes: Tensor | None, entries: Tensor,
) -> Tensor:  # fmt: skip
    """Write upper bounds of all entries (E, N), of which the first is that of node `first`; else as `bound`."""
    tokens, narrow = vocabulary.problem, vocabulary.tile(tile)
    label = entries[vocabulary.label]
    for entry, column in reversed(vocabulary.blanks):  # the labels' bounds are those of the last, the ordinary one
        head = replace(tokens, blank=column) if column != tokens.blank else tokens
        found = bound(head, group, whole, slack, narrow, frames, table, classes, entries[entry], label)
        classes = found if classes is None else classes  # a piece is bounded with the same ones whenever it is its turn
    assert classes is not None
    if vocabulary.shift:
        for entry in (vocabulary.label, *(entry for entry, _ in vocabulary.blanks)):
            entries[entry] -= vocabulary.shift
    if vocabulary.others is not None:
        vocabulary.others.fill(problem, group, first, slack, tile, entries)
    if problem.timing is not None:
        for start in range(0, entries.shape[1], tile.rows):
            at = torch.arange(start, min(start + tile.rows, entries.shape[1]), device=problem.device)
            here = tile.head(len(at))
            problem.kernels.locate(at + first, group.table, group.targets, here.frame, here.token, here.label)
            problem.adjust(group, entries, at, here.frame, here.token)
    return classes
