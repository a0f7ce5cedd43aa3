"""The tensors of a case: encodings, output layer, targets, lengths; the same numbers on every machine with the same torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from samplewise.bench.cases import Case
from samplewise.bench.errors import BenchError
from samplewise.bench.joints import directory, load

SCORE = 12.0  # of the planted class at a frame, in nats
NOISE = 0.3  # standard deviation of what is added to both encodings
BLANK_BIAS = 1.0


@dataclass(frozen=True)
class Workload:
    """Inputs of a transducer loss; blank is class 0 and the activation tanh.

    encoder_out (B, T, D), predictor_out (B, U+1, D), weight (V, D), bias (V,), targets (B, U) int64, lengths (B,) int64.
    """

    encoder_out: Tensor
    predictor_out: Tensor
    weight: Tensor
    bias: Tensor
    targets: Tensor
    encoder_lengths: Tensor
    target_lengths: Tensor

    @property
    def learned(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.encoder_out, self.predictor_out, self.weight, self.bias

    @property
    def integers(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.targets, self.encoder_lengths, self.target_lengths

    @property
    def input_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in (*self.learned, *self.integers))

    @property
    def gradient_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.learned)

    def asking(self, gradients: bool) -> Workload:
        """The same numbers as leaves that ask for gradients, or do not."""
        leaves = [tensor.detach().requires_grad_(gradients) for tensor in self.learned]
        return Workload(leaves[0], leaves[1], leaves[2], leaves[3], *self.integers)


def make_workload(case: Case) -> Workload:
    if case.weights == "trained":
        return trained_workload(case)
    if case.weights == "sure":
        return sure_workload(case)
    generator = torch.Generator().manual_seed(case.seed)
    frames, labels = case.lengths()
    B, T, U, V, D = case.batch, case.frames, case.labels, case.classes, case.dim

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    targets = torch.randint(1, V, (B, U), generator=generator)
    lengths = torch.tensor(frames), torch.tensor(labels)
    bias = torch.zeros(V)
    if case.weights == "random":
        encoder_out, predictor_out, weight = normal(B, T, D), normal(B, U + 1, D), normal(V, D) * D**-0.5
        bias = 0.1 * normal(V)
    else:
        weight = normal(V, D) * max(D**-0.5, 20.0 / D)  # large enough for SCORE within the reach of tanh
        bias[0] = BLANK_BIAS
        planted = plant(targets, frames, labels, T, generator)  # (B, T)
        encoder_out = pointing(weight)[planted].add_(normal(B, T, D), alpha=NOISE)
        predictor_out = NOISE * normal(B, U + 1, D)
    return Workload(encoder_out, predictor_out, weight * case.scale, bias, targets, *lengths)


def sure_workload(case: Case) -> Workload:
    """One utterance with next to no loss; D is V. A frame that speaks of a label is not heard any more once it is emitted."""
    targets = torch.arange(case.labels) % (case.classes - 1) + 1
    encoder_out, predictor_out = torch.zeros(1, case.frames, case.dim), torch.zeros(1, case.labels + 1, case.dim)
    encoder_out[0, torch.linspace(1, case.frames - 2, case.labels).long(), targets] = 20.0
    predictor_out[0, 1:].scatter_(1, targets[:, None], -20.0)
    weight, bias = 40.0 * torch.eye(case.classes, case.dim), torch.zeros(case.classes)
    weight[0], bias[0] = 0.0, 20.0
    return Workload(
        encoder_out, predictor_out, weight, bias, targets[None], torch.tensor([case.frames]), torch.tensor([case.labels])
    )


def trained_workload(case: Case) -> Workload:
    """Utterances of a trained model's file, joined as the case says, cut to its lengths, and padded with zeros."""
    arrays = {name: torch.from_numpy(array) for name, array in load(directory() / f"{case.source}.npz").items()}
    frames, labels = case.lengths()
    encoder_out, predictor_out = (torch.zeros(case.batch, n, case.dim) for n in (case.frames, case.labels + 1))
    targets = torch.zeros(case.batch, case.labels, dtype=torch.int64)
    for b, (some, t, u) in enumerate(zip(case.utterances[: case.batch], frames, labels, strict=True)):
        rows = [arrays[f"predictor_out_{i}"] for i in some]
        rows = [*(row[:-1] for row in rows[:-1]), rows[-1]]  # what has seen all labels of one sees none of the next
        encoder_out[b, :t] = torch.cat([arrays[f"encoder_out_{i}"] for i in some])[:t]
        predictor_out[b, : u + 1] = torch.cat(rows)[: u + 1]
        targets[b, :u] = torch.cat([arrays[f"targets_{i}"] for i in some])[:u]
    lengths = torch.tensor(frames), torch.tensor(labels)
    weight, bias, targets = of_classes(arrays["weight"], arrays["bias"], targets, case.classes)
    return Workload(encoder_out, predictor_out, weight * case.scale, bias, targets, *lengths)


def of_classes(weight: Tensor, bias: Tensor, targets: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The output layer with so many classes: blank, the labels that occur and then the first others; or all, and then all of
    them again and again, each 5 nats less likely than itself."""
    classes = len(weight)
    used = torch.zeros(classes, dtype=torch.bool)
    used[0] = used[targets] = True
    if count < int(used.sum()):
        raise BenchError(f"{count} classes are too few: {int(used.sum())} occur")
    if count >= classes:
        again = torch.arange(count) % classes
        return weight[again], bias[again] - 5.0 * (torch.arange(count) >= classes), targets
    used[(~used).nonzero()[: count - int(used.sum()), 0]] = True
    return weight[used], bias[used], (used.cumsum(0) - 1)[targets]


def plant(targets: Tensor, frames: list[int], labels: list[int], width: int, generator: torch.Generator) -> Tensor:
    """The class that each frame speaks of, (B, width): the labels in order at random frames, blank (0) at the others."""
    planted = torch.zeros(len(frames), width, dtype=torch.int64)
    for b, (t, u) in enumerate(zip(frames, labels, strict=True)):
        u = min(u, t)
        chosen = torch.randperm(t, generator=generator)[:u].sort().values
        planted[b, chosen] = targets[b, :u]
    return planted


def pointing(weight: Tensor) -> Tensor:
    """Pre-activations x (V, D) along the rows of `weight` with tanh(x_v) . weight_v = SCORE."""
    low, high = torch.zeros(len(weight), 1), torch.full((len(weight), 1), 100.0)
    for _ in range(40):
        middle = (low + high) / 2
        reached = (torch.tanh(middle * weight) * weight).sum(1, keepdim=True) >= SCORE
        low, high = torch.where(reached, low, middle), torch.where(reached, middle, high)
    return high * weight
