"""As `lattice.py`, for every topology: forward and backward variables over its arcs, the loss, and the entries' posteriors.

    alpha(t, u) = log sum over arcs (f, l) of exp(alpha(t-f, u-l) + w(t-f, u-l))
    beta(t, u)  = log sum over arcs (f, l) of exp(w(t, u) + beta(t+f, u+l))

One utterance a program. It walks the anti-diagonals d = t + u: an arc leads from d to d + f + l, so the nodes of a diagonal do
not need each other. A block is all arcs of LANES nodes of one. Alpha lies in memory for all nodes, and beta takes its place. So
neither T nor U is limited, nothing of a launch depends on lengths, and the host never waits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from samplewise.kernels.triton.launch import constants, on, power_of_2, rows_of, warps_of
from samplewise.kernels.triton.numbers import logaddexp
from samplewise.topology import Bound

LANES = 128  # nodes of a block
MOST = 2  # entries of an arc at its own node


def arcs_lattice(
    entries: Tensor, utterances: Tensor, form: Bound, weights: Tensor, losses: Tensor, gammas: Tensor | None
) -> None:
    """Losses (G,) float64 and, unless None, the posterior of each entry times the utterance's weight; see
    `kernels/eager/arcs.py`. It takes 8 bytes a node, and entries of which arcs read one ahead are copied if overwritten."""
    _launch(entries, utterances, form, 0, weights, losses, gammas)


def arcs_forward_piece(entries: Tensor, piece: Tensor, form: Bound, after: int, above: Tensor) -> None:
    """Alpha through some consecutive frames of an utterance; see `kernels/eager/arcs.py`. It takes 8 bytes a node."""
    unused = torch.empty_like(above[0, :1])
    _launch(entries, piece, form, after, unused, unused, None, above)


def arcs_backward_piece(
    entries: Tensor, piece: Tensor, form: Bound, after: int, above: Tensor, below: Tensor, loss: float | Tensor,
    weight: float | Tensor, gammas: Tensor,
) -> None:  # fmt: skip
    """The entries' posteriors of some consecutive frames of an utterance; see `kernels/eager/arcs.py`. It takes 8 bytes a
    node."""
    losses, weights = (torch.as_tensor(x, dtype=torch.float64, device=above.device).reshape(1) for x in (loss, weight))
    _launch(entries, piece, form, after, weights, losses, gammas, above, below)


def _launch(entries, utterances, form, after, weights, losses, gammas, above=None, below=None) -> None:
    """`_forward`, and `_backward` where posteriors are wanted; of a piece where `above` is given."""
    piece, ahead = above is not None, any(arc.ahead is not None for arc in form.arcs)
    arcs = [(a.frames, a.labels, *_two(a.entries), -1 if a.ahead is None else a.ahead) for a in form.arcs]
    table, stride = constants(arcs, entries.device), rows_of(entries).stride(0)
    alphas = torch.empty(entries.shape[1], dtype=torch.float64, device=entries.device)
    above, below = (alphas if edge is None else edge for edge in (above, below))
    common = {
        "ENDS": form.label_ends, "REACH": form.reach, "PIECE": piece, "ARCS": power_of_2(len(arcs), len(arcs) * 2),
        "LANES": LANES, "num_warps": warps_of(LANES), "num_stages": 1,
    }  # fmt: skip
    grid = (len(utterances),)
    with on(entries):
        _forward[grid](
            entries, utterances, table, losses, alphas, above, stride, len(arcs), after, LEAVES=gammas is None or not piece,
            **common,
        )  # fmt: skip
        if gammas is not None:
            kept = entries.clone() if ahead and gammas.data_ptr() == entries.data_ptr() else entries
            _backward[grid](
                entries, kept, utterances, table, weights, losses, alphas, below, gammas, stride, kept.stride(0),
                rows_of(gammas).stride(0), len(arcs), len(gammas), after, AHEAD=ahead, **common,
            )  # fmt: skip


def _two(entries: tuple[int, ...]) -> tuple[int, ...]:
    if not 1 <= len(entries) <= MOST:
        raise ValueError(f"an arc has {len(entries)} entries at its node: it must have 1..{MOST}")
    return (*entries, *(-1,) * (MOST - len(entries)))


@triton.jit
def _arcs(table, count, ENDS: tl.constexpr, ARCS: tl.constexpr):
    """Which rows of the table are arcs, its columns, each (ARCS,), and which arcs may end a path."""
    k = tl.arange(0, ARCS)
    row, known = table + k * 5, k < count
    frames, labels = tl.load(row, mask=known, other=0), tl.load(row + 1, mask=known, other=0)
    first, second = tl.load(row + 2, mask=known, other=-1), tl.load(row + 3, mask=known, other=-1)
    ahead, may_end = tl.load(row + 4, mask=known, other=-1), labels == 0
    if ENDS:
        may_end = known
    return known, frames, labels, first, second, ahead, may_end


@triton.jit
def _weight(entries, stride, kept, kept_stride, first, second, ahead, node, live):
    """Log-weights of arcs that leave nodes, -inf of those that are not `live`."""
    total = tl.load(entries + first * stride + node, mask=live, other=float("-inf")).to(tl.float64)
    total += tl.load(entries + second * stride + node, mask=live & (second >= 0), other=0.0).to(tl.float64)
    return total + tl.load(kept + ahead * kept_stride + node + 1, mask=live & (ahead >= 0), other=0.0).to(tl.float64)


@triton.jit
def _log_sum(x):
    """The log of the sum of exponentials over the first axis; NaN shows in it."""
    top = tl.max(tl.where(x == x, x, float("-inf")), 0)
    top = tl.where(top == float("-inf"), 0.0, top)
    return top + tl.log(tl.sum(tl.exp(x - tl.expand_dims(top, 0)), 0))


@triton.jit
def _arriving(
    entries, stride, alphas, start, row_stride, frames, labels, known, arc_frames, arc_labels, first, second, ahead, t, u
):  # fmt: skip
    """Of every arc into (t, u) alpha of the node that it leaves and its weight, -inf where there is none."""
    from_t, from_u = t - arc_frames, u - arc_labels
    live = known & (from_t >= 0) & (from_t < frames) & (from_u >= 0) & (u <= labels)
    node = start + from_t * row_stride + from_u
    alpha = tl.load(alphas + node, mask=live, other=float("-inf"))
    return alpha + _weight(entries, stride, entries, stride, first, second, ahead, node, live)


@triton.jit(do_not_specialize=["stride", "count", "after"])
def _forward(
    entries, utterances, table, losses, alphas, above, stride, count, after, LEAVES: tl.constexpr, ENDS: tl.constexpr,
    REACH: tl.constexpr, PIECE: tl.constexpr, ARCS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    g = tl.program_id(0).to(tl.int64)
    start, row_stride = tl.load(utterances + g * 7), tl.load(utterances + g * 7 + 1)
    labels, frames = tl.load(utterances + g * 7 + 2), tl.load(utterances + g * 7 + 3)
    known, arc_frames, arc_labels, first, second, ahead, may_end = _arcs(table, count, ENDS, ARCS)
    lane = tl.arange(0, LANES).to(tl.int64)
    for d in range(0, frames + labels):
        lowest, highest = tl.maximum(d - frames + 1, 0), tl.minimum(labels, d)
        for u_first in range(lowest, highest + 1, LANES):
            u = u_first + lane
            t, inside = d - u, u <= highest
            coming = _arriving(
                entries, stride, alphas, start, row_stride, frames, labels, known[:, None], arc_frames[:, None],
                arc_labels[:, None], first[:, None], second[:, None], ahead[:, None], t[None, :], u[None, :],
            )  # fmt: skip
            alpha = _log_sum(coming)
            if PIECE:
                edge = tl.load(above + t * (labels + 1) + u, mask=inside & (t < REACH), other=float("-inf"))
                alpha = logaddexp(alpha, edge)
            else:
                alpha = tl.where(d == 0, 0.0, alpha)
            tl.store(alphas + start + t * row_stride + u, alpha, mask=inside)
        tl.debug_barrier()  # the next diagonals read what this one wrote
    if not PIECE:
        t, u = frames + arc_frames * 0, labels + arc_frames * 0
        coming = _arriving(
            entries, stride, alphas, start, row_stride, frames, labels, known & may_end, arc_frames, arc_labels, first, second,
            ahead, t, u,
        )  # fmt: skip
        tl.store(losses + g, -_log_sum(coming))
    elif LEAVES:
        for row in range(0, REACH):
            for u_first in range(0, labels + 1, LANES):
                u = u_first + lane
                t, inside = frames + row + u * 0, u <= labels
                ends = (u == labels)[None, :] & may_end[:, None]
                coming = _arriving(
                    entries, stride, alphas, start, row_stride, frames, labels,
                    known[:, None] & ((row < after) | ((row == after) & ends)), arc_frames[:, None], arc_labels[:, None],
                    first[:, None], second[:, None], ahead[:, None], t[None, :], u[None, :],
                )  # fmt: skip
                passing = inside & (t < REACH)  # what passes by the frames here
                edge = tl.load(above + t * (labels + 1) + u, mask=passing, other=float("-inf"))
                tl.store(above + row * (labels + 1) + u, logaddexp(_log_sum(coming), edge), mask=inside)
            tl.debug_barrier()


@triton.jit(do_not_specialize=["stride", "kept_stride", "gamma_stride", "count", "entry_count", "after"])
def _backward(
    entries, kept, utterances, table, weights, losses, alphas, below, gammas, stride, kept_stride, gamma_stride, count,
    entry_count, after, AHEAD: tl.constexpr, ENDS: tl.constexpr, REACH: tl.constexpr, PIECE: tl.constexpr, ARCS: tl.constexpr,
    LANES: tl.constexpr,
):  # fmt: skip
    STORED: tl.constexpr = gammas.dtype.element_ty
    g = tl.program_id(0).to(tl.int64)
    start, row_stride = tl.load(utterances + g * 7), tl.load(utterances + g * 7 + 1)
    labels, frames = tl.load(utterances + g * 7 + 2), tl.load(utterances + g * 7 + 3)
    known, arc_frames, arc_labels, first, second, ahead, may_end = _arcs(table, count, ENDS, ARCS)
    lane = tl.arange(0, LANES).to(tl.int64)
    weight, loss = tl.load(weights + g + lane * 0), tl.load(losses + g + lane * 0)
    usable = (tl.abs(loss) < float("inf")) & (weight != 0.0)
    last = frames + labels - 1
    for step in range(0, last + 1):
        d = last - step
        lowest, highest = tl.maximum(d - frames + 1, 0), tl.minimum(labels, d)
        for u_first in range(lowest, highest + 1, LANES):
            u = u_first + lane
            t, inside = d - u, u <= highest
            node = start + t * row_stride + u
            to_t, to_u = t[None, :] + arc_frames[:, None], u[None, :] + arc_labels[:, None]
            live = known[:, None] & inside[None, :] & (to_u <= labels)
            total = _weight(
                entries, stride, kept, kept_stride, first[:, None], second[:, None], ahead[:, None], node[None, :], live
            )
            target = start + to_t * row_stride + to_u
            beta = tl.load(alphas + target, mask=live & (to_t < frames), other=float("-inf"))
            if PIECE:
                behind = live & (to_t >= frames) & (to_t < frames + after)
                place = below + (to_t - frames) * (labels + 1) + to_u
                beta = tl.where(behind, tl.load(place, mask=behind, other=float("-inf")), beta)
            ends = live & (to_t == frames + after) & (to_u == labels) & may_end[:, None]
            total += tl.where(ends, 0.0, beta)
            alpha = tl.load(alphas + node, mask=inside, other=float("-inf"))
            exponent = total + (alpha + loss)[None, :]
            share = tl.exp(tl.where(exponent > 0.0, 0.0, exponent))
            share = tl.where(usable[None, :] & (share == share), share, 0.0)
            beta = _log_sum(total)
            tl.debug_barrier()  # all that is overwritten now has been read
            tl.store(alphas + node, beta, mask=inside)
            for e in range(0, entry_count):
                own = (first == e) | (second == e)
                x = tl.sum(tl.where(own[:, None], share, 0.0), 0)
                x = tl.where(x > 1e-37, x * weight, 0.0)  # below the normal numbers of float32 it is nothing
                tl.store(gammas + e * gamma_stride + node, x.to(STORED), mask=inside)
            if AHEAD:
                tl.debug_barrier()
                for e in range(0, entry_count):
                    x = tl.sum(tl.where((ahead == e)[:, None], share, 0.0), 0)
                    more = inside & (x > 1e-37)
                    later = gammas + e * gamma_stride + node + 1  # on a diagonal whose posteriors are there already
                    x = tl.load(later, mask=more, other=0.0).to(tl.float64) + x * weight
                    tl.debug_barrier()
                    tl.store(later, x.to(STORED), mask=more)
        tl.debug_barrier()
    if PIECE:
        for up in range(0, REACH):
            row = REACH - 1 - up
            for u_first in range(0, labels + 1, LANES):
                u = u_first + lane
                here, inside = row < frames, u <= labels
                beta = tl.load(alphas + start + row * row_stride + u, mask=inside & here, other=0.0)
                passing = tl.load(below + (row - frames) * (labels + 1) + u, mask=inside & (row >= frames), other=0.0)
                tl.store(below + row * (labels + 1) + u, tl.where(here, beta, passing), mask=inside)
            tl.debug_barrier()
