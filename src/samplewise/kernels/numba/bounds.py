"""Upper bounds of the emissions of every node, from a few classes: no tile in memory, one launch for all stretches.

The formula and the meaning of the arguments are in `kernels/eager/bounds.py`. Here a thread takes LANES neighbouring labels of
an utterance, one a lane, and walks the frames; joint encodings stay in the nearest cache, inner products in registers.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange
from torch import Tensor

from samplewise.kernels.numba import scalars as s
from samplewise.kernels.numba import vectors
from samplewise.kernels.numba.arrays import LOCK, array, kernel, use_threads
from samplewise.kernels.numba.joint import ACTIVATIONS

LANES, ROWS = vectors.LANES, vectors.ROWS
FRAMES_A_TASK = 64  # about so many, which share the transposed rows of their labels
NUMERIC = {"contract", "nsz"}


def bounds(
    encoder_rows: Tensor, predictor_rows: Tensor, activation: str, utterances: Tensor, targets: Tensor, weight: Tensor,
    bias: Tensor, stretches: Tensor, classes: Tensor, rows: Tensor, row_bias: Tensor, rest: Tensor, slack: Tensor,
    ub_blank: Tensor, ub_label: Tensor,
) -> None:  # fmt: skip
    """Write upper bounds of lp_blank and lp_label of every node of the stretches; see `kernels/eager/bounds.py`."""
    count, depth = rows.shape[1], rows.shape[2]
    if not len(stretches):
        return
    padded = (-count) % ROWS, (-depth) % ROWS
    few = rows.new_zeros(len(rows), count + padded[0], depth + padded[1])
    few[:, :count, :depth] = rows
    panels = few.view(len(rows), -1, ROWS, depth + padded[1]).transpose(2, 3).contiguous()  # (Q, R/4, D, 4)
    with LOCK:
        use_threads()
        of_stretch = array(stretches)
        _bounds(
            _tasks(of_stretch, array(utterances)), of_stretch, array(encoder_rows), array(predictor_rows),
            ACTIVATIONS[activation], array(utterances), array(targets), array(weight), array(bias), array(classes),
            array(panels), array(row_bias), array(rest), array(slack), count, array(ub_blank), array(ub_label),
        )  # fmt: skip


def _tasks(stretches: np.ndarray, utterances: np.ndarray) -> np.ndarray:
    """(first stretch, stop, first label) of every task (K, 3): some consecutive stretches of an utterance, and LANES labels."""
    utterance, frames = stretches[:, 0], stretches[:, 2] - stretches[:, 1]
    before = np.cumsum(frames) - frames
    starts = np.flatnonzero(np.diff(utterance, prepend=-1))
    own = before - np.repeat(before[starts], np.diff(starts, append=len(utterance)))
    part = own // FRAMES_A_TASK
    first = np.flatnonzero((np.diff(utterance, prepend=-1) != 0) | (np.diff(part, prepend=-1) != 0))
    stop = np.append(first[1:], len(utterance))
    widths = utterances[utterance[first], 2] + 1
    blocks = -(-widths // LANES)
    each = np.repeat(np.arange(len(first)), blocks)
    label = (np.arange(len(each)) - np.repeat(np.cumsum(blocks) - blocks, blocks)) * LANES
    return np.stack((first[each], stop[each], label), axis=1)


@njit(fastmath=NUMERIC, error_model="numpy", nogil=True)
def _act_row(row, panel, activation, z):
    """z (D, LANES) of one frame by the plain activation."""
    for d in range(panel.shape[0]):
        e, p, o = s.load(row[d]), panel[d], z[d]
        if activation == s.TANH:
            for i in range(LANES):
                o[i] = s.tanh(e + p[i])
        elif activation == s.RELU:
            for i in range(LANES):
                x = e + p[i]
                o[i] = s.type_of(x, 0.0) if x < s.type_of(x, 0.0) else x
        elif activation == s.SIGMOID:
            for i in range(LANES):
                o[i] = s.sigmoid(e + p[i])
        elif activation == s.GELU:
            for i in range(LANES):
                x = e + p[i]
                o[i] = x * s.normal_cdf(x)
        elif activation == s.SILU:
            for i in range(LANES):
                x = e + p[i]
                o[i] = x * s.sigmoid(x)
        else:
            for i in range(LANES):
                o[i] = e + p[i]


@njit(fastmath=NUMERIC, error_model="numpy", nogil=True)
def _logarithms(x):
    """log of a vector of positive numbers, in place; float32 by a series that vectorises."""
    for i in range(x.size):
        x[i] = s.log(x[i])


@njit(fastmath=NUMERIC, error_model="numpy", nogil=True)
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


@kernel(fastmath={"contract"})
def _bounds(
    tasks, stretches, encoder_rows, predictor_rows, activation, utterances, targets, weight, bias, classes, panels, row_bias,
    rest, slack, count, ub_blank, ub_label,
):  # fmt: skip
    depth, dim, real = panels.shape[2], encoder_rows.shape[1], bias.dtype
    for task in prange(tasks.shape[0]):
        first, stop, label = tasks[task, 0], tasks[task, 1], tasks[task, 2]
        g = stretches[first, 0]
        start, stride, labels = utterances[g, 0], utterances[g, 1], utterances[g, 2]
        frame_base, token_base, target_base = utterances[g, 4], utterances[g, 5], utterances[g, 6]
        width = min(LANES, labels + 1 - label)
        panel, own_rows = np.zeros((depth, LANES), dtype=real), np.zeros((depth, LANES), dtype=real)
        own_bias, finite = np.full(LANES, -np.inf, dtype=real), np.zeros(LANES, dtype=real)
        for i in range(LANES):
            u = label + min(i, width - 1)
            p = predictor_rows[token_base + u]
            for d in range(dim):
                panel[d, i] = s.load(p[d])
            if u < labels:
                y = targets[target_base + u]
                w = weight[y]
                for d in range(dim):
                    own_rows[d, i] = s.load(w[d])
                own_bias[i] = bias[y]
                finite[i] = 0.0 if bias[y] == -np.inf else 1.0
        scores, own = np.empty((panels.shape[1] * ROWS, LANES), dtype=real), np.empty(LANES, dtype=real)
        z, row = np.zeros((depth, LANES), dtype=real), np.zeros(depth, dtype=real)
        counted, top = np.empty(LANES, dtype=real), np.empty(LANES, dtype=real)
        total, mean = np.empty(LANES, dtype=real), np.empty(LANES, dtype=real)
        by_blank, by_label = np.empty(LANES, dtype=real), np.empty(LANES, dtype=real)
        for q in range(first, stop):
            for i in range(LANES):
                counted[i] = finite[i]
                u = label + i
                if u < labels:
                    for k in range(classes.shape[1]):
                        if classes[q, k] == targets[target_base + u]:
                            counted[i] = 0.0
            for t in range(stretches[q, 1], stretches[q, 2]):
                e = encoder_rows[frame_base + t]
                if activation == s.TANH_OF_EXPONENTIALS or activation == s.SIGMOID_OF_EXPONENTIALS:
                    for d in range(dim):
                        row[d] = s.load(e[d])
                    if activation == s.TANH_OF_EXPONENTIALS:
                        vectors.tanh_of_exponentials(row, panel, z, depth)
                    else:
                        vectors.sigmoid_of_exponentials(row, panel, z, depth)
                else:
                    _act_row(e, panel[:dim], activation, z)
                for k in range(panels.shape[1]):
                    vectors.rows_times_panel(z, panels[q, k], scores[k * ROWS : (k + 1) * ROWS], depth)  # type: ignore
                vectors.own_times_panel(z, own_rows, own, depth)  # type: ignore
                _finish(
                    scores, own, row_bias[q], own_bias, counted, count, rest[q], slack[q], top, total, mean, by_blank, by_label
                )  # fmt: skip
                at = start + t * stride + label
                ub_blank[at : at + width] = by_blank[:width]
                ub_label[at : at + width] = by_label[:width]
