"""Sampled softmax: the loss over a few classes, as parts of a batch that share them. Source: arXiv 2203.16868.

A part is one utterance with classes of its own, or the whole batch. It is an ordinary problem with the rows W[S] and b[S], and
with labels that are positions in S; what its gradients add up to goes back to the rows of the whole weight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from samplewise.checks import Lengths
from samplewise.errors import TransducerError
from samplewise.ops.problem import Gradients, Inputs, real_dtype
from samplewise.topology import Topology
from samplewise.vocabulary import find


@dataclass(frozen=True)
class Part:
    """Utterances first..stop-1 over their classes (S,), and durations if there are any: tensors, lengths, the blank's position
    in them, and the topology over them."""

    first: int
    stop: int
    inputs: Inputs
    lengths: Lengths
    classes: Tensor
    blank: int
    topology: Topology


def parts(inputs: Inputs, lengths: Lengths, blank: int, topology: Topology) -> Iterator[Part]:
    """The parts of a batch, one at a time. Labels are known to be classes of the whole vocabulary; blank is 0..V-1."""
    weight, bias = inputs.weight.detach(), inputs.bias
    assert inputs.classes is not None and inputs.class_bias is not None
    rows, corrections = inputs.classes.cpu(), inputs.class_bias
    targets = inputs.targets.cpu().long()
    together = rows.shape[0] == 1
    for b in range(1 if together else len(lengths.frames)):
        first, stop = (0, len(lengths.frames)) if together else (b, b + 1)
        classes = rows[b][rows[b] >= 0]  # (S,)
        correction = corrections[b, : classes.numel()].to(device=weight.device, dtype=real_dtype(weight.dtype))
        classes, correction = with_blanks(classes, correction, topology.blanks(blank))
        here, some = slice(first, stop), Lengths(lengths.frames[first:stop], lengths.labels[first:stop])
        columns = positions(classes, targets[here], some.labels, first)
        own = renumbering(classes)
        used = torch.cat((classes, torch.arange(weight.shape[0] - topology.extra, weight.shape[0], device="cpu")))
        on_device = used.to(weight.device, non_blocking=True)
        own_bias = torch.nn.functional.pad(correction, (0, topology.extra))
        if bias is not None:
            own_bias = own_bias + bias.detach().index_select(0, on_device)
        part = inputs._replace(
            encoder_out=inputs.encoder_out[here], predictor_out=inputs.predictor_out[here],
            weight=weight.index_select(0, on_device), bias=own_bias, targets=columns,
            alignment=None if inputs.alignment is None else inputs.alignment[here],
        )  # fmt: skip
        yield Part(first, stop, part, some, on_device, own(blank), topology.renumbered(blank, own))


def renumbering(classes: Tensor) -> Callable[[int], int]:
    """From one of some ascending classes to its place."""
    return lambda column: int(torch.searchsorted(classes, column))


def with_blanks(classes: Tensor, correction: Tensor, blanks: list[int]) -> tuple[Tensor, Tensor]:
    """Ascending classes (S,) and their corrections, with those blanks that are missing, uncorrected."""
    missing = [column for column in blanks if not bool((classes == column).any())]
    if not missing:
        return classes, correction
    classes, order = torch.cat((classes, classes.new_tensor(missing))).sort()
    return classes, torch.nn.functional.pad(correction, (0, len(missing)))[order.to(correction.device)]


def positions(classes: Tensor, targets: Tensor, lengths: list[int], first: int) -> Tensor:
    """Where the targets (G, U) are among the ascending classes (S,); 0 beyond the lengths."""
    columns = find(classes.expand(targets.shape[0], -1).contiguous(), targets)
    used = torch.arange(targets.shape[1], device="cpu")[None] < torch.tensor(lengths, device="cpu")[:, None]
    missing = used & (columns < 0)
    if bool(missing.any()):
        g, u = missing.nonzero()[0].tolist()
        raise TransducerError(
            f"targets[{first + g}, {u}] is {int(targets[g, u])}, which is not among the {classes.numel()} classes of the "
            "sampled vocabulary: sample it from the targets that the loss is given"
        )
    return columns.masked_fill_(~used, 0)


def add_part(total: Gradients, part: Gradients, classes: Tensor) -> None:
    """The part's gradients of W[S] and b[S] to the rows of the whole weight. The encodings' are there already."""
    if total.weight is not None and part.weight is not None:
        total.weight.index_add_(0, classes, part.weight)
    total.bias.index_add_(0, classes, part.bias)
