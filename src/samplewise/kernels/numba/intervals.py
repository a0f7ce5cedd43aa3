"""A lattice of which each frame has an interval of nodes, and the others do not exist: no path goes through them.

Probabilities are plain float64 here, without exponents of their own, so it serves likelihoods above 1e-250: what is below
1e-300 beside them is lost, which no occupancy notices. A frame is a few vectors and one chain of multiply-adds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange
from torch import Tensor

from samplewise.kernels.numba import math as fast
from samplewise.kernels.numba import scalars as s
from samplewise.kernels.numba.arrays import LOCK, array, use_threads
from samplewise.kernels.numba.compiling import kernel

OPTIONS: dict[str, Any] = {"error_model": "numpy", "nogil": True, "fastmath": {"contract"}}
TINY = 1e-300  # denormal numbers are slow


def interval_lattice(
    lp_blank: Tensor, lp_label: Tensor, utterances: Tensor, rows: Tensor, losses: Tensor,
    gamma_blank: Tensor | None, gamma_label: Tensor | None,
) -> None:  # fmt: skip
    """Losses (G,) float64 of the paths inside and, unless None, the posteriors of both arcs.

    rows (R, 3) int64 are the frames of all utterances, one utterance after the other: of each, where its first node lies in
    emissions and posteriors (N,), which label that is, and the label after its last. Only LABELS and FRAMES of the table are
    read. The posteriors may be the emissions themselves. An utterance whose loss is not finite, or above
    575, has no occupancy. It takes 8 bytes a node of the utterances that run at the same time.
    """
    blank = lp_blank if gamma_blank is None else gamma_blank
    with LOCK:
        use_threads()
        _interval_lattice(
            array(lp_blank), array(lp_label), array(utterances), array(rows), array(losses), array(blank),
            array(blank if gamma_label is None else gamma_label), gamma_blank is not None,
        )  # fmt: skip


@njit(**OPTIONS)
def first_rows(utterances):
    """Of every utterance, and after the last, its first row."""
    first = np.zeros(utterances.shape[0] + 1, dtype=np.int64)
    for g in range(utterances.shape[0]):
        first[g + 1] = first[g] + utterances[g, 3]
    return first


@njit(**OPTIONS)
def _probabilities(lp, out):
    for i in range(lp.size):
        out[i] = fast.exp64(np.float64(lp[i]))


@njit(**OPTIONS)
def _forward(lp_blank, lp_label, rows, labels, p_blank, p_label, alpha):
    """Alpha of every node into alpha (n,); returns the likelihood."""
    above = np.zeros(labels + 1)  # what comes down to each node of a frame
    above[0] = 1.0
    first, stop, n = 0, 1, 0
    for r in range(rows.shape[0]):
        at, low, high = rows[r, 0], rows[r, 1], rows[r, 2]
        count = high - low
        if count <= 0:
            return 0.0
        above[first : min(low, stop)] = 0.0
        above[max(high, first) : stop] = 0.0
        _probabilities(lp_blank[at : at + count], p_blank[:count])
        _probabilities(lp_label[at : at + count], p_label[:count])
        along = 0.0
        for i in range(count):
            x = above[low + i] + along
            x = 0.0 if x <= TINY else x  # NaN stays what it is: then there is no likelihood
            alpha[n + i] = x
            along = x * p_label[i]
        for i in range(count):
            above[low + i] = alpha[n + i] * p_blank[i]
        n += count
        first, stop = low, high
    return above[labels] if first <= labels < stop else 0.0


@njit(**OPTIONS)
def _backward(lp_blank, lp_label, rows, labels, p_blank, p_label, alpha, likelihood, gamma_blank, gamma_label):
    """The posteriors, from the last frame to the first."""
    below, beta = np.zeros(labels + 1), np.zeros(labels + 2)
    below[labels] = 1.0
    first, stop, n, inverse = labels, labels + 1, alpha.size, 1.0 / likelihood
    for r in range(rows.shape[0] - 1, -1, -1):
        at, low, high = rows[r, 0], rows[r, 1], rows[r, 2]
        count = high - low
        n -= count
        below[first : min(low, stop)] = 0.0
        below[max(high, first) : stop] = 0.0
        _probabilities(lp_blank[at : at + count], p_blank[:count])
        _probabilities(lp_label[at : at + count], p_label[:count])
        for i in range(count):
            p_blank[i] *= below[low + i]
        beta[count] = 0.0  # nothing goes over the edge
        for i in range(count - 1, -1, -1):
            x = p_blank[i] + p_label[i] * beta[i + 1]
            beta[i] = 0.0 if x <= TINY else x
        for i in range(count):
            reach = alpha[n + i] * inverse
            down, along = reach * p_blank[i], reach * (p_label[i] * beta[i + 1])
            down, along = down if down < 1.0 else 1.0, along if along < 1.0 else 1.0
            gamma_blank[at + i] = s.type_of(gamma_blank[at], down if down > 1e-37 else 0.0)
            gamma_label[at + i] = s.type_of(gamma_label[at], along if along > 1e-37 else 0.0)
        for i in range(count):
            below[low + i] = beta[i]
        first, stop = low, high


@kernel(fastmath={"contract"})
def _interval_lattice(lp_blank, lp_label, utterances, rows, losses, gamma_blank, gamma_label, want):
    first = first_rows(utterances)
    for g in prange(utterances.shape[0]):
        labels, mine = utterances[g, 2], rows[first[g] : first[g + 1]]
        p_blank, p_label = np.empty(labels + 1), np.empty(labels + 1)
        alpha = np.empty(max(0, (mine[:, 2] - mine[:, 1]).sum()))
        likelihood = _forward(lp_blank, lp_label, mine, labels, p_blank, p_label, alpha)
        losses[g] = -np.log(likelihood) if likelihood > 1e-250 else np.inf
        if want and likelihood > 1e-250:
            _backward(
                lp_blank, lp_label, mine, labels, p_blank, p_label, alpha, likelihood, gamma_blank, gamma_label
            )  # fmt: skip
        elif want:
            for r in range(mine.shape[0]):
                for n in range(mine[r, 0], mine[r, 0] + mine[r, 2] - mine[r, 1]):
                    gamma_blank[n] = s.type_of(gamma_blank[0], 0.0)
                    gamma_label[n] = s.type_of(gamma_label[0], 0.0)
