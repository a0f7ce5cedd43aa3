"""Bounds of a panel of nodes: LANES neighbouring labels at one frame, one a lane.

The formula is in `kernels/eager/bounds.py`. Joint encodings stay in the nearest cache, inner products in registers. What the
labels bring along, their encodings and the rows of the output layer that are their own, lies in blocks (D, WIDTH).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from samplewise.kernels.numba import scalars as s
from samplewise.kernels.numba import vectors
from samplewise.kernels.numba.activations import TANH_OF_EXPONENTIALS, chosen, compiled
from samplewise.kernels.numba.dropout import mask_panel

LANES, WIDTH, VECTORS, ROWS = vectors.LANES, vectors.WIDTH, vectors.VECTORS, vectors.ROWS


@njit(error_model="numpy", nogil=True)
def scratch(depth, count, like):
    """What `frame` needs besides, of the dtype of `like`."""
    real = like.dtype
    return (
        np.zeros(depth, dtype=real), np.zeros((depth, LANES), dtype=real), np.empty((count, LANES), dtype=real),
        np.empty(LANES, dtype=real), np.empty(LANES, dtype=real), np.empty(LANES, dtype=real), np.empty(LANES, dtype=real),
    )  # fmt: skip


@njit(error_model="numpy", nogil=True)
def fill(block, predictor_rows, weight, targets, labels, panel, own_rows):
    """A block (D, WIDTH) of labels in lanes: encodings (U+1, D) and rows of the output layer that are their own."""
    panel[:], own_rows[:] = 0.0, 0.0
    for i in range(min(WIDTH, labels + 1 - block * WIDTH)):
        u = block * WIDTH + i
        for d in range(predictor_rows.shape[1]):
            panel[d, i] = s.load(predictor_rows[u, d])
        if u < labels:
            for d in range(predictor_rows.shape[1]):
                own_rows[d, i] = s.load(weight[targets[u], d])


@njit(error_model="numpy", nogil=True)
def lanes(label, targets, bias, classes, own_bias, counted):
    """The biases of the panel's own labels, and which of these are among a stretch's others."""
    for i in range(LANES):
        own_bias[i], counted[i] = -np.inf, 0.0
        if label + i < targets.size:
            y = targets[label + i]
            own_bias[i] = bias[y]
            counted[i] = 0.0 if bias[y] == -np.inf else 1.0
            for k in range(classes.size):
                if classes[k] == y:
                    counted[i] = 0.0


@chosen
def _act(activation):
    act = activation.forward

    @compiled()
    def frame(encoding, panel, z, dim):
        """z (D, LANES) of one frame by the plain activation."""
        for v in range(VECTORS):
            for d in range(dim):
                e, p, o = s.load(encoding[d]), panel[v, d], z[d, v * WIDTH : (v + 1) * WIDTH]
                for i in range(WIDTH):
                    o[i] = act(e + p[i])

    return frame


@njit(fastmath={"contract"}, error_model="numpy", nogil=True)
def frame(
    encoding, panel, own_rows, activation, dim, panels, row_bias, own_bias, counted, count, rest, slack, keys, threshold, scale,
    work, by_blank, by_label,
):  # fmt: skip
    """Bounds (LANES,) of both emissions at a frame. encoding (D,); panel and own_rows (VECTORS, depth, WIDTH); panels
    (R/4, depth, 4) are the rows of the classes, of which there are `count`, the sum of all others last; own_bias and counted
    (LANES,) as in `_finish`. keys (LANES,), threshold and scale are those of `dropout.py`; threshold 0: none."""
    row, z, scores, own, top, total, mean = work
    depth = z.shape[0]
    if activation < 0:  # of exponentials
        for d in range(dim):
            row[d] = s.load(encoding[d])
        if activation == TANH_OF_EXPONENTIALS:
            vectors.tanh_of_exponentials(row, panel, z, depth)
        else:
            vectors.sigmoid_of_exponentials(row, panel, z, depth)
    else:
        _act(activation, encoding, panel, z, dim)
    if threshold > np.uint32(0):
        mask_panel(z, dim, keys, threshold, scale)
    for k in range(panels.shape[0]):
        vectors.rows_times_panel(z, panels[k], scores[k * ROWS : (k + 1) * ROWS], depth)  # type: ignore
    vectors.own_times_panel(z, own_rows, own, depth)  # type: ignore
    _finish(scores, own, row_bias, own_bias, counted, count, rest, slack, top, total, mean, by_blank, by_label)


@compiled()
def _logarithms(x):
    """log of a vector of positive numbers, in place; float32 by a series that vectorises."""
    for i in range(x.size):
        x[i] = s.log(x[i])


@compiled()
def _finish(scores, own, row_bias, own_bias, counted, count, rest, slack, top, total, mean, by_blank, by_label):
    """From inner products (R, LANES) and (LANES,) to the bounds of LANES nodes. The last row is the sum of all other classes;
    counted: 1 where the node's own label is one of these, 0 where it is among the rows already, or where there is none."""
    one, nothing = s.type_of(rest, 1.0), s.type_of(rest, -np.inf)
    for i in range(LANES):
        left = rest - counted[i]
        total[i] = left if left > one else one
    _logarithms(total)
    last, b = scores[count - 1], row_bias[count - 1]
    for i in range(LANES):
        left = rest - counted[i]
        own[i] += own_bias[i]
        subtracted = own[i] if counted[i] == one else s.type_of(rest, 0.0)
        average = (last[i] + b - subtracted) / (left if left > one else one) + total[i]
        mean[i] = average if left > s.type_of(rest, 0.5) else nothing
        top[i] = mean[i]
    for k in range(count - 1):
        row, b = scores[k], row_bias[k]
        for i in range(LANES):
            row[i] += b
            top[i] = row[i] if row[i] > top[i] else top[i]
    for i in range(LANES):
        x = own[i] if counted[i] == one else nothing
        top[i] = x if x > top[i] else top[i]
        total[i] = s.exp(mean[i] - top[i]) + s.exp(x - top[i])
    for k in range(count - 1):
        row = scores[k]
        for i in range(LANES):
            total[i] += s.exp(row[i] - top[i])
    _logarithms(total)
    row = scores[0]
    for i in range(LANES):
        x = (row[i] - top[i]) - total[i] + slack
        by_blank[i] = s.type_of(x, 0.0) if x > s.type_of(x, 0.0) else x
        x = (own[i] - top[i]) - total[i] + slack
        by_label[i] = s.type_of(x, 0.0) if x > s.type_of(x, 0.0) else x
