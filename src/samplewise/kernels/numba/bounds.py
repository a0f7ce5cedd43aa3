"""Upper bounds of the emissions of every node, from a few classes: no tile in memory, one launch for all stretches.

The formula and the meaning of the arguments are in `kernels/eager/bounds.py`. Here a thread takes LANES neighbouring labels of
an utterance and walks the frames (`panels.py`).
"""

from __future__ import annotations

import numpy as np
from numba import prange
from torch import Tensor

from samplewise.kernels.masks import Dropout
from samplewise.kernels.numba.activations import NUMBERS
from samplewise.kernels.numba.arrays import LOCK, array, use_threads
from samplewise.kernels.numba.compiling import kernel
from samplewise.kernels.numba.dropout import key_of, numbers
from samplewise.kernels.numba.panels import LANES, ROWS, VECTORS, WIDTH, fill, frame, lanes, scratch

FRAMES_A_TASK = 64  # about so many, which share the transposed rows of their labels


def bounds(
    encoder_rows: Tensor, predictor_rows: Tensor, activation: str, utterances: Tensor, targets: Tensor, weight: Tensor,
    bias: Tensor, stretches: Tensor, classes: Tensor, rows: Tensor, row_bias: Tensor, rest: Tensor, slack: Tensor,
    ub_blank: Tensor, ub_label: Tensor, dropout: Dropout | None = None,
) -> None:  # fmt: skip
    """Write upper bounds of lp_blank and lp_label of every node of the stretches; see `kernels/eager/bounds.py`."""
    if not len(stretches):
        return
    with LOCK:
        use_threads()
        of_stretch = array(stretches)
        _bounds(
            _tasks(of_stretch, array(utterances)), of_stretch, array(encoder_rows), array(predictor_rows),
            NUMBERS[activation], array(utterances), array(targets), array(weight), array(bias), array(classes),
            array(of_classes(rows)), array(row_bias), array(rest), array(slack), rows.shape[1],
            numbers(dropout, array(bias).dtype), array(ub_blank), array(ub_label),
        )  # fmt: skip


def of_classes(rows: Tensor) -> Tensor:
    """Rows (Q, R, D) as panels (Q, R/4, D, 4), with zeros where R or D is no multiple of 4."""
    count, depth = rows.shape[1:]
    padded = (-count) % ROWS, (-depth) % ROWS
    few = rows.new_zeros(len(rows), count + padded[0], depth + padded[1])
    few[:, :count, :depth] = rows
    return few.view(len(rows), -1, ROWS, depth + padded[1]).transpose(2, 3).contiguous()


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


@kernel(fastmath={"contract"})
def _bounds(
    tasks, stretches, encoder_rows, predictor_rows, activation, utterances, targets, weight, bias, classes, panels, row_bias,
    rest, slack, count, dropout, ub_blank, ub_label,
):  # fmt: skip
    seed_low, seed_high, threshold, scale, _, _, first_utterance = dropout
    depth, dim, real = panels.shape[2], encoder_rows.shape[1], bias.dtype
    for task in prange(tasks.shape[0]):
        first, stop, label = tasks[task, 0], tasks[task, 1], tasks[task, 2]
        g = stretches[first, 0]
        start, stride, labels = utterances[g, 0], utterances[g, 1], utterances[g, 2]
        frame_base, token_base, target_base = utterances[g, 4], utterances[g, 5], utterances[g, 6]
        width = min(LANES, labels + 1 - label)
        tokens = predictor_rows[token_base : token_base + labels + 1]
        own_targets = targets[target_base : target_base + labels]
        panel, own_rows = np.empty((VECTORS, depth, WIDTH), dtype=real), np.empty((VECTORS, depth, WIDTH), dtype=real)
        for v in range(VECTORS):
            fill(label // WIDTH + v, tokens, weight, own_targets, labels, panel[v], own_rows[v])
        work = scratch(depth, panels.shape[1] * ROWS, bias)
        own_bias, counted = np.empty(LANES, dtype=real), np.empty(LANES, dtype=real)
        by_blank, by_label = np.empty(LANES, dtype=real), np.empty(LANES, dtype=real)
        keys = np.empty(LANES, dtype=np.uint32)
        for q in range(first, stop):
            lanes(label, own_targets, bias, classes[q], own_bias, counted)
            for t in range(stretches[q, 1], stretches[q, 2]):
                for i in range(LANES if threshold > np.uint32(0) else 0):
                    keys[i] = key_of(seed_low, seed_high, first_utterance + g, t, label + i)
                frame(
                    encoder_rows[frame_base + t], panel, own_rows, activation, dim, panels[q], row_bias[q], own_bias, counted,
                    count, rest[q], slack[q], keys, threshold, scale, work, by_blank, by_label,
                )  # fmt: skip
                at = start + t * stride + label
                ub_blank[at : at + width] = by_blank[:width]
                ub_label[at : at + width] = by_label[:width]
