"""As `lattice.py`, for every topology: forward and backward variables over its arcs, the loss, and the entries' posteriors.

An utterance is walked frame by frame. What arrives at the next frames, as many as the longest arc goes on, waits in rows of
U + 1 numbers, one after the other (a ring). Arcs that go on are taken for all labels of a frame at once; those that stay in
it follow each other from label to label. The sums are numbers m 2^e of float64 (`math.py`), of any size, so nothing underflows.

Alpha is kept in full for the frames of a segment; of the others only what arrives at a segment's first frame, so that the way
back makes it again. Utterances are shared out to threads.
"""

from __future__ import annotations

import functools

import numpy as np
from numba import njit, prange
from torch import Tensor

from samplewise.kernels.numba import math as fast
from samplewise.kernels.numba import scalars as s
from samplewise.kernels.numba.arrays import LOCK, array, use_threads
from samplewise.kernels.numba.compiling import kernel
from samplewise.kernels.numba.diagonals import OPTIONS
from samplewise.topology import Bound

SEGMENT = 32  # frames whose alphas are held at once, or more
NONE = np.empty((0, 0))
MOST = 2  # entries of an arc at its own node


def arcs_lattice(
    entries: Tensor, utterances: Tensor, form: Bound, weights: Tensor, losses: Tensor, gammas: Tensor | None
) -> None:
    """Losses (G,) and, unless None, the posterior of each entry times the utterance's weight; see `kernels/eager/arcs.py`."""
    _run(entries, utterances, form, 0, NONE, NONE, False, weights, losses, gammas)


def arcs_forward_piece(entries: Tensor, piece: Tensor, form: Bound, after: int, above: Tensor) -> None:
    """Alpha through some consecutive frames of an utterance; see `kernels/eager/arcs.py`."""
    none = above.new_empty(1)
    _run(entries, piece, form, after, array(above), NONE, False, none, none, None)


def arcs_backward_piece(
    entries: Tensor, piece: Tensor, form: Bound, after: int, above: Tensor, below: Tensor, loss: float | Tensor,
    weight: float | Tensor, gammas: Tensor,
) -> None:  # fmt: skip
    """The entries' posteriors of some consecutive frames of an utterance; see `kernels/eager/arcs.py`."""
    losses, weights = (above.new_full((1,), float(x)) for x in (loss, weight))
    _run(entries, piece, form, after, array(above.clone()), array(below), True, weights, losses, gammas)


def _run(entries, utterances, form, after, above, below, known, weights, losses, gammas) -> None:
    want = gammas is not None
    with LOCK:
        use_threads()
        _lattices(
            array(entries), array(utterances), _arcs(form), len(form.entries), form.reach, form.label_ends, after, above, below,
            known, array(weights), array(losses), array(gammas if want else entries), want,
        )  # fmt: skip


@functools.cache
def _arcs(form: Bound) -> np.ndarray:
    """(A, 5): frames, labels, two entries, the second -1 where there is one, and the one ahead or -1."""
    rows = [
        (arc.frames, arc.labels, *arc.entries, *(-1,) * (MOST - len(arc.entries)), -1 if arc.ahead is None else arc.ahead)
        for arc in form.arcs
    ]
    return np.array(rows, dtype=np.int64)


@njit(**OPTIONS)
def _probabilities(entries, at, width, m, e):
    """Of every entry at a frame's nodes, (E, U+1)."""
    for i in range(entries.shape[0]):
        row, mi, ei = entries[i], m[i], e[i]
        for u in range(width):
            mi[u], ei[u] = fast.split64(np.float64(row[at + u]))


@njit(**OPTIONS)
def _weight(arc, width, m, e, wm, we):
    """An arc's probability at a frame's nodes; what leads out of the labels has none."""
    first, second, ahead, labels = arc[2], arc[3], arc[4], arc[1]
    a, b = m[first], e[first]
    for u in range(width):
        wm[u], we[u] = a[u], b[u]
    if second >= 0:
        a, b = m[second], e[second]
        for u in range(width):
            wm[u] *= a[u]
            we[u] += b[u]
    if ahead >= 0:
        a, b = m[ahead], e[ahead]
        for u in range(width - 1):
            wm[u] *= a[u + 1]
            we[u] += b[u + 1]
    if labels > 0:
        wm[width - 1], we[width - 1] = 1.0, fast.NOTHING


@njit(**OPTIONS)
def _add(am, ae, bm, be):
    """a + b, the exponent that of the larger."""
    top = ae if ae > be else be
    return am * fast.power64(ae - top) + bm * fast.power64(be - top), top


@njit(**OPTIONS)
def _normal(m, e):
    """With m in 1..2, where it is a positive number. Nothing stays nothing: were its m let grow from sum to sum, it would
    become something after some hundred frames."""
    if e <= fast.NOTHING / 2 and m < np.inf:
        return 1.0, fast.NOTHING
    d = fast.exponent64(m)
    usual = m > 0.0 and m < np.inf
    return (m * fast.power64(-d), e + d) if usual else (m, e)


