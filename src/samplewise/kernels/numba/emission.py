"""From a tile of logits to three numbers a node, and from them to the gradient of the tile, each in one sweep.

Paper: f^W_1 (softmax denominator P_D) and f^W_4 (gradient of the output scores, in place). A row is read while it lies in the
nearest cache, so the sweeps cost a small part of the matrix product that made the tile.
"""

from __future__ import annotations

import math as libm

import numpy as np
from numba import njit, prange
from torch import Tensor

from samplewise.kernels.numba import scalars as s
from samplewise.kernels.numba.arrays import LOCK, array, use_threads
from samplewise.kernels.numba.compiling import kernel

EXACT = {"contract", "nsz"}
SUMS = {"contract", "reassoc", "nsz"}  # reassociation lets sums vectorise; infinities and NaN stay defined


def emission(
    logits: Tensor, bias: Tensor, node: Tensor, label: Tensor, blank: int,
    log_denominator: Tensor, lp_blank: Tensor, lp_label: Tensor,
) -> None:  # fmt: skip
    """Log-softmax denominators of logits + bias, and the log-probabilities of blank and of the next label.

    logits (R, C), bias (C,), node and label (R,) int64; label -1 means that no label is left (log-probability -inf).
    Row r writes element node[r] of the three outputs (N,); log_denominator is float64, so that large scores keep their digits.
    """
    with LOCK:
        use_threads()
        _emission(
            array(logits), array(bias), array(node), array(label), blank,
            array(log_denominator), array(lp_blank), array(lp_label),
        )  # fmt: skip


def emission_gradient(
    logits: Tensor, bias: Tensor, node: Tensor, label: Tensor, blank: int,
    log_denominator: Tensor, gamma_blank: Tensor, gamma_label: Tensor, d_bias: Tensor,
) -> None:  # fmt: skip
    """Overwrite logits (R, C) with dL/dh = gamma softmax(h) - gamma_blank e_blank - gamma_label e_label.

    Rows without occupancy become zeros whatever they held. d_bias (C,) accumulates the column sums.
    """
    with LOCK:
        threads = use_threads()
        partial = np.zeros((threads, logits.shape[1]), dtype=array(d_bias).dtype)
        _emission_gradient(
            array(logits), array(bias), array(node), array(label), blank,
            array(log_denominator), array(gamma_blank), array(gamma_label), partial,
        )  # fmt: skip
        array(d_bias)[:] += partial.sum(0)


@njit(fastmath=EXACT, error_model="numpy", nogil=True)
def above(element, bias, level):
    """score - level, in this order: numba hands a caller's fastmath down, and reassociated it would round as level does."""
    return (s.load(element) + bias) - level


@njit(fastmath=SUMS, error_model="numpy", nogil=True)
def _largest(row, bias):
    best = s.order(s.load(row[0]) + bias[0])
    for v in range(1, row.size):
        key = s.order(s.load(row[v]) + bias[v])
        best = key if key > best else best
    return s.from_order(best, bias[0])


@njit(fastmath=SUMS, error_model="numpy", nogil=True)
def log_sum_exp(row, bias):
    """The largest score, and the log of the sum of all relative to it: apart they keep the digits that their sum would lose."""
    top = _largest(row, bias)
    total = s.type_of(top, 0.0)
    for v in range(row.size):
        total += s.exp(above(row[v], bias[v], top))
    return top, s.type_of(top, libm.log(total))


@kernel()
def _emission(logits, bias, node, label, blank, log_denominator, lp_blank, lp_label):
    for r in prange(logits.shape[0]):
        row, n, y = logits[r], node[r], label[r]
        top, rest = log_sum_exp(row, bias)
        log_denominator[n] = np.float64(top) + np.float64(rest)
        lp_blank[n] = above(row[blank], bias[blank], top) - rest
        lp_label[n] = above(row[y], bias[y], top) - rest if y >= 0 else -np.inf


@njit(fastmath=SUMS, error_model="numpy", nogil=True)
def shares(row, bias, level, out):
    """exp(score - level) of every class, and their sum. What rounds the scores here may not be what rounded them when the
    level was made, in another product of another shape; divided by this sum they are the softmax all the same."""
    total = s.type_of(level, 0.0)
    for v in range(row.size):
        x = s.exp(above(row[v], bias[v], level))
        out[v] = x
        total += x
    return total


@njit(fastmath=EXACT, error_model="numpy", nogil=True)
def scale(row, shares, factor, column_sum):
    """The shares times a factor into the row, and on to the column sums."""
    smallest = s.type_of(factor, 1e-37)  # products below this are denormal in float32: slow, and worth nothing
    for v in range(row.size):
        x = factor * shares[v]
        x = s.type_of(x, 0.0) if abs(x) < smallest else x
        column_sum[v] += x
        row[v] = s.encode(x, row[v])


@kernel()
def _emission_gradient(logits, bias, node, label, blank, log_denominator, gamma_blank, gamma_label, partial):
    rows, parts = logits.shape[0], partial.shape[0]
    for part in prange(parts):
        column_sum, share = partial[part], np.empty(logits.shape[1], dtype=bias.dtype)
        for r in range(rows * part // parts, rows * (part + 1) // parts):
            row, n, y = logits[r], node[r], label[r]
            by_blank, by_label = gamma_blank[n], gamma_label[n]
            occupancy = by_blank + by_label
            if occupancy == 0.0:
                row[:] = s.encode(occupancy, row[0])
                continue
            factor = occupancy / shares(row, bias, s.type_of(bias[0], log_denominator[n]), share)
            scale(row, share, factor, column_sum)
            row[blank] = s.encode(factor * share[blank] - by_blank, row[blank])
            column_sum[blank] -= by_blank
            if y >= 0:
                row[y] = s.encode(factor * share[y] - by_label, row[y])
                column_sum[y] -= by_label
