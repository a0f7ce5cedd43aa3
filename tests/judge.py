"""Is what a method returned wrong, or only rounded? And how much of the posterior lies outside of some nodes, in truth.

A method that leaves nodes out promises: all but a share `tolerance` of an utterance's occupancy T + U is there. So an element
of dL/dbias may be off by that share, one of dL/dweight by max |z| times as much, one of an encoding's gradient by
max |dh W| act' times as much, which is at most the widest column of W, for dh adds up to 0. Rounding comes on top: two methods
in float32 differ by what their products round. What exceeds both is only a suspicion until float64 has said the truth; then it
is a miss if the method is worse than its bounds *and* clearly worse than methods that compute everything in the same dtype.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from samplewise.functional import reduction_weights
from samplewise.ops import bounds, corridor, guided
from samplewise.ops.transducer import default_tolerance
from samplewise.reference import activation_of, arcs
from tests.problems import FLOATS, Problem, ours, upstream

LEFT_OUT = 2.0  # times tolerance (T + U): what may be left out, and what else may be wrong for it, see `bounds_of`
STEEPEST = 1.13  # derivative of gelu; of silu 1.1
WORSE = 4.0  # times the larger error of two methods that compute everything, in float64's eyes
# By dtype: what rounding takes from a loss and from a gradient's largest element. In float32 two methods that compute all
# differ by more in a loss in two of 1500 joints (at most 1.4 times), in a gradient in none (at most 0.42 times).
ROUNDING = {
    torch.float64: (1e-12, 1e-11), torch.float32: (3e-6, 1e-4), torch.bfloat16: (5e-3, 2e-2), torch.float16: (1e-3, 3e-3)
}  # fmt: skip


@dataclass(frozen=True)
class Bounds:
    """What errors a tolerance allows, without rounding."""

    loss: Tensor  # (B,)
    weights: Tensor  # (B,)
    gradients: dict[str, float]


def bounds_of(problem: Problem, activation: str, tolerance: float, weights: Tensor) -> Bounds:
    """`weights` (B,): of each utterance's loss in what is differentiated.

    Paths that leave the exact nodes have at most a part of `tolerance` of the mass, and T + U nodes each: so what a method
    believes of them moves no more occupancy than what may be left out besides.
    """
    lengths = (problem.encoder_lengths + problem.target_lengths).double()
    share = tolerance * lengths
    weighted = LEFT_OUT * share * weights.double()
    top_z = 0.0
    for b, (t, u) in enumerate(zip(problem.encoder_lengths.tolist(), problem.target_lengths.tolist(), strict=True)):
        z = activation_of(activation)(problem.encoder_out[b, :t, None] + problem.predictor_out[b, None, : u + 1])
        top_z = max(top_z, float(z.abs().max()))
    widest = float((problem.weight.amax(0) - problem.weight.amin(0)).max())
    to_encodings = float(weighted.max()) * STEEPEST * widest
    total = float(weighted.sum())
    gradients = {"encoder_out": to_encodings, "predictor_out": to_encodings, "weight": total * top_z, "bias": total}
    return Bounds(torch.full_like(share, tolerance), weights.double(), gradients)


def excess(got, right, bounds: Bounds, rounding: dict[str, float]) -> dict[str, float]:
    """The largest error of loss and of each gradient, by what is allowed: above 1 is too much."""
    found = {}
    allowed = bounds.loss if right[0].ndim else (bounds.loss * bounds.weights).sum()
    difference = (got[0].double() - right[0].double()).abs()
    same = got[0].double() == right[0].double()  # also where both are infinite
    ratio = torch.where(same, 0.0, difference / (allowed + rounding["loss"] * right[0].double().abs() + 1e-30))
    found["loss"] = float(ratio.nan_to_num(math.inf, math.inf).max())
    for name, gradient in got[1].items():
        limit = bounds.gradients[name] + rounding[name] * float(right[1][name].abs().max()) + 1e-30
        found[name] = float(((gradient.double() - right[1][name].double()).abs() / limit).nan_to_num(math.inf, math.inf).max())
    return found


def judge(
    problem: Problem, activation: str, *, reduction: str = "none", tolerance: float | None = None, insist: bool = False,
    corridors: bool = False, **options,
) -> dict[str, float]:  # fmt: skip
    """Errors of method "guided" that neither its tolerance nor rounding explains, by name, in units of what is allowed.

    The problem's dtype is that of the products; `options` are given to all methods alike. `insist`: on bounds, too, where the
    method would turn to "tiled" since that is less work; `corridors`: and in a corridor, however much of the lattice that is.
    """
    dtype = problem.weight.dtype
    weights = upstream(problem) if reduction == "none" else reduction_weights(reduction, problem.target_lengths)
    settings = {"reduction": reduction, "activation": activation, **options}
    if reduction == "none":
        settings["upstream"] = weights
    with insisting(corridors) if insist else contextlib.nullcontext():
        got = ours(problem, method="guided", tolerance=tolerance, **settings)
    right = ours(problem, method="tiled", tolerance=0.0, **settings)
    share = default_tolerance(dtype) if tolerance is None else tolerance
    allowed = bounds_of(problem, activation, share + 1e-15, weights * (1 + options.get("fastemit_lambda", 0.0)))
    rounding = limits(dtype)
    suspicions = {name: x for name, x in excess(got, right, allowed, rounding).items() if x > 1}
    if not suspicions or dtype == torch.float64:
        return suspicions
    truth = ours(problem.to(torch.float64), method="tiled", tolerance=0.0, **settings)
    mine, *whole = (excess(x, truth, allowed, rounding) for x in (got, right, ours(problem, method="batched", **settings)))
    return {name: x for name, x in mine.items() if x > max(1.0, *(WORSE * other[name] for other in whole))}


@contextlib.contextmanager
def insisting(corridors: bool = False) -> Iterator[None]:
    """Let "guided" go on with bounds however much work that is, and look for a corridor everywhere."""
    changes: list[tuple] = [(guided, "LATTICE_WORK", 0), (guided, "knows_nothing", lambda *_: False), (bounds, "LARGE", 0)]
    if corridors:
        changes += [(guided, "is_worth_it", lambda *_: True), (corridor, "CORRIDOR", 2.0)]
        changes += [(corridor, "SMALL", corridor.LARGE), (corridor, "NARROW", math.exp(-40))]
    before = [(module, name, getattr(module, name)) for module, name, _ in changes]
    try:
        for module, name, value in changes:
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def limits(dtype: torch.dtype) -> dict[str, float]:
    """What rounding may do, by name."""
    loss, gradient = ROUNDING[dtype]
    return dict.fromkeys(FLOATS, gradient) | {"loss": loss}


# --- the truth about the nodes that were left out ----------------------------------------------------------------------------


class Outside(NamedTuple):
    """Of each utterance (B,): the probability that its alignment touches a node outside; occupancy outside / (T + U); the
    loss."""

    paths: Tensor
    occupancy: Tensor
    loss: Tensor


def true_share_outside(problem: Problem, activation: str, exact: list[Tensor]) -> Outside:
    """What lies outside of the nodes `exact`, masks (T_b, U_b + 1) of each utterance, under the true emissions in float64."""
    found = []
    for b, (T, U) in enumerate(zip(problem.encoder_lengths.tolist(), problem.target_lengths.tolist(), strict=True)):
        blank, label = true_emissions(problem, activation, b, T, U)
        paths, nodes, loss = share_outside(blank, label, exact[b].view(T, U + 1))
        found.append((paths, nodes / (T + U), loss))
    return Outside(*torch.tensor(found, dtype=torch.float64).t())


def true_emissions(problem: Problem, activation: str, b: int, T: int, U: int, chunk: int = 1 << 22) -> tuple[Tensor, Tensor]:
    """lp_blank (T, U+1) and lp_label (T, U) of utterance b in float64, a few frames at a time."""
    problem = problem.to(torch.float64)
    weight, bias = problem.weight, problem.bias if problem.bias is not None else problem.weight.new_zeros(len(problem.weight))
    rows = max(1, chunk // ((U + 1) * len(weight)))
    blanks, labels = [], []
    for t in range(0, T, rows):
        z = activation_of(activation)(
            problem.encoder_out[b, t : min(t + rows, T), None] + problem.predictor_out[b, None, : U + 1]
        )
        blank, label = arcs((z @ weight.t() + bias).log_softmax(2), problem.targets[b, :U], problem.blank)
        blanks.append(blank)
        labels.append(label)
    return torch.cat(blanks), torch.cat(labels)


def share_outside(lp_blank: Tensor, lp_label: Tensor, exact: Tensor) -> tuple[float, float, float]:
    """Probability of touching a node outside, the expected number of such nodes on the alignment, and the loss.

    Paths are counted in two states, not yet outside and outside already, so that a small probability is no difference of two
    large ones. One anti-diagonal d = t + u at a time.
    """
    T, width = lp_blank.shape
    U, minus = width - 1, -math.inf
    label = torch.nn.functional.pad(lp_label, (0, 1), value=minus)
    u = torch.arange(width)
    kept = []
    inside, outside = torch.full((width,), minus).double(), torch.full((width,), minus).double()
    inside[0] = 0.0
    for d in range(T + U):
        t = d - u
        valid = (t >= 0) & (t < T)
        at = (t.clamp(0, T - 1), u)
        fine = exact[at]
        outside = torch.where(fine, outside, torch.logaddexp(outside, inside)).masked_fill(~valid, minus)
        inside = inside.masked_fill(~fine | ~valid, minus)
        kept.append((at, valid, torch.logaddexp(inside, outside)))
        if d == T + U - 1:
            break
        inside, outside = (torch.logaddexp(x + lp_blank[at], shifted(x + label[at])) for x in (inside, outside))
    final = lp_blank[T - 1, U]
    total = kept[-1][2][U] + final
    beta, nodes = torch.full((width,), minus).double(), 0.0
    for d in range(T + U - 1, -1, -1):
        at, valid, alpha = kept[d]
        after = torch.where(at[0] == T - 1, minus, beta)
        by_blank = lp_blank[at] + after
        if d == T + U - 1:
            by_blank[U] = final
        by_label = label[at] + torch.nn.functional.pad(beta[1:], (0, 1), value=minus)
        beta = torch.logaddexp(by_blank, by_label).masked_fill(~valid, minus)
        occupancy = (alpha + beta - total).exp()
        nodes += float(occupancy[valid & ~exact[at]].sum())
    return float((outside[U] + final - total).exp()), nodes, -float(total)


def shifted(x: Tensor) -> Tensor:
    """What leaves u arrives at u + 1."""
    return torch.nn.functional.pad(x[:-1], (1, 0), value=-math.inf)
