"""Forward and backward variables, the loss and the arc posteriors (paper: f^W_2, f^W_3).

    alpha(t, u) = alpha(t-1, u) p_blank(t-1, u) + alpha(t, u-1) p_label(t, u-1),   alpha(0, 0) = 1
    beta(t, u)  = beta(t+1, u) p_blank(t, u) + beta(t, u+1) p_label(t, u),          beta(T, U) = 1
    loss = -log(alpha(T-1, U) p_blank(T-1, U)),     gamma_arc = alpha(node) p_arc beta(next node) / likelihood

An utterance's steps (`diagonals.py`) are cut in two halves. Alpha of the upper one and beta of the lower one are made at the
same time, and where they meet the likelihood is known. Then beta goes on upwards and alpha downwards, where alpha and beta are
made again segment by segment from what was kept, and both halves write posteriors. So two threads share one utterance, and the
bits do not depend on how many there are.

Sums are in float64 whatever the emissions are: in float32 the gradients lose three digits by T = 800.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange
from torch import Tensor

from samplewise.kernels.numba import diagonals as d
from samplewise.kernels.numba import math as fast
from samplewise.kernels.numba import scalars as s
from samplewise.kernels.numba.arrays import LOCK, array, use_threads
from samplewise.kernels.numba.compiling import kernel

SEGMENT = 32  # steps whose records are held at once, 33 KiB
ALPHA, BETA = d.BM - d.SM, 2 * (d.LANES + d.VECTOR)  # numbers of a record that the next segment starts from
STATE = ALPHA
NONE = np.empty(0)
WHOLE, FORWARD, BACKWARD = range(3)  # an utterance, or alpha or all of a piece of one


def lattice(
    lp_blank: Tensor, lp_label: Tensor, utterances: Tensor, weights: Tensor, losses: Tensor,
    gamma_blank: Tensor | None, gamma_label: Tensor | None,
) -> None:  # fmt: skip
    """Losses (G,) float64 and, unless None, the arc posteriors times the utterance's weight.

    lp_blank and lp_label (N,) are the emissions by node, utterances (G, 7) the table of `layout.py`, weights (G,) float64. The
    posteriors (N,) may be the emissions themselves, which then are overwritten; without gamma_label, gamma_blank gets the sum
    of both. An utterance whose loss is not finite has no occupancy.
    """
    _run(lp_blank, lp_label, utterances, weights, losses, gamma_blank, gamma_label, NONE, NONE, WHOLE)


def forward_piece(lp_blank: Tensor, lp_label: Tensor, piece: Tensor, above: Tensor) -> None:
    """Alpha through some consecutive frames of an utterance.

    piece (1, 7) is their table, as if they were an utterance of their own. `above` (U+1,) float64, the log of alpha as it comes
    from the frame above (first of all: 0, -inf, -inf, ...), becomes what goes to the frame below; after the last piece its last
    number is minus the loss.
    """
    none = above.new_empty(1)
    _run(lp_blank, lp_label, piece, none, none, None, None, array(above), NONE, FORWARD)


def backward_piece(
    lp_blank: Tensor, lp_label: Tensor, piece: Tensor, above: Tensor, below: Tensor, loss: float | Tensor,
    weight: float | Tensor, gamma_blank: Tensor, gamma_label: Tensor | None,
) -> None:  # fmt: skip
    """The arc posteriors, as by `lattice`, of some consecutive frames of an utterance whose loss is known.

    `above` (U+1,) float64 is what `forward_piece` was given, `below` (U+1,) float64 the log of beta of the frame below (last of
    all: -inf, ..., -inf, 0), which becomes that of the first frame here (if the loss is finite and the weight not 0).
    """
    losses, weights = (above.new_full((1,), float(x)) for x in (loss, weight))
    _run(lp_blank, lp_label, piece, weights, losses, gamma_blank, gamma_label, array(above), array(below), BACKWARD)


def _run(lp_blank, lp_label, utterances, weights, losses, gamma_blank, gamma_label, above, below, part) -> None:
    blank = lp_blank if gamma_blank is None else gamma_blank
    with LOCK:
        threads = use_threads()
        run = _together if len(utterances) < 2 * threads else _one_by_one
        run(
            array(lp_blank), array(lp_label), array(utterances), array(weights), array(losses), array(blank),
            array(blank if gamma_label is None else gamma_label), gamma_blank is not None, gamma_label is not None,
            above, below, part,
        )  # fmt: skip


@njit(**d.OPTIONS)
def _cut(labels, frames, part):
    """Of an utterance: its period, its steps, those of a segment, how many segments, and which is the first of the lower
    half."""
    period = max(labels + 1, d.LANES)
    steps = (frames + d.LANES - 1) // d.LANES * period + d.LANES - 1
    half = (steps + 2 * SEGMENT - 1) // (2 * SEGMENT)
    length = (steps + 2 * half - 1) // (2 * half)
    segments = (steps + length - 1) // length
    return period, steps, length, segments, segments if part == FORWARD else segments // 2


@njit(**d.OPTIONS)
def _kept(labels, frames):
    """How many numbers an utterance keeps: streams of alpha and beta, m and e, and the states between its segments."""
    period, steps, _, segments, _ = _cut(labels, frames, WHOLE)
    return 4 * (steps + period) + (segments + 2) * STATE


@njit(**d.OPTIONS)
def _views(kept, labels, frames):
    """Streams of alpha and beta, m and e each, and states. State k is alpha before segment k of the upper half, as far as the
    middle, and state k + 1 beta after segment k - 1 of the lower one, from the middle on."""
    period, steps, _, segments, _ = _cut(labels, frames, WHOLE)
    streams = kept[: 4 * (steps + period)].reshape(4, steps + period)
    states = kept[4 * (steps + period) : _kept(labels, frames)].reshape(segments + 2, STATE)
    return streams[0], streams[1], streams[2], streams[3], states


@njit(**d.OPTIONS)
def _begin(kept, labels, frames, above, below, part):
    """What comes from above the first frame and from below the last one."""
    period, steps, _, segments, _ = _cut(labels, frames, part)
    alpha_m, alpha_e, beta_m, beta_e, states = _views(kept, labels, frames)
    for i in range(steps + period):
        alpha_m[i] = beta_m[i] = 1.0
        alpha_e[i] = beta_e[i] = fast.NOTHING
    last = steps - d.LANES + 1  # the column of the frame below
    if part == WHOLE:
        alpha_e[0] = beta_e[last + labels] = 0.0
    else:
        for u in range(labels + 1):
            alpha_m[u], alpha_e[u] = fast.split64(above[u])
            if part == BACKWARD:
                beta_m[last + u], beta_e[last + u] = fast.split64(below[u])
    first, end = states[0], states[segments + 1]
    for i in range(d.LANES + d.VECTOR):
        first[i] = end[i] = 1.0
        first[d.SE - d.SM + i] = end[d.BE - d.BM + i] = fast.NOTHING
    for i in range(d.LANES):
        first[d.MM - d.SM + i] = 1.0
        first[d.ME - d.SM + i] = fast.NOTHING
    first[0], first[d.SE - d.SM] = alpha_m[0], alpha_e[0]
    end[d.LANES + d.VECTOR - 1] = beta_m[last - 1 + period]
    end[d.BE - d.BM + d.LANES + d.VECTOR - 1] = beta_e[last - 1 + period]


@njit(**d.OPTIONS)
def _load(work, record, state, field, size):
    for i in range(size):
        work[record * d.RECORD + field + i] = state[i]


@njit(**d.OPTIONS)
def _store(work, record, state, field, size):
    for i in range(size):
        state[i] = work[record * d.RECORD + field + i]


@njit(**d.OPTIONS)
def _meet(lower, kept, lp_blank, lp_label, start, stride, labels, frames, part):
    """Alpha through the upper half, or beta through the lower one."""
    period, steps, length, segments, middle = _cut(labels, frames, part)
    alpha_m, alpha_e, beta_m, beta_e, states = _views(kept, labels, frames)
    work = np.empty((length + 2) * d.RECORD)
    if lower:
        for k in range(segments - 1, middle - 1, -1):
            first, count = k * length, min(length, steps - k * length)
            d.gather(work, lp_blank, lp_label, start, stride, labels, frames, period, first, count)
            d.split(work, count)
            _load(work, count + 1, states[k + 2], d.BM, BETA)
            d.betas(work, beta_m, beta_e, period, first, count, steps - d.LANES + 1)
            _store(work, 1, states[k + 1], d.BM, BETA)
        return
    for k in range(middle):
        first, count = k * length, min(length, steps - k * length)
        d.gather(work, lp_blank, lp_label, start, stride, labels, frames, period, first, count)
        d.split(work, count)
        _load(work, 0, states[k], d.SM, ALPHA)
        d.alphas(work, alpha_m, alpha_e, period, first, count, True)
        _store(work, count, states[k + 1], d.SM, ALPHA)


@njit(**d.OPTIONS)
def _total(kept, labels, frames):
    """The likelihood, m and e: every path crosses the middle once, by way of a lane or of the stream."""
    period, _, length, _, middle = _cut(labels, frames, WHOLE)
    alpha_m, alpha_e, beta_m, beta_e, states = _views(kept, labels, frames)
    alpha, beta, at = states[middle], states[middle + 1], middle * length
    waiting = period + max(0, at - d.LANES + 1) - at  # columns of the stream, the first of which comes down to lane 0
    count = 2 * d.LANES - 1 + waiting
    m, e = np.empty(count), np.empty(count)
    for i in range(d.LANES):
        m[i] = alpha[d.MM - d.SM + i] * beta[i]
        e[i] = alpha[d.ME - d.SM + i] + beta[d.BE - d.BM + i]
    for i in range(1, d.LANES):
        m[d.LANES - 1 + i] = alpha[i] * beta[i]
        e[d.LANES - 1 + i] = alpha[d.SE - d.SM + i] + beta[d.BE - d.BM + i]
    for i in range(waiting):
        m[2 * d.LANES - 1 + i] = alpha_m[at + i] * beta_m[at + i]
        e[2 * d.LANES - 1 + i] = alpha_e[at + i] + beta_e[at + i]
    top, total = e.max(), 0.0
    for i in range(count):
        total += m[i] * fast.power64(e[i] - top)
    return total, top


@njit(**d.OPTIONS)
def _part(
    lower, kept, total_m, total_e, weight, lp_blank, lp_label, start, stride, labels, frames, gamma_blank, gamma_label, both
):
    """Posteriors of the upper half, or of the lower one."""
    period, steps, length, segments, middle = _cut(labels, frames, WHOLE)
    alpha_m, alpha_e, beta_m, beta_e, states = _views(kept, labels, frames)
    work = np.empty((length + 2) * d.RECORD)
    carried = states[middle if lower else middle + 1].copy()
    for i in range(segments - middle if lower else middle):
        k = middle + i if lower else middle - 1 - i
        first, count = k * length, min(length, steps - k * length)
        d.gather(work, lp_blank, lp_label, start, stride, labels, frames, period, first, count)
        d.split(work, count)
        _load(work, count + 1, states[k + 2] if lower else carried, d.BM, BETA)
        d.betas(work, beta_m, beta_e, period, first, count, 0 if lower else steps)
        if not lower:
            _store(work, 1, carried, d.BM, BETA)
        _load(work, 0, carried if lower else states[k], d.SM, ALPHA)
        d.alphas(work, alpha_m, alpha_e, period, first, count, lower)
        if lower:
            _store(work, count, carried, d.SM, ALPHA)
        d.posteriors(work, count, total_m, total_e, weight, 1e-37, both)
        d.scatter(work, gamma_blank, gamma_label, both, start, stride, labels, frames, period, first, count)


@njit(**d.OPTIONS)
def _loss(kept, labels, frames, weight, loss, part):
    """The likelihood, m and e, the loss, and whether posteriors are to be had."""
    if part == BACKWARD:
        m, e = fast.split64(-loss)
    else:
        m, e = _total(kept, labels, frames)
        loss = -fast.joined64(m, e)
    return m, e, loss, np.isfinite(loss) and weight != 0.0


@njit(**d.OPTIONS)
def _clear(start, stride, labels, frames, gamma_blank, gamma_label):
    for t in range(frames):
        at = start + t * stride
        gamma_blank[at : at + labels + 1] = s.type_of(gamma_blank[at], 0.0)
        gamma_label[at : at + labels + 1] = s.type_of(gamma_label[at], 0.0)


@njit(**d.OPTIONS)
def _end(kept, labels, frames, above, below, part):
    """What goes on to the pieces beside this one."""
    _, steps, _, _, _ = _cut(labels, frames, part)
    alpha_m, alpha_e, beta_m, beta_e, _ = _views(kept, labels, frames)
    last = steps - d.LANES + 1
    for u in range(labels + 1):
        if part == FORWARD:
            above[u] = fast.joined64(alpha_m[last + u], alpha_e[last + u])
        elif part == BACKWARD:
            below[u] = fast.joined64(beta_m[u], beta_e[u])


@kernel(fastmath={"contract"})
def _together(
    lp_blank, lp_label, utterances, weights, losses, gamma_blank, gamma_label, want, both, above, below, part
):  # fmt: skip
    """Few utterances: halves on threads of their own. Upper halves come first, lower ones then, so that two threads have the
    same."""
    G, most = utterances.shape[0], 0
    for g in range(G):
        most = max(most, _kept(utterances[g, 2], utterances[g, 3]))
    kept = np.empty((G, most))
    total = np.empty((G, 2))
    usable = np.zeros(G, dtype=np.bool_)
    for g in range(G):
        _begin(kept[g], utterances[g, 2], utterances[g, 3], above, below, part)
    for task in prange(2 * G):
        lower, g = task // G, task % G
        start, stride, labels, frames = utterances[g, 0], utterances[g, 1], utterances[g, 2], utterances[g, 3]
        _meet(lower == 1, kept[g], lp_blank, lp_label, start, stride, labels, frames, part)
    if part != FORWARD:
        for g in range(G):
            m, e, loss, good = _loss(kept[g], utterances[g, 2], utterances[g, 3], weights[g], losses[g], part)
            total[g, 0], total[g, 1], losses[g], usable[g] = m, e, loss, good
    for task in prange(2 * G if want else 0):
        lower, g = task // G, task % G
        start, stride, labels, frames = utterances[g, 0], utterances[g, 1], utterances[g, 2], utterances[g, 3]
        if usable[g]:
            _part(
                lower == 1, kept[g], total[g, 0], total[g, 1], weights[g], lp_blank, lp_label, start, stride, labels, frames,
                gamma_blank, gamma_label, both,
            )  # fmt: skip
        elif lower == 1:
            _clear(start, stride, labels, frames, gamma_blank, gamma_label)
    if part != WHOLE:
        _end(kept[0], utterances[0, 2], utterances[0, 3], above, below, part)


@kernel(fastmath={"contract"})
def _one_by_one(
    lp_blank, lp_label, utterances, weights, losses, gamma_blank, gamma_label, want, both, above, below, part
):  # fmt: skip
    """Many utterances: a thread takes one after the other."""
    for g in prange(utterances.shape[0]):
        start, stride, labels, frames = utterances[g, 0], utterances[g, 1], utterances[g, 2], utterances[g, 3]
        kept = np.empty(_kept(labels, frames))
        _begin(kept, labels, frames, above, below, part)
        for lower in range(2):
            _meet(lower == 1, kept, lp_blank, lp_label, start, stride, labels, frames, part)
        m, e, loss, usable = _loss(kept, labels, frames, weights[g], losses[g], part)
        losses[g] = loss
        if want and usable:
            for lower in range(2):
                _part(
                    lower == 1, kept, m, e, weights[g], lp_blank, lp_label, start, stride, labels, frames,
                    gamma_blank, gamma_label, both,
                )  # fmt: skip
        elif want:
            _clear(start, stride, labels, frames, gamma_blank, gamma_label)
