"""Forward through bounds, frame by frame, and only where they leave something: the corridor of docs/methods.md.

A node whose alpha is below a level is left out, and what would have gone on from it is summed: a path that leaves the corridor
does so a first time, and what follows has probability at most 1. So that sum bounds what all such paths have together.
Probabilities are plain float64, as in `intervals.py`.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange
from torch import Tensor

from samplewise.kernels.numba import math as fast
from samplewise.kernels.numba import scalars as s
from samplewise.kernels.numba.activations import NUMBERS
from samplewise.kernels.numba.arrays import LOCK, array, use_threads
from samplewise.kernels.numba.bounds import of_classes
from samplewise.kernels.numba.compiling import kernel
from samplewise.kernels.numba.intervals import first_rows
from samplewise.kernels.numba.panels import LANES, ROWS, VECTORS, WIDTH, fill, frame, lanes, scratch


def sweep(
    encoder_rows: Tensor, predictor_rows: Tensor, activation: str, utterances: Tensor, targets: Tensor, weight: Tensor,
    bias: Tensor, stretches: Tensor, classes: Tensor, rows: Tensor, row_bias: Tensor, rest: Tensor, slack: Tensor,
    level: Tensor, floor: Tensor | None, known: tuple[Tensor, ...], room: Tensor, state: tuple[Tensor, ...], found: Tensor,
    ub_blank: Tensor, ub_label: Tensor,
) -> None:  # fmt: skip
    """Go on through the frames of some stretches, those of an utterance one after the other.

    What makes bounds is as for the kernel `bounds`. Where alpha is below the level (G,), float64, nodes are left out; with
    `floor` (G,) the level is relative to the largest that comes down to a frame, and an utterance of which that falls below the
    floor is given up. `known`: rows (R, 3) as for `interval_lattice`, and both emissions (M,), which are taken in place of
    bounds unless they are NaN. `found` (R, 3) and the bounds (N,) are written, those of utterance g from room[g, 0] on and
    below room[g, 1]. `state` goes from one call to the next: what comes down to the next frame (G, U+1), at first 1, 0, 0, ...;
    its interval and where its first node will lie (G, 3), at first 0, 1 and room[g, 0], and -1 in the end where there was no
    room, or nothing left; what has left the corridor (G,), at first 0.
    """
    with LOCK:
        use_threads()
        of_stretch = array(stretches)
        _sweep(
            _utterances(of_stretch), of_stretch, array(encoder_rows), array(predictor_rows),
            NUMBERS[activation], array(utterances), array(targets), array(weight), array(bias), array(classes),
            array(of_classes(rows)), array(row_bias), array(rest), array(slack), rows.shape[1], array(level), floor is not None,
            array(level if floor is None else floor),
            tuple(array(x) for x in known), array(room), tuple(array(x) for x in state), array(found), array(ub_blank),
            array(ub_label),
        )  # fmt: skip


def _utterances(stretches: np.ndarray) -> np.ndarray:
    """(K, 2) the first stretch of each utterance, and the one after its last."""
    first = np.flatnonzero(np.diff(stretches[:, 0], prepend=-1))
    return np.stack((first, np.append(first[1:], len(stretches))), axis=1)


@njit(error_model="numpy", nogil=True)
def _take(known, row, label, by_blank, by_label):
    """What is known of a panel, in place of bounds."""
    rows, blank, lab = known
    at, low, high = rows[row, 0], rows[row, 1], rows[row, 2]
    for u in range(max(low, label), min(high, label + LANES)):
        if blank[at + u - low] == blank[at + u - low]:
            by_blank[u - label], by_label[u - label] = blank[at + u - low], lab[at + u - low]


@njit(error_model="numpy", nogil=True, fastmath={"contract"})
def _exponentials(x, out):
    for i in range(LANES):
        out[i] = fast.exp64(np.float64(x[i]))


@njit(error_model="numpy", nogil=True)
def _narrow(down, low, high, level):
    """The interval without what lies below the level at its ends, and how much that is."""
    lost = 0.0
    while low < high and down[low] < level:
        lost += down[low]
        down[low] = 0.0
        low += 1
    while high > low and down[high - 1] < level:
        high -= 1
        lost += down[high]
        down[high] = 0.0
    return low, high, lost


@njit(error_model="numpy", nogil=True, fastmath={"contract"})
def _go_on(
    begin, end, utterance, first_row, stretches, encoder_rows, predictor_rows, activation, targets, weight, bias, classes,
    of_class, row_bias, rest, slack, count, level, relative, floor, known, room, down, edges, left, found, ub_blank, ub_label,
):  # fmt: skip
    """An utterance through its stretches begin..end-1."""
    depth, dim = of_class.shape[2], encoder_rows.shape[1]
    labels, frame_base, target_base = utterance[2], utterance[4], utterance[6]
    tokens = predictor_rows[utterance[5] : utterance[5] + labels + 1]
    own_targets, wide = targets[target_base : target_base + labels], labels // WIDTH + VECTORS
    panels, own_rows = np.empty((wide, depth, WIDTH), dtype=bias.dtype), np.empty((wide, depth, WIDTH), dtype=bias.dtype)
    filled = np.zeros(wide, dtype=np.bool_)
    work = scratch(depth, of_class.shape[1] * ROWS, bias)
    own_bias, counted = np.empty(LANES, dtype=bias.dtype), np.empty(LANES, dtype=bias.dtype)
    by_blank, by_label = np.empty(LANES, dtype=bias.dtype), np.empty(LANES, dtype=bias.dtype)
    p_blank, p_label = np.empty(LANES), np.empty(LANES)
    no_keys = np.empty(0, dtype=np.uint32)  # dropout leaves no corridor
    low, high, at = edges[0], edges[1], edges[2]
    for q in range(begin, end):
        told = -1  # the panel that own_bias and counted are of
        for t in range(stretches[q, 1], stretches[q, 2]):
            if at < 0:
                break
            most = down[low:high].max()
            least = level * most if relative else level
            low, high, lost = _narrow(down, low, high, least)
            left[0] += lost
            label, u, along = low - low % WIDTH, low, 0.0
            first, going = at, low < high and not (relative and most < floor)
            while going and u <= labels and (u < high or along >= least):
                if at + min(label + LANES, labels + 1) - u > room:
                    going = False
                    break
                block = label // WIDTH
                if told != label:
                    lanes(label, own_targets, bias, classes[q], own_bias, counted)
                    told = label
                    for b in range(block, block + VECTORS):
                        if not filled[b]:
                            fill(b, tokens, weight, own_targets, labels, panels[b], own_rows[b])
                            filled[b] = True
                frame(
                    encoder_rows[frame_base + t], panels[block : block + VECTORS], own_rows[block : block + VECTORS],
                    activation, dim, of_class[q], row_bias[q], own_bias, counted, count, rest[q], slack[q], no_keys,
                    np.uint32(0), s.type_of(bias[0], 1.0), work, by_blank, by_label,
                )  # fmt: skip
                _take(known, first_row + t, label, by_blank, by_label)
                _exponentials(by_blank, p_blank)
                _exponentials(by_label, p_label)
                label += LANES
                while u < label and u <= labels and (u < high or along >= least):
                    x, i = down[u] + along, u - label + LANES
                    ub_blank[at], ub_label[at] = by_blank[i], by_label[i]
                    down[u], along = x * p_blank[i], x * p_label[i]
                    at += 1
                    u += 1
            left[0] += along if u <= labels else 0.0
            at = at if going else -1
            if at >= 0:
                row = first_row + t
                found[row, 0], found[row, 1], found[row, 2] = first, low, u
                high = u
    edges[0], edges[1], edges[2] = low, high, at


@kernel(fastmath={"contract"})
def _sweep(
    parts, stretches, encoder_rows, predictor_rows, activation, utterances, targets, weight, bias, classes, of_class, row_bias,
    rest, slack, count, level, relative, floor, known, room, state, found, ub_blank, ub_label,
):  # fmt: skip
    first_row = first_rows(utterances)
    for part in prange(parts.shape[0]):
        g = stretches[parts[part, 0], 0]
        _go_on(
            parts[part, 0], parts[part, 1], utterances[g], first_row[g], stretches, encoder_rows, predictor_rows, activation,
            targets, weight, bias, classes, of_class, row_bias, rest, slack, count, level[g], relative, floor[g], known,
            room[g, 1], state[0][g], state[1][g], state[2][g : g + 1], found, ub_blank, ub_label,
        )  # fmt: skip
