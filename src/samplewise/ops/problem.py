"""One call of the loss as its passes see it: the inputs in one dtype, a group of utterances, and where gradients gather."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from samplewise.checks import Lengths
from samplewise.kernels.backend import exponentials_of
from samplewise.kernels.layout import packed_table
from samplewise.kernels.masks import Dropout
from samplewise.kernels.protocol import Kernels
from samplewise.ops.lattices import Lattice, TwoArcs
from samplewise.ops.timing import Timing

SUREST = 1 / 64  # nats a frame or label: measured, see docs/methods.md
ENCODER, PREDICTOR, WEIGHT, BIAS = 1, 2, 4, 8  # which gradients are wanted, as bits


def real_dtype(compute: torch.dtype) -> torch.dtype:
    """The dtype of denominators, occupancies and gradient sums: float32, or float64 for float64 inputs."""
    return torch.float64 if compute == torch.float64 else torch.float32


def wide_dtype(device: torch.device) -> torch.dtype:
    """The dtype of losses, of sums along a lattice and of log denominators: float64 where the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


def gradient_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which a finished gradient waits for the upstream one: float16 alone has not the range for that."""
    return torch.float32 if dtype == torch.float16 else dtype


def share_of(tolerance: float, losses: Tensor, lengths: Lengths) -> float:
    """The share of the occupancy that gradients may leave out for utterances with these losses (G,) and lengths.

    A node has at most its occupancy in each element of dL/dh, but where a model is sure the nodes that count have less: all of
    an utterance's elements together are about as large as its loss, its occupancies T + U. So the tolerance is one of the loss
    where that is less, by the surest of the utterances.
    """
    if tolerance == 0.0:
        return 0.0
    sizes = torch.tensor([t + u for t, u in zip(*lengths, strict=True)], dtype=losses.dtype, device=losses.device)
    rate = torch.where(torch.isfinite(losses), losses, torch.inf) / sizes
    return tolerance * min(1.0, max(SUREST, float(rate.amin())))


class Inputs(NamedTuple):
    """The tensors of a call, in the order in which the operators take them. classes and class_bias (G, S) are those of a
    sampled vocabulary, for each utterance (G = B) or for all (G = 1); alignment (B, U, 2) of labels to frames."""

    encoder_out: Tensor
    predictor_out: Tensor
    weight: Tensor
    bias: Tensor | None
    targets: Tensor
    encoder_lengths: Tensor
    target_lengths: Tensor
    classes: Tensor | None
    class_bias: Tensor | None
    alignment: Tensor | None = None


class Exponentials(NamedTuple):
    """What tanh and sigmoid of the sums of two rows are made of, float32: exp(2x) or exp(-x) of the encodings' real rows."""

    encoder: Tensor  # (F, D)
    predictor: Tensor  # (K, D)


