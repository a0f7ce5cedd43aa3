"""Joints whose logits are planned: what is on at which frame and after how many labels, built for any activation.

So a class may hold a share of the probability of some rows or frames, a label may fit in places that no one alignment visits
together, or leak before its time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from samplewise.checks import ACTIVATIONS
from samplewise.reference import activation_of
from tests.draws import MOST_NODES, Draw, Shape
from tests.problems import Problem

LOGITS = 6e5  # of a planned joint: nodes times classes
OFF, ON = -30.0, 8.0  # encodings at which a gelu or silu is nothing, and plainly linear


@dataclass
class Plan:
    """Logits of one joint, planned: class v has logit base[v], plus the sum of what it has under each switch that is on.

    A switch belongs to frames or to rows (after u labels), and is on to some degree, 0..1, at each of them.
    """

    base: Tensor  # (V,)
    frames: list[int]
    targets: list[int]
    labels: list[int]
    blank: int
    by_frame: list[tuple[Tensor, dict[int, float]]] = field(default_factory=list)  # degrees (B, T), what classes gain
    by_row: list[tuple[Tensor, dict[int, float]]] = field(default_factory=list)  # degrees (U+1,), what classes gain

    @classmethod
    def of(cls, draw: Draw, shape: Shape, targets: list[int], low: float) -> Plan:
        """Blank at 0, everything else far below, at `low`."""
        base = torch.full((shape.vocab,), low, dtype=torch.float64)
        blank = 0
        base[blank] = 0.0
        return cls(base, shape.frames, targets, shape.labels, blank)

    def at_frames(self, places: list[list[int]] | list[dict[int, float]], gains: dict[int, float]) -> None:
        """`places`: of each utterance the frames at which the switch is on, or degrees by frame."""
        degree = torch.zeros(len(self.frames), max(self.frames), dtype=torch.float64)
        for b, some in enumerate(places):
            for t in some:
                if t < self.frames[b]:
                    degree[b, t] = some[t] if isinstance(some, dict) else 1.0
        self.by_frame.append((degree, gains))

    def at_rows(self, rows: list[int], gains: dict[int, float]) -> None:
        degree = torch.zeros(max(self.labels) + 1, dtype=torch.float64)
        degree[[u for u in rows if u <= max(self.labels)]] = 1.0
        self.by_row.append((degree, gains))

    def gain_to(self, classes: list[int], share: float) -> dict[int, float]:
        """What lifts these classes so that together they hold a share of the probability beside a blank at 0."""
        logit = math.log(share / (1 - share) / max(1, len(classes)))
        return {v: logit - float(self.base[v]) for v in classes}

    def build(self, draw: Draw, activation: str, noise: float, noise_dim: int) -> Problem:
        """The joint that has these logits, and random ones of size `noise` in `noise_dim` further dimensions."""
        B, T, U, V = len(self.frames), max(self.frames), max(self.labels), len(self.base)
        on, off = LEVELS[activation]
        of_frames, of_rows = len(self.by_frame), len(self.by_row)
        D = of_frames + of_rows + noise_dim
        encoder_out, predictor_out = torch.zeros(B, T, D).double(), torch.zeros(B, U + 1, D).double()
        if of_frames:
            encoder_out[..., :of_frames] = inverse(activation, torch.stack([degree for degree, _ in self.by_frame], 2))
        if of_rows:
            rows = inverse(activation, torch.stack([degree for degree, _ in self.by_row], 1))
            predictor_out[..., of_frames : of_frames + of_rows] = rows
        weight, bias = torch.zeros(V, D).double(), self.base.clone()
        for d, (_, gains) in enumerate(self.by_frame + self.by_row):
            classes, gain = torch.tensor(list(gains), dtype=torch.int64), torch.tensor(list(gains.values())).double()
            weight[classes, d] = gain / (on - off)
            bias[classes] -= weight[classes, d] * off
        if noise_dim:
            rest = slice(of_frames + of_rows, D)
            encoder_out[..., rest], predictor_out[..., rest] = draw.normal(B, T, noise_dim), draw.normal(B, U + 1, noise_dim)
            weight[:, rest] = draw.normal(V, noise_dim) * noise / noise_dim**0.5
        targets = torch.tensor(self.targets, dtype=torch.int64).expand(B, -1).clone()
        lengths = torch.tensor(self.frames), torch.tensor(self.labels)
        return Problem(encoder_out, predictor_out, weight, bias, targets, *lengths, self.blank)


LEVELS = {
    "identity": (1.0, 0.0),
    "relu": (1.0, 0.0),
    "tanh": (1.0, -1.0),
    "sigmoid": (1.0, 0.0),
    "silu": (ON, 0.0),
    "gelu": (ON, 0.0),
    "leaky_relu": (1.0, 0.0),
}


def inverse(activation: str, degree: Tensor) -> Tensor:
    """Encodings whose activation is between off and on to so large a degree, 0..1."""
    if activation == "identity":
        return degree
    if activation == "leaky_relu":
        return torch.where(degree > 0, degree, -0.01)
    if activation == "relu":
        return torch.where(degree > 0, degree, -1.0)
    if activation in ("tanh", "sigmoid"):
        return torch.logit(degree.clamp(1e-12, 1 - 1e-12)) / (2 if activation == "tanh" else 1)
    low, high = torch.zeros_like(degree), torch.full_like(degree, 2 * ON)
    for _ in range(60):
        middle = (low + high) / 2
        above = activation_of(activation)(middle) > ON * degree
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    return torch.where(degree > 0, low, OFF)


def planned_shape(draw: Draw, between: tuple[int, int] | None = None) -> Shape:
    """Mostly few classes and long rows: what is wrong by little a frame adds up along a row.

    Mostly more than eight rows, too: a method that looks at as many nodes at a time has not seen every row.
    """
    U = draw.integer(*(between or draw.choice(((1, 7), (8, 14), (8, 14)))))
    V = draw.size(max(30, 2 * U), draw.choice((300, 300, 1500)))
    most = max(U + 2, int(min(MOST_NODES, LOGITS / V) / (U + 1)))
    T = most if draw.chance(0.5) else max(U + 2, draw.integer(most // 4, most))
    frames, labels = [T], [U]
    if draw.chance(0.2):
        frames.append(draw.integer(U + 1, T))
        labels.append(draw.integer(0, U))
    return Shape(frames, labels, V, 0)


def distinct_labels(draw: Draw, shape: Shape) -> list[int]:
    """U labels of 1..V-1; a quarter of the time some of them are the same."""
    U = max(shape.labels)
    labels = draw.plain.sample(range(1, shape.vocab), U) if shape.vocab > U else [1] * U
    if draw.chance(0.25):
        labels = [draw.choice(labels[: draw.integer(1, 3)]) for _ in labels]
    return labels


def others(draw: Draw, shape: Shape, targets: list[int], count: int) -> list[int]:
    """Classes that are neither blank nor labels."""
    return draw.some(set(range(1, shape.vocab)) - set(targets), count)


def fit_labels(draw: Draw, plan: Plan, shape: Shape, fit: float) -> list[list[int]]:
    """Let every label fit at a frame of its own, in order, with logit `fit`; returns these frames by utterance."""
    U = max(shape.labels)
    bunched = draw.chance(0.5)  # at the start and at the end, with a long way between, or anywhere
    places = []
    for T in shape.frames:
        pool = [t for t in range(T) if t < T // 5 or t >= T - T // 5] if bunched else list(range(T))
        places.append(draw.some(pool if len(pool) >= U else range(T), U))
    for u in range(U):
        v = plan.targets[u]
        plan.at_frames([[at[u]] if u < len(at) else [] for at in places], {v: fit - float(plan.base[v])})
    return places


def leaks(draw: Draw, plan: Plan, shape: Shape, free: list[int]) -> str:
    """Give classes of `free` a share of some rows or frames; what is said of it."""
    U, share = max(shape.labels), draw.choice((0.005, 0.02, 0.05, 0.2, 0.4))
    count = draw.choice((1, 1, 2, 4, 8, 40))
    kind = draw.choice(("each row", "each row", "some rows", "every frame", "frames from t on", "some frames", "a block"))
    if kind == "a block":  # some rows of some frames: a look at either alone sees nothing
        classes, certain = draw.some(free, count), 40.0
        first, row = draw.integer(0, min(shape.frames)), draw.integer(0, U)
        plan.base[classes] = -2 * certain
        gains = plan.gain_to(classes, share)
        plan.at_frames([list(range(first, T)) for T in shape.frames], dict.fromkeys(gains, certain))
        plan.at_rows(list(range(row, U + 1)), {v: gain - certain for v, gain in gains.items()})
    elif kind in ("each row", "some rows"):
        for u in range(U + 1) if kind == "each row" else draw.some(range(U + 1), draw.integer(1, 2)):
            plan.at_rows([u], plan.gain_to(draw.some(free, count), share * draw.choice((1, 1, 0.9, 1.1))))
    else:
        first = draw.integer(0, min(shape.frames))
        here = {
            "every frame": lambda T: list(range(T)), "frames from t on": lambda T: list(range(first, T)),
            "some frames": lambda T: draw.some(range(T), T // 3),
        }[kind]  # fmt: skip
        plan.at_frames([here(T) for T in shape.frames], plan.gain_to(draw.some(free, count), share))
    return f"{count} classes leak {share} of {kind}"


def planned(draw: Draw, change) -> tuple[Problem, str, str]:
    """Labels that fit a frame each; `change(draw, plan, shape, places)` does the rest, and says what."""
    shape = planned_shape(draw)
    plan = Plan.of(draw, shape, distinct_labels(draw, shape), draw.choice((-30.0, -30.0, -20.0, -12.0, -45.0)))
    places = fit_labels(draw, plan, shape, draw.choice((3.0, 15.0, 0.0, -3.0)))
    said = change(draw, plan, shape, places)
    activation = draw.choice(("identity", "identity", *ACTIVATIONS))
    noise = draw.choice((0.0, 0.0, 0.02, 0.3))
    problem = plan.build(draw, activation, noise, draw.integer(1, 4) if noise else 0)
    return problem, activation, f"{said}, noise {noise}, V {shape.vocab}, T {shape.frames}, U {shape.labels}"


def leaking_classes(draw: Draw, plan: Plan, shape: Shape, places: list[list[int]]) -> str:
    """A class (or several) that is no label holds some of every row, every frame, or only after some labels."""
    free = others(draw, shape, plan.targets, shape.vocab)
    return "; ".join(leaks(draw, plan, shape, free) for _ in range(draw.integer(1, 2)))


def leaking_label(draw: Draw, plan: Plan, shape: Shape, places: list[list[int]]) -> str:
    """A label leaks at rows long before (or after) its time, and classes that are no labels leak at others."""
    U = max(shape.labels)
    u, at = draw.integer(0, U - 1), draw.integer(0, U)
    share = draw.choice((0.02, 0.2, 0.4))
    plan.at_rows([at], plan.gain_to([plan.targets[u]], share))
    free = others(draw, shape, plan.targets, shape.vocab)
    where = second_places(draw, plan, shape, places, min(at, U - 1))
    plan.at_rows([at + 1], plan.gain_to(draw.some(free, draw.choice((1, 5, 60))), share))
    return f"label {u} leaks {share} after {at} labels; {where}"


def second_places(draw: Draw, plan: Plan, shape: Shape, places: list[list[int]], u: int) -> str:
    """Label u fits at further frames, far from its own, less than there or about as well."""
    v, low = plan.targets[u], float(plan.base[plan.targets[u]])
    count, logit = draw.integer(1, 2), draw.choice((0.0, 3.0, -2.0, -10.0, draw.number(-12, 15)))
    some = []
    for b, at in enumerate(places):
        before = at[u - 1] + 1 if 0 < u <= len(at) else 0
        after = at[u + 1] if u + 1 < len(at) else shape.frames[b]
        some.append(draw.some(range(before, max(before + 1, after)), count))
    plan.at_frames(some, {v: logit - low})
    return f"label {u} fits again at {some[0]} with {logit:.1f}"


def apart(draw: Draw, plan: Plan, shape: Shape, places: list[list[int]]) -> str:
    """Two or three alignments that never meet for long, and leaks that make them look better or worse than they are."""
    said = [second_places(draw, plan, shape, places, u) for u in draw.some(range(max(shape.labels)), draw.integer(1, 2))]
    return "; ".join([*said, leaking_classes(draw, plan, shape, places)])


def confident(draw: Draw) -> tuple[Problem, str, str]:
    """Every label is sure at one frame, in its own row alone: next to no loss, and next to no gradient."""
    shape = planned_shape(draw)
    plan, margin = Plan.of(draw, shape, distinct_labels(draw, shape), -30.0), draw.number(-1, 25)
    U, certain = max(shape.labels), 40.0
    for v in set(plan.targets):
        plan.base[v] = -2 * certain
    places = [draw.some(range(T), U) for T in shape.frames]
    for u, v in enumerate(plan.targets):
        plan.at_frames([[at[u]] for at in places], {v: certain + margin})
        plan.at_rows([u], {v: certain})
    said = leaking_classes(draw, plan, shape, places) if draw.chance(0.5) else "no leak"
    activation = draw.choice(("identity", *ACTIVATIONS))
    noise = draw.choice((0.0, 0.1, 0.5))
    return plan.build(draw, activation, noise, 2), activation, f"margin {margin:.2g}, {said}"


def as_in_the_issue(draw: Draw) -> tuple[Problem, str, str]:
    """A label between two bunches of labels fits a little in another place; after u labels some classes hold a share."""
    shape = planned_shape(draw, (8, 13) if draw.chance(0.8) else (2, 7))
    (T, *_), (U, *_), V = shape.frames, shape.labels, shape.vocab
    shape, split = Shape([T], [U], V, 0), draw.integer(1, U - 1)
    plan = Plan.of(draw, shape, distinct_labels(draw, shape), -30.0)
    early = draw.some(range(max(split, T // 8)), split)
    late = draw.some(range(T - max(U - split, T // 8), T), U - split)
    for u, t in enumerate(early + late):
        plan.at_frames([[t]], {plan.targets[u]: 3.0 + 30.0})
    again = draw.integer(early[-1] + 1, max(early[-1] + 1, T // 4))
    logit = draw.number(-20, 3)
    plan.at_frames([[again]], {plan.targets[split]: logit + 30.0})
    share, count = draw.choice((0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.4)), draw.choice((1, 1, 2, 4, 8))
    free = others(draw, shape, plan.targets, V)
    for u in range(U + 1):
        plan.at_rows([u], plan.gain_to(draw.some(free, count), share))
    said = f"label {split} of {U} fits again at {again} with {logit:.1f}, {count} classes leak {share}, T {T}, V {V}"
    activation = draw.choice(("identity", "identity", *ACTIVATIONS))
    return plan.build(draw, activation, 0.0, 0), activation, said


def two_places(draw: Draw) -> tuple[Problem, str, str]:
    """tests/ops/test_guided.py's, of random sizes: one label near the start and near the end, other leaks before and after."""
    V = draw.size(80, 2000)
    T = max(20, min(600, int(LOGITS / V / 2)))
    shape = Shape([T], [1], V, 0)
    plan = Plan.of(draw, shape, [1], -30.0)
    first, last = draw.integer(0, T // 8), T - 1 - draw.integer(0, T // 8)
    middle = [draw.integer(first, last)] if draw.chance(0.3) else []
    plan.at_frames([[first, *middle, last]], {1: draw.number(-6, 3) + 30.0})
    leaking, leak = draw.integer(1, min(60, V // 4)), draw.choice((0.02, 0.1, 0.2, 0.4))
    free = others(draw, shape, [1], V)
    for u in (0, 1):
        plan.at_rows([u], plan.gain_to(draw.some(free, leaking), leak))
    activation = draw.choice(("identity", "identity", *ACTIVATIONS))
    return plan.build(draw, activation, 0.0, 0), activation, f"{leaking} classes leak {leak}, T {T}, V {V}"


def label_that_leaks(draw: Draw) -> tuple[Problem, str, str]:
    """tests/ops/test_guided.py's, of random sizes: before an early label another one leaks, after it classes that are none."""
    V, U = draw.size(100, 1000), draw.integer(4, 20)
    T = max(2 * U + 8, min(500, int(LOGITS / (V * (U + 1)))))
    shape, split = Shape([T], [U], V, 0), draw.integer(1, min(3, U - 2))
    targets = draw.plain.sample(range(1, V), U)
    plan = Plan.of(draw, shape, targets, -30.0)
    at = [*range(1, split + 1), split + 3, *range(T - U + split + 1, T)]
    for u in range(U):
        places = [at[u], T - U + split - 1] if u == split else [at[u]]
        plan.at_frames([places], {targets[u]: draw.number(-5, 0) + 30.0 if u == split else 45.0})
    share = draw.choice((0.05, 0.2, 0.3))
    plan.at_rows([split], plan.gain_to([targets[draw.integer(split + 1, U - 1)]], share))
    plan.at_rows([split + 1], plan.gain_to(others(draw, shape, targets, draw.choice((1, 10, 60))), share))
    activation = draw.choice(("identity", "identity", *ACTIVATIONS))
    return plan.build(draw, activation, 0.0, 0), activation, f"label {split} of {U}, {share} leaks, T {T}, V {V}"
