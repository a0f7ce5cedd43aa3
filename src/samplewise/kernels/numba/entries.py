"""As `emission.py`, for every topology: from a tile of logits to the entries of a node, and from them to the gradient."""

from __future__ import annotations

import functools
import math as libm

import numpy as np
from numba import njit, prange
from torch import Tensor

from samplewise.kernels.numba import scalars as s
from samplewise.kernels.numba.arrays import LOCK, array, use_threads
from samplewise.kernels.numba.compiling import kernel
from samplewise.kernels.numba.emission import EXACT, above, log_sum_exp, scale, shares
from samplewise.topology import Bound


def entries(
    logits: Tensor, bias: Tensor, node: Tensor, label: Tensor, form: Bound, log_denominators: Tensor, out: Tensor
) -> None:
    """Log denominators of the heads, and the log-probabilities of a topology's entries; see `kernels/eager/entries.py`."""
    with LOCK:
        use_threads()
        _entries(
            array(logits), array(bias), array(node), array(label), *_tables(form), array(log_denominators), array(out)
        )  # fmt: skip


def entries_gradient(
    logits: Tensor, bias: Tensor, node: Tensor, label: Tensor, form: Bound, log_denominators: Tensor, gammas: Tensor,
    d_bias: Tensor,
) -> None:  # fmt: skip
    """Overwrite logits (R, C) with dL/dh of every head; see `kernels/eager/entries.py`."""
    with LOCK:
        threads = use_threads()
        partial = np.zeros((threads, logits.shape[1]), dtype=array(d_bias).dtype)
        _gradient(
            array(logits), array(bias), array(node), array(label), *_tables(form), array(log_denominators), array(gammas),
            partial,
        )  # fmt: skip
        array(d_bias)[:] += partial.sum(0)


@functools.cache
def _tables(form: Bound) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Heads (H, 4), their shifts (H,), entries (E, 3)."""
    heads = np.array([head[:4] for head in form.heads], dtype=np.int64)
    return heads, np.array([head[4] for head in form.heads]), np.array(form.entries, dtype=np.int64)


@njit(error_model="numpy", nogil=True)
def _whole(row, bias, start, stop, drop):
    """The largest score of a head, and the log of the sum of all relative to it."""
    if drop < start or drop >= stop:
        return log_sum_exp(row[start:stop], bias[start:stop])
    if drop == start:
        return log_sum_exp(row[start + 1 : stop], bias[start + 1 : stop])
    top, rest = log_sum_exp(row[start:drop], bias[start:drop])
    if drop == stop - 1:
        return top, rest
    other, more = log_sum_exp(row[drop + 1 : stop], bias[drop + 1 : stop])
    best = top if top > other or top != top else other
    if best == -np.inf:
        return best, rest
    total = libm.exp(np.float64(top - best) + rest) + libm.exp(np.float64(other - best) + more)
    return best, s.type_of(best, libm.log(total))


@njit(error_model="numpy", nogil=True)
def _log_sigmoid(x):
    """To the last digits on both sides."""
    wide = np.float64(x)
    return min(wide, 0.0) - libm.log1p(libm.exp(-abs(wide)))


@kernel()
def _entries(logits, bias, node, label, heads, shifts, columns, log_denominators, out):
    for r in prange(logits.shape[0]):
        row, n, y = logits[r], node[r], label[r]
        for h in range(heads.shape[0]):
            sigmoid, shift = heads[h, 3] == 1, shifts[h]
            top, rest = bias[0], bias[0]
            if not sigmoid:
                top, rest = _whole(row, bias, heads[h, 0], heads[h, 1], heads[h, 2])
                log_denominators[h, n] = np.float64(top) + np.float64(rest)
            for e in range(columns.shape[0]):
                if columns[e, 0] == h:
                    v = columns[e, 1] if columns[e, 1] >= 0 else y
                    if v < 0:
                        out[e, n] = -np.inf
                    elif sigmoid:
                        x = s.load(row[v]) + bias[v]
                        out[e, n] = s.type_of(top, _log_sigmoid(-x if columns[e, 2] == 1 else x) - shift)
                    else:
                        out[e, n] = s.type_of(top, (above(row[v], bias[v], top) - rest) - shift)


@njit(fastmath=EXACT, error_model="numpy", nogil=True)
def _fill(row, start, stop, zero):
    for v in range(start, stop):
        row[v] = s.encode(zero, row[v])


@njit(error_model="numpy", nogil=True)
def _head(row, bias, start, stop, drop, level, mass, share, column_sum):
    """The softmax of a head times what it has, in place; returns what the shares were multiplied with."""
    if drop < start or drop >= stop:
        factor = mass / shares(row[start:stop], bias[start:stop], level, share[start:stop])
        scale(row[start:stop], share[start:stop], factor, column_sum[start:stop])
        return factor
    total = shares(row[start:drop], bias[start:drop], level, share[start:drop])
    factor = mass / (total + shares(row[drop + 1 : stop], bias[drop + 1 : stop], level, share[drop + 1 : stop]))
    scale(row[start:drop], share[start:drop], factor, column_sum[start:drop])
    scale(row[drop + 1 : stop], share[drop + 1 : stop], factor, column_sum[drop + 1 : stop])
    return factor


@kernel()
def _gradient(logits, bias, node, label, heads, shifts, columns, log_denominators, gammas, partial):
    rows, parts = logits.shape[0], partial.shape[0]
    for part in prange(parts):
        column_sum = partial[part]
        share = np.empty(logits.shape[1], dtype=bias.dtype)
        for r in range(rows * part // parts, rows * (part + 1) // parts):
            row, n, y = logits[r], node[r], label[r]
            for h in range(heads.shape[0]):
                start, stop, drop, sigmoid = heads[h, 0], heads[h, 1], heads[h, 2], heads[h, 3] == 1
                mass = s.type_of(bias[0], 0.0)
                for e in range(columns.shape[0]):
                    if columns[e, 0] == h:
                        mass += gammas[e, n]
                if sigmoid:
                    x = mass * s.sigmoid(s.load(row[start]) + bias[start])
                    x = x if mass != s.type_of(mass, 0.0) else mass
                    for e in range(columns.shape[0]):
                        if columns[e, 0] == h and columns[e, 2] == 0:
                            x -= gammas[e, n]
                    row[start] = s.encode(x, row[start])
                    column_sum[start] += x
                    continue
                if mass == s.type_of(mass, 0.0):
                    if drop < start or drop >= stop:
                        _fill(row, start, stop, mass)
                    else:
                        _fill(row, start, drop, mass)
                        _fill(row, drop + 1, stop, mass)
                    continue
                level = s.type_of(mass, log_denominators[h, n])
                factor = _head(row, bias, start, stop, drop, level, mass, share, column_sum)
                for e in range(columns.shape[0]):
                    v = columns[e, 1] if columns[e, 1] >= 0 else y
                    if columns[e, 0] == h and v >= 0:
                        row[v] = s.encode(factor * share[v] - gammas[e, n], row[v])
                        column_sum[v] -= gammas[e, n]