@njit(**OPTIONS)
def _first(arc, left, label_ends, width):
    """The first label at which an arc leaves a frame, of which there are `left` to the end: 0; where it ends the path, only the
    last ones; U+1 if it does not leave the frame, or leads beyond the end."""
    if arc[0] == 0 or arc[0] > left:
        return width
    if arc[0] < left:
        return 0
    return max(width - 1 - arc[1], 0) if label_ends or arc[1] == 0 else width


@njit(**OPTIONS)
def _frame(arcs, width, m, e, left, label_ends, ring_m, ring_e, place, am, ae, wm, we):
    """Alpha of a frame from what arrives there, row `place` of the ring, which is emptied; and what goes on to the others.
    `left` are the frames from this one to the end."""
    reach = ring_m.shape[0] - 1
    here_m, here_e = ring_m[place], ring_e[place]
    for u in range(width):
        am[u], ae[u] = _normal(here_m[u], here_e[u])
    for k in range(arcs.shape[0]):
        if arcs[k, 0] == 0:  # stays in the frame: one label after the other
            _weight(arcs[k], width, m, e, wm, we)
            for u in range(1, width):
                x, y = _add(am[u], ae[u], am[u - 1] * wm[u - 1], ae[u - 1] + we[u - 1])
                am[u], ae[u] = _normal(x, y)
    for u in range(width):
        here_m[u], here_e[u] = 1.0, fast.NOTHING
    for k in range(arcs.shape[0]):
        frames, labels = arcs[k, 0], arcs[k, 1]
        first = _first(arcs[k], left, label_ends, width)
        if first == width:
            continue
        _weight(arcs[k], width, m, e, wm, we)
        to = (place + frames) % (reach + 1)
        to_m, to_e = ring_m[to], ring_e[to]
        for u in range(first, width - labels):
            to_m[u + labels], to_e[u + labels] = _add(to_m[u + labels], to_e[u + labels], am[u] * wm[u], ae[u] + we[u])


@njit(**OPTIONS)
def _back(arcs, width, m, e, left, label_ends, ring_m, ring_e, place, qm, qe, wm, we):
    """Beta of a frame into row `place` of the ring, and each arc's part of it (A, U+1)."""
    reach = ring_m.shape[0] - 1
    bm, be = ring_m[place], ring_e[place]
    for u in range(width):
        bm[u], be[u] = 1.0, fast.NOTHING
    for k in range(arcs.shape[0]):
        frames, labels = arcs[k, 0], arcs[k, 1]
        for u in range(width):
            qm[k, u], qe[k, u] = 1.0, fast.NOTHING
        first = _first(arcs[k], left, label_ends, width)
        if first == width:
            continue
        _weight(arcs[k], width, m, e, wm, we)
        to = (place + frames) % (reach + 1)
        to_m, to_e = ring_m[to], ring_e[to]
        for u in range(first, width - labels):
            qm[k, u], qe[k, u] = wm[u] * to_m[u + labels], we[u] + to_e[u + labels]
            bm[u], be[u] = _add(bm[u], be[u], qm[k, u], qe[k, u])
    for u in range(width):
        bm[u], be[u] = _normal(bm[u], be[u])
    for k in range(arcs.shape[0]):
        if arcs[k, 0] == 0:
            _weight(arcs[k], width, m, e, wm, we)
            for u in range(width - 2, -1, -1):
                qm[k, u], qe[k, u] = wm[u] * bm[u + 1], we[u] + be[u + 1]
                x, y = _add(bm[u], be[u], qm[k, u], qe[k, u])
                bm[u], be[u] = _normal(x, y)


@njit(**OPTIONS)
def _posteriors(arcs, width, am, ae, qm, qe, total_m, total_e, weight, gammas, at, share):
    """The posteriors of a frame's entries (E, U+1), from alpha and each arc's part of beta."""
    count, smallest = gammas.shape[0], 1e-37
    share[:, :width] = 0.0
    scale = weight / total_m
    for k in range(arcs.shape[0]):
        first, second, ahead = arcs[k, 2], arcs[k, 3], arcs[k, 4]
        for u in range(width):
            d = ae[u] + qe[k, u] - total_e
            x = am[u] * qm[k, u] * fast.power64(d if d < 900.0 else 900.0) * scale
            x = x if abs(x) >= smallest or x != x else 0.0
            share[first, u] += x
            if second >= 0:
                share[second, u] += x
            if ahead >= 0 and u + 1 < width:
                share[ahead, u + 1] += x
    for i in range(count):
        for u in range(width):
            gammas[i, at + u] = s.type_of(gammas[i, at], share[i, u])


