"""Forward and backward variables, the loss and the arc posteriors, one utterance a program (paper: f^W_2, f^W_3).

    alpha(t, u) = logaddexp(alpha(t-1, u) + lp_blank(t-1, u), alpha(t, u-1) + lp_label(t, u-1)),   alpha(0, 0) = 0
    beta(t, u)  = logaddexp(beta(t+1, u) + lp_blank(t, u), beta(t, u+1) + lp_label(t, u)),          beta(T, U) = 0

A program walks strips of LANES labels from left to right. In a strip lane i is at frame d - i in step d, so what it needs is
what it and the lane beside it had in the step before: nothing but registers. From strip to strip a column of T numbers goes
through memory. So neither T nor U is limited, nothing of a launch depends on lengths, and the host never waits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from samplewise.kernels.triton.launch import on, warps_of
from samplewise.kernels.triton.numbers import logaddexp

LANES = 128  # a lane is a thread: where several threads held one lane, they would race for its node


def lattice(
    lp_blank: Tensor, lp_label: Tensor, utterances: Tensor, weights: Tensor, losses: Tensor,
    gamma_blank: Tensor | None, gamma_label: Tensor | None,
) -> None:  # fmt: skip
    """Losses (G,) float64 and, unless None, the arc posteriors times the utterance's weight.

    lp_blank and lp_label (N,) are the emissions by node, utterances (G, 7) the table of `layout.py`, weights (G,) float64. The
    posteriors (N,) may be the emissions themselves, which then are overwritten; without gamma_label, gamma_blank gets the sum
    of both. An utterance whose loss is not finite has no occupancy. It takes 8 bytes a node where posteriors are wanted.
    """
    _launch(lp_blank, lp_label, utterances, weights, losses, gamma_blank, gamma_label)


def forward_piece(lp_blank: Tensor, lp_label: Tensor, piece: Tensor, above: Tensor) -> None:
    """Alpha through some consecutive frames of an utterance.

    piece (1, 7) is their table, as if they were an utterance of their own. `above` (U+1,) float64, the log of alpha as it comes
    from the frame above (first of all: 0, -inf, -inf, ...), becomes what goes to the frame below; after the last piece its last
    number is minus the loss.
    """
    _launch(lp_blank, lp_label, piece, above, torch.empty_like(above[:1]), None, None, above)


def backward_piece(
    lp_blank: Tensor, lp_label: Tensor, piece: Tensor, above: Tensor, below: Tensor, loss: float | Tensor,
    weight: float | Tensor, gamma_blank: Tensor, gamma_label: Tensor | None,
) -> None:  # fmt: skip
    """The arc posteriors, as by `lattice`, of some consecutive frames of an utterance whose loss is known.

    `above` (U+1,) float64 is what `forward_piece` was given, `below` (U+1,) float64 the log of beta of the frame below (last of
    all: -inf, ..., -inf, 0), which becomes that of the first frame here (if the loss is finite and the
    weight not 0). It takes 8 bytes a node.
    """
    losses, weights = (torch.as_tensor(x, dtype=torch.float64, device=above.device).reshape(1) for x in (loss, weight))
    _launch(lp_blank, lp_label, piece, weights, losses, gamma_blank, gamma_label, above.clone(), below)


def _launch(lp_blank, lp_label, utterances, weights, losses, gamma_blank, gamma_label, above=None, below=None) -> None:
    """`_forward`, and `_backward` where posteriors are wanted; of a piece where `above` is given, whose losses are known
    then."""
    want, piece, nodes = gamma_blank is not None, above is not None, lp_blank.numel()
    alphas = lp_blank.new_empty(nodes if want else 0, dtype=torch.float64)
    column = lp_blank.new_empty(nodes // LANES + 1, dtype=torch.float64)
    found = torch.empty_like(losses) if piece else losses
    grid = (len(utterances),)
    with on(lp_blank):
        warps = warps_of(LANES)
        _forward[grid](
            lp_blank, lp_label, utterances, found, alphas, column, above if piece else column,
            KEEP=want, PIECE=piece, LANES=LANES, num_warps=warps,
        )  # fmt: skip
        if want:
            both = gamma_label is not None
            _backward[grid](
                lp_blank, lp_label, utterances, weights, losses, alphas, column, gamma_blank, gamma_label if both else
                gamma_blank, below if piece else column, BOTH=both, PIECE=piece, LANES=LANES, num_warps=warps,
            )  # fmt: skip


@triton.jit
def _forward(
    lp_blank, lp_label, utterances, losses, alphas, column, above, KEEP: tl.constexpr, PIECE: tl.constexpr, LANES: tl.constexpr
):  # fmt: skip
    g = tl.program_id(0).to(tl.int64)
    start, stride = tl.load(utterances + g * 7), tl.load(utterances + g * 7 + 1)
    labels, frames = tl.load(utterances + g * 7 + 2), tl.load(utterances + g * 7 + 3)
    column += start // LANES  # only utterances of LANES nodes a frame or more use theirs, so they never overlap
    lane = tl.arange(0, LANES)
    before = tl.where(lane > 0, lane - 1, 0)
    end = tl.zeros((LANES,), tl.float64)
    for first in range(0, labels + 1, LANES):
        u = first + lane.to(tl.int64)
        stay = tl.full((LANES,), float("-inf"), tl.float64)
        move = tl.full((LANES,), float("-inf"), tl.float64)
        width = tl.minimum(LANES, labels + 1 - first)
        for d in range(0, frames + width - 1):
            t = d - lane.to(tl.int64)
            inside = (t >= 0) & (t < frames) & (u <= labels)
            node = start + t * stride + u
            blank = tl.load(lp_blank + node, mask=inside, other=float("-inf")).to(tl.float64)
            label = tl.load(lp_label + node, mask=inside & (u < labels), other=float("-inf")).to(tl.float64)
            edge = tl.load(column + t, mask=inside & (lane == 0) & (u > 0), other=float("-inf"))
            left = tl.where(lane == 0, edge, tl.gather(move, before, 0))
            if PIECE:
                stay = tl.where(t == 0, tl.load(above + u, mask=inside & (t == 0), other=float("-inf")), stay)
                alpha = logaddexp(stay, left)
            else:
                alpha = tl.where((t == 0) & (u == 0), 0.0, logaddexp(stay, left))
            alpha = tl.where(inside, alpha, float("-inf"))
            if KEEP:
                tl.store(alphas + node, alpha, mask=inside)
            stay = alpha + blank
            move = alpha + label
            if PIECE:
                tl.store(above + u, stay, mask=inside & (t == frames - 1))
            tl.store(column + t, move, mask=inside & (lane == LANES - 1))
            end = tl.where((t == frames - 1) & (u == labels), stay, end)
        tl.debug_barrier()  # the next strip's first lane reads what this one's last lane wrote
    tl.store(losses + g, -tl.sum(end, 0))


@triton.jit
def _posterior(exponent, weight, usable, STORED: tl.constexpr):
    """weight e^exponent as it is stored; below the normal numbers of float32 it is nothing."""
    share = tl.exp(tl.where(exponent > 0.0, 0.0, exponent)).to(STORED)
    return tl.where(usable & (share > 1e-37), share * weight.to(STORED), 0.0)


@triton.jit
def _backward(
    lp_blank, lp_label, utterances, weights, losses, alphas, column, gamma_blank, gamma_label, below,
    BOTH: tl.constexpr, PIECE: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    g = tl.program_id(0).to(tl.int64)
    start, stride = tl.load(utterances + g * 7), tl.load(utterances + g * 7 + 1)
    labels, frames = tl.load(utterances + g * 7 + 2), tl.load(utterances + g * 7 + 3)
    column += start // LANES
    lane = tl.arange(0, LANES)
    weight, loss = tl.load(weights + g + lane * 0), tl.load(losses + g + lane * 0)
    usable = (tl.abs(loss) < float("inf")) & (weight != 0.0)
    after = tl.where(lane < LANES - 1, lane + 1, lane)
    strips = (labels + LANES) // LANES
    for strip in range(0, strips):
        first = (strips - 1 - strip) * LANES
        u = first + lane.to(tl.int64)
        beta = tl.full((LANES,), float("-inf"), tl.float64)
        last = frames + tl.minimum(LANES, labels + 1 - first) - 2
        for step in range(0, last + 1):
            t = last - step - lane.to(tl.int64)
            inside = (t >= 0) & (t < frames) & (u <= labels)
            node = start + t * stride + u
            blank = tl.load(lp_blank + node, mask=inside, other=float("-inf")).to(tl.float64)
            label = tl.load(lp_label + node, mask=inside & (u < labels), other=float("-inf")).to(tl.float64)
            reach = tl.load(alphas + node, mask=inside, other=float("-inf")) + loss
            edge = tl.load(column + t, mask=inside & (lane == LANES - 1) & (u < labels), other=float("-inf"))
            right = tl.where(lane == LANES - 1, edge, tl.gather(beta, after, 0))
            if PIECE:
                ends = inside & (t == frames - 1)
                by_blank = blank + tl.where(ends, tl.load(below + u, mask=ends, other=float("-inf")), beta)
            else:
                by_blank = blank + tl.where((t == frames - 1) & (u == labels), 0.0, beta)
            by_label = label + right
            beta = tl.where(inside, logaddexp(by_blank, by_label), float("-inf"))
            tl.store(column + t, beta, mask=inside & (lane == 0) & (u > 0))
            if PIECE:
                tl.store(below + u, beta, mask=inside & (t == 0))
            share = _posterior(by_blank + reach, weight, usable, gamma_blank.dtype.element_ty)
            other = _posterior(by_label + reach, weight, usable, gamma_label.dtype.element_ty)
            if BOTH:
                tl.store(gamma_label + node, other, mask=inside)
            else:
                share += other
            tl.store(gamma_blank + node, share, mask=inside)
        tl.debug_barrier()