@dataclass(frozen=True)
class Problem:
    """Inputs of the loss. encoder_out (B, T, D), predictor_out (B, U+1, D), weight (V, D) in the compute dtype, bias (V,) in
    the real dtype, targets (B, U) int64, lengths on the host."""

    encoder_out: Tensor
    predictor_out: Tensor
    weight: Tensor
    bias: Tensor
    targets: Tensor
    lengths: Lengths
    blank: int
    activation: str
    kernels: Kernels
    lattice: Lattice
    timing: Timing | None = None
    dropout: Dropout | None = None  # of the joint encodings

    @property
    def compute(self) -> torch.dtype:
        return self.weight.dtype

    @property
    def real(self) -> torch.dtype:
        return self.bias.dtype

    @property
    def device(self) -> torch.device:
        return self.weight.device

    @property
    def is_plain(self) -> bool:
        """Whether this is the regular lattice with nothing besides, of which there are kernels that do more at once."""
        return isinstance(self.lattice, TwoArcs) and self.timing is None and self.dropout is None

    def adjust(self, group: Group, out: Tensor, at: Tensor, frame: Tensor, token: Tensor) -> None:
        """Make the label entries of `out` (E, N) at some places what a delay penalty and an alignment say; frame and token are
        the nodes' rows."""
        if self.timing is not None:
            padded, width = self.encoder_out.shape[1], self.predictor_out.shape[1]
            self.timing.apply(out[self.lattice.label_entry], at, group.first + frame // padded, frame % padded, token % width)

    def reachable(self, group: Group) -> Tensor | None:
        """The nodes of a group that the alignment leaves to a path; None if it leaves all."""
        if self.timing is None or self.timing.alignment is None:
            return None
        parts, start = [], 0
        for b in range(group.first, group.stop):
            frames, labels = self.lengths.frames[b], self.lengths.labels[b]
            first, last = self.timing.reachable(b, frames, labels)
            t = torch.arange(frames, device=self.device)[:, None]
            parts.append(((t >= first) & (t <= last)).flatten().nonzero()[:, 0] + start)
            start += frames * (labels + 1)
        return torch.cat(parts)

    def dropout_in(self, group: Group) -> Dropout | None:
        """The dropout of the group's rows."""
        return None if self.dropout is None else self.dropout._replace(first=self.dropout.first + group.first)

    def drop(self, group: Group, z: Tensor, frame: Tensor, token: Tensor) -> None:
        """Mask joint encodings, or their gradients (R, D), in place."""
        dropout = self.dropout_in(group)
        if dropout is not None:
            self.kernels.drop(z, frame, token, dropout)

    @property
    def may_use_exponentials(self) -> bool:
        """Whether groups may have exponentials of their encodings, if the numbers there allow it."""
        floats = (self.encoder_out.dtype, self.predictor_out.dtype, self.compute)
        known = self.activation in ("tanh", "sigmoid") and torch.float64 not in floats
        return known and exponentials_of(self.kernels) is not None

    def share(self, tolerance: float, group: Group, losses: Tensor) -> float:
        """Of the occupancy of a group with these losses (G,), what its gradients may leave out."""
        frames, labels = (sizes[group.first : group.stop] for sizes in self.lengths)
        return share_of(tolerance, losses, Lengths(frames, labels))

    def group(self, first: int, stop: int, exponentials: bool = False) -> Group:
        """Utterances first..stop-1 with their nodes packed: no node stands for padding. With exponentials, if they serve and
        there is memory for them, which the caller says."""
        frames, labels = self.lengths.frames[first:stop], self.lengths.labels[first:stop]
        encoder_out, predictor_out = self.encoder_out[first:stop], self.predictor_out[first:stop]
        targets = self.targets[first:stop]
        table, nodes = packed_table(frames, labels, encoder_out.shape[1], predictor_out.shape[1], targets.shape[1], self.device)
        rows = encoder_out.contiguous().flatten(0, 1), predictor_out.contiguous().flatten(0, 1)
        made = None
        if exponentials and self.may_use_exponentials:
            made = exponentials_of(self.kernels)(*rows, table, self.activation)  # type: ignore[misc]
        return Group(
            first, stop, table, nodes, *rows, targets.contiguous().flatten(), None if made is None else Exponentials(*made)
        )


@dataclass(frozen=True)
class Group:
    """Some consecutive utterances: rows of their encodings, flat targets, and the table of their packed nodes."""

    first: int
    stop: int
    table: Tensor
    nodes: int
    encoder_rows: Tensor
    predictor_rows: Tensor
    targets: Tensor
    exponentials: Exponentials | None = None

    def joint_rows(self, activation: str) -> tuple[Tensor, Tensor, str]:
        """What the kernel `joint` makes joint encodings of: the rows, or their exponentials and what then is to be done."""
        if self.exponentials is None:
            return self.encoder_rows, self.predictor_rows, activation
        return *self.exponentials, f"{activation} of exponentials"


class Clamp(NamedTuple):
    """What bounds every element of an utterance's dL/dh, and the weights (B,) of the utterances, which come after it. Until
    then dL/dh is `unit` times as large, which keeps float16 out of its subnormal numbers."""

    limit: float
    weights: Tensor
    unit: float = 1.0


@dataclass
class Gradients:
    """The gradients that are wanted. Weights and bias add up in the real dtype over all tiles; encodings by group."""

    encoder: Tensor | None
    predictor: Tensor | None
    weight: Tensor | None
    bias: Tensor
    clamp: Clamp | None = None
    _rows: tuple[Tensor | None, Tensor | None] = field(default=(None, None))

    @classmethod
    def of(
        cls, encoder_out: Tensor, predictor_out: Tensor, weight: Tensor, real: torch.dtype, wanted: int,
        clamp: Clamp | None = None,
    ) -> Gradients:  # fmt: skip
        def zeros(like: Tensor, dtype: torch.dtype) -> Tensor:
            return torch.zeros(like.shape, dtype=dtype, device=like.device)

        return cls(
            encoder=zeros(encoder_out, gradient_dtype(encoder_out.dtype)) if wanted & ENCODER else None,
            predictor=zeros(predictor_out, gradient_dtype(predictor_out.dtype)) if wanted & PREDICTOR else None,
            weight=zeros(weight, real) if wanted & WEIGHT else None,
            bias=zeros(weight[:, 0], real),
            clamp=clamp,
        )

    def part(self, first: int, stop: int, classes: int) -> Gradients:
        """Gradients of utterances first..stop-1 over so many classes: rows of the encodings', and zeros of the weight's own."""
        rows = slice(first, stop)
        return Gradients(
            None if self.encoder is None else self.encoder[rows],
            None if self.predictor is None else self.predictor[rows],
            None if self.weight is None else self.weight.new_zeros(classes, self.weight.shape[1]),
            self.bias.new_zeros(classes),
            None if self.clamp is None else self.clamp._replace(weights=self.clamp.weights[rows]),
        )

    def in_lattice(self, weights: Tensor) -> Tensor:
        """What lattices take as these weights of utterances: one unit each where a clamp comes before the weights."""
        return weights if self.clamp is None else torch.full_like(weights, self.clamp.unit)

    @property
    def wants_encodings(self) -> bool:
        return self.encoder is not None or self.predictor is not None

    def open(self, problem: Problem, group: Group) -> tuple[Tensor, Tensor]:
        """Rows that the group's tiles add to: views of the outputs, or buffers where the outputs have another dtype."""

        def rows(output: Tensor | None, like: Tensor) -> Tensor:
            if output is not None and output.dtype == problem.real:
                return output[group.first : group.stop].flatten(0, 1)
            return torch.zeros(like.shape, dtype=problem.real, device=like.device)

        self._rows = (rows(self.encoder, group.encoder_rows), rows(self.predictor, group.predictor_rows))
        return self._rows  # type: ignore[return-value]

    def scale_(self, factor: float) -> None:
        for gradient in (self.encoder, self.predictor, self.weight, self.bias):
            if gradient is not None:
                gradient.mul_(factor)

    def poison_(self, utterances: list[int], lengths: Lengths) -> None:
        """Make NaN what a weight that is not finite touches: the utterance's own encodings, and what all share."""
        for b in utterances:
            if self.encoder is not None:
                self.encoder[b, : lengths.frames[b]] = torch.nan
            if self.predictor is not None:
                self.predictor[b, : lengths.labels[b] + 1] = torch.nan
            if self.weight is not None:
                self.weight.fill_(torch.nan)
            self.bias.fill_(torch.nan)

    def close(self, problem: Problem, group: Group) -> None:
        """Round the buffers of a finished group into the outputs."""
        for output, rows in zip((self.encoder, self.predictor), self._rows, strict=True):
            if output is not None and output.dtype != problem.real and rows is not None:
                output[group.first : group.stop] = rows.view_as(output[group.first : group.stop])
        self._rows = (None, None)
