"""Random numbers and sizes for random joints."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import torch
from torch import Tensor

WORK, MOST_NODES = 16e6, 6000  # of a joint: N V (D + 32), and nodes


class Draw:
    """Random numbers of one seed: plain ones for shapes, tensors for weights."""

    def __init__(self, seed: int) -> None:
        self.plain = random.Random(seed)
        self.tensors = torch.Generator().manual_seed(seed)

    def chance(self, p: float) -> bool:
        return self.plain.random() < p

    def choice(self, options):
        return self.plain.choice(options)

    def number(self, low: float, high: float) -> float:
        return self.plain.uniform(low, high)

    def integer(self, low: int, high: int) -> int:
        """low..high, both included."""
        return self.plain.randint(low, max(low, high))

    def spread(self, low: float, high: float) -> float:
        """As likely between 1 and 2 as between 100 and 200."""
        return math.exp(self.plain.uniform(math.log(low), math.log(high)))

    def size(self, low: int, high: int) -> int:
        return min(high, max(low, round(self.spread(low, max(low, high)))))

    def some(self, population, count: int) -> list[int]:
        return sorted(self.plain.sample(list(population), max(0, min(count, len(population)))))

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.tensors, dtype=torch.float64)

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self.tensors, dtype=torch.float64)

    def activation(self) -> str:
        return self.choice(("tanh", "tanh", "tanh", "identity", "relu", "sigmoid", "gelu", "silu"))


@dataclass
class Shape:
    frames: list[int]
    labels: list[int]
    vocab: int
    dim: int

    def __str__(self) -> str:
        return f"T {self.frames}, U {self.labels}, V {self.vocab}, D {self.dim}"


def shape_of(draw: Draw, *, vocab: tuple[int, int] = (3, 2000), dim: tuple[int, int] = (1, 128), work: float = WORK) -> Shape:
    """Sizes whose products stay within the work; a third of them several utterances, some of which are very unequal."""
    V, D = draw.size(*vocab), draw.size(*dim)
    nodes = int(min(MOST_NODES, max(6.0, work / (V * (D + 32)))))
    U = draw.integer(0, min(40, int(nodes**0.5)))
    frames, labels = [max(1, draw.size(max(1, nodes // (4 * (U + 1))), max(1, nodes // (U + 1))))], [U]
    if draw.chance(0.1):  # a lattice of more labels than frames
        frames[0], labels[0] = min(frames[0], U + 1), max(frames[0], U)
        labels[0] = min(labels[0], max(1, nodes // frames[0] - 1))
    while draw.chance(0.25) and len(frames) < 5:
        frames.append(draw.choice((1, draw.size(1, frames[0]))))
        labels.append(draw.choice((0, draw.integer(0, labels[0]))))
    if draw.chance(0.5):
        frames, labels = frames[::-1], labels[::-1]
    return Shape(frames, labels, V, D)
