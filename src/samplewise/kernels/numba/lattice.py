"""Forward and backward variables, the loss and the arc posteriors, one utterance a thread (paper: f^W_2, f^W_3).

    alpha(t, u) = logaddexp(alpha(t-1, u) + lp_blank(t-1, u), alpha(t, u-1) + lp_label(t, u-1)),   alpha(0, 0) = 0
    beta(t, u)  = logaddexp(beta(t+1, u) + lp_blank(t, u), beta(t, u+1) + lp_label(t, u)),          beta(T, U) = 0
    loss = -(alpha(T-1, U) + lp_blank(T-1, U)),     gamma_arc = exp(alpha(node) + lp_arc + beta(next node) + loss)

Sums run in float64 whatever the emissions are: in float32 the gradients lose three digits by T = 800. Of alpha only every K-th
row is kept for a long utterance, and the rows between are made again block by block on the way back.
"""

from __future__ import annotations

import math as libm
from typing import Any

import numpy as np
from numba import njit, prange
from torch import Tensor

from samplewise.kernels.numba import math as fast
from samplewise.kernels.numba import scalars as s
from samplewise.kernels.numba.arrays import LOCK, array, kernel, use_threads

OPTIONS: dict[str, Any] = {"error_model": "numpy", "nogil": True, "fastmath": {"contract"}}


def lattice(
    lp_blank: Tensor, lp_label: Tensor, utterances: Tensor, weights: Tensor, losses: Tensor,
    gamma_blank: Tensor | None, gamma_label: Tensor | None, block_nodes: int,
) -> None:  # fmt: skip
    """Losses (G,) float64 and, unless None, the arc posteriors times the utterance's weight.

    lp_blank and lp_label (N,) are the emissions by node, utterances (G, 7) the table of `layout.py`, weights (G,) float64. The
    posteriors (N,) may be the emissions themselves, which then are overwritten. An utterance whose loss is not finite has no
    occupancy. An utterance of more than `block_nodes` nodes keeps its alpha in blocks.
    """
    want = gamma_blank is not None and gamma_label is not None
    with LOCK:
        use_threads()
        _lattice(
            array(lp_blank), array(lp_label), array(utterances), array(weights), array(losses),
            array(gamma_blank if gamma_blank is not None else lp_blank),
            array(gamma_label if gamma_label is not None else lp_label), want, block_nodes,
        )  # fmt: skip


@njit(**OPTIONS)
def _logaddexp(a, b):
    top, low = (a, b) if a > b else (b, a)
    if top == -np.inf:
        return top + low if low != low else top
    return top + libm.log1p(fast.exp64(low - top))


@njit(**OPTIONS)
def _alpha_row(before, row, lp_blank, lp_label, at, stride):
    """One row of alpha; `before` is the row of the frame before, or empty for the first frame."""
    if before.size == 0:
        row[0] = 0.0
        for u in range(1, row.size):
            row[u] = row[u - 1] + lp_label[at + u - 1]
        return
    row[0] = before[0] + lp_blank[at - stride]
    for u in range(1, row.size):
        row[u] = _logaddexp(before[u] + lp_blank[at - stride + u], row[u - 1] + lp_label[at + u - 1])


@njit(**OPTIONS)
def _beta_row(alpha, beta, last, lp_blank, lp_label, at, loss, weight, gamma_blank, gamma_label):
    """One row of beta in place (it holds the row of the next frame), and the posteriors of the row's arcs."""
    labels = beta.size - 1
    scale = s.type_of(lp_blank[at], weight)
    smallest = s.type_of(lp_blank[at], 1e-37)
    for u in range(labels, -1, -1):
        by_blank = -np.inf if (last and u < labels) else lp_blank[at + u] + beta[u]
        by_label = lp_label[at + u] + beta[u + 1] if u < labels else -np.inf
        beta[u] = _logaddexp(by_blank, by_label)
        reach = alpha[u] + loss
        g = s.type_of(scale, fast.exp64(min(by_blank + reach, 0.0)))
        gamma_blank[at + u] = g * scale if g > smallest else s.type_of(scale, 0.0)
        g = s.type_of(scale, fast.exp64(min(by_label + reach, 0.0)))
        gamma_label[at + u] = g * scale if g > smallest else s.type_of(scale, 0.0)


@njit(**OPTIONS)
def _utterance(lp_blank, lp_label, start, stride, labels, frames, weight, gamma_blank, gamma_label, want, block_nodes):
    width = labels + 1
    height = frames if frames * width <= block_nodes else int(np.ceil(np.sqrt(frames)))
    blocks = (frames + height - 1) // height
    kept = np.empty((blocks, width))  # alpha at the first row of every block
    block = np.empty((height if want else 2, width))
    for t in range(frames):  # forward; the last block stays in `block`
        i = t % height
        row = block[i if want else t % 2]
        before = block[:0, 0] if t == 0 else (block[(i - 1) % height] if want else block[(t - 1) % 2])
        _alpha_row(before, row, lp_blank, lp_label, start + t * stride, stride)
        if i == 0:
            kept[t // height] = row
    end = start + (frames - 1) * stride
    loss = -(row[labels] + lp_blank[end + labels])
    if not want:
        return loss
    if not np.isfinite(loss) or weight == 0.0:
        for t in range(frames):
            gamma_blank[start + t * stride : start + t * stride + width] = s.type_of(gamma_blank[start], 0.0)
            gamma_label[start + t * stride : start + t * stride + width] = s.type_of(gamma_blank[start], 0.0)
        return loss
    beta = np.full(width, -np.inf)
    beta[labels] = 0.0
    for k in range(blocks - 1, -1, -1):
        first, stop = k * height, min((k + 1) * height, frames)
        if k < blocks - 1:
            block[0] = kept[k]
            for t in range(first + 1, stop):
                _alpha_row(block[t - first - 1], block[t - first], lp_blank, lp_label, start + t * stride, stride)
        for t in range(stop - 1, first - 1, -1):
            _beta_row(
                block[t - first], beta, t == frames - 1, lp_blank, lp_label, start + t * stride, loss, weight,
                gamma_blank, gamma_label,
            )  # fmt: skip
    return loss


@kernel(fastmath={"contract"})
def _lattice(lp_blank, lp_label, utterances, weights, losses, gamma_blank, gamma_label, want, block_nodes):
    for g in prange(utterances.shape[0]):
        start, stride, labels, frames = utterances[g, 0], utterances[g, 1], utterances[g, 2], utterances[g, 3]
        losses[g] = _utterance(
            lp_blank,
            lp_label,
            start,
            stride,
            labels,
            frames,
            weights[g],
            gamma_blank,
            gamma_label,
            want,
            block_nodes,
        )