@njit(**OPTIONS)
def _enter(above, ring_m, ring_e, width):
    """What arrives from above, by frame from the first on; at the beginning of an utterance 1 at its first node."""
    ring_m[:], ring_e[:] = 1.0, fast.NOTHING
    if above.shape[0] == 0:
        ring_e[0, 0] = 0.0
        return
    for row in range(above.shape[0]):
        for u in range(width):
            ring_m[row, u], ring_e[row, u] = fast.split64(above[row, u])


@njit(**OPTIONS)
def _utterance(
    entries, row, arcs, reach, label_ends, after, above, below, known, weight, loss, gammas, want
):  # fmt: skip
    """One utterance, or a piece of one: its loss."""
    start, stride, width, frames, count = row[0], row[1], row[2] + 1, row[3], entries.shape[0]
    ring = reach + 1
    length = max(SEGMENT, int(np.sqrt(frames * reach)))
    segments = (frames + length - 1) // length
    m, e = np.empty((count, width)), np.empty((count, width))
    wm, we = np.empty(width), np.empty(width)
    ring_m, ring_e = np.empty((ring, width)), np.empty((ring, width))
    held = length if want else 1
    alpha_m, alpha_e = np.empty((held, width)), np.empty((held, width))
    states = segments if want else 0
    state_m, state_e = np.empty((states, ring, width)), np.empty((states, ring, width))
    _enter(above, ring_m, ring_e, width)
    for t in range(frames):
        if want and t % length == 0:
            state_m[t // length], state_e[t // length] = ring_m, ring_e
        _probabilities(entries, start + t * stride, width, m, e)
        _frame(
            arcs, width, m, e, frames - t + after, label_ends, ring_m, ring_e, t % ring, alpha_m[t % held], alpha_e[t % held],
            wm, we,
        )  # fmt: skip
    end = frames % ring
    if known:
        total_m, total_e = fast.split64(-loss)
    else:
        for i in range(above.shape[0]):
            for u in range(width):
                at = (frames + i) % ring
                above[i, u] = fast.joined64(ring_m[at, u], ring_e[at, u])
        total_m, total_e = _normal(ring_m[end, width - 1], ring_e[end, width - 1])
        loss = -fast.joined64(total_m, total_e)
    if not want:
        return loss
    if not np.isfinite(loss) or weight == 0.0:
        for t in range(frames):
            for i in range(count):
                at = start + t * stride
                gammas[i, at : at + width] = s.type_of(gammas[i, at], 0.0)
        return loss
    ring_m[:], ring_e[:] = 1.0, fast.NOTHING
    if after == 0:
        ring_e[end, width - 1] = 0.0
    for i in range(below.shape[0] if after > 0 else 0):
        for u in range(width):
            at = (frames + i) % ring
            ring_m[at, u], ring_e[at, u] = fast.split64(below[i, u])
    if 0 < after < reach:  # an arc of a frame here may end the path
        ring_m[(frames + after) % ring, width - 1], ring_e[(frames + after) % ring, width - 1] = 1.0, 0.0
    qm, qe = np.empty((arcs.shape[0], width)), np.empty((arcs.shape[0], width))
    share = np.empty((count, width))
    forth_m, forth_e = np.empty((ring, width)), np.empty((ring, width))
    for k in range(segments - 1, -1, -1):
        first, stop = k * length, min(frames, (k + 1) * length)
        if k < segments - 1:
            forth_m[:], forth_e[:] = state_m[k], state_e[k]
            for t in range(first, stop):
                _probabilities(entries, start + t * stride, width, m, e)
                _frame(
                    arcs, width, m, e, frames - t + after, label_ends, forth_m, forth_e, t % ring, alpha_m[t - first],
                    alpha_e[t - first], wm, we,
                )  # fmt: skip
        for t in range(stop - 1, first - 1, -1):
            at = start + t * stride
            _probabilities(entries, at, width, m, e)
            _back(arcs, width, m, e, frames - t + after, label_ends, ring_m, ring_e, t % ring, qm, qe, wm, we)
            _posteriors(
                arcs, width, alpha_m[t - first], alpha_e[t - first], qm, qe, total_m, total_e, weight, gammas, at, share
            )
    for i in range(below.shape[0]):
        for u in range(width):
            below[i, u] = fast.joined64(ring_m[i % ring, u], ring_e[i % ring, u])
    return loss


@kernel(fastmath={"contract"})
def _lattices(
    entries, utterances, arcs, count, reach, label_ends, after, above, below, known, weights, losses, gammas, want
):  # fmt: skip
    for g in prange(utterances.shape[0]):
        losses[g] = _utterance(
            entries, utterances[g], arcs, reach, label_ends, after, above, below, known, weights[g], losses[g], gammas, want
        )  # fmt: skip
