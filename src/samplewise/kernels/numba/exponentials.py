"""Exponentials of the encodings, made once a row, from which tanh and sigmoid of every sum of two rows follow by arithmetic.

With E = exp(2e) and P = exp(2p), tanh(e + p) = 1 - 2 / (1 + EP); with E = exp(-e) and P = exp(-p),
sigmoid(e + p) = 1 / (1 + EP). Rounding moves the result by 2e-7 at most, whatever e + p is: absolutely, not relatively. So
tables are for encodings that are neither all tiny nor beyond the exponents of float32. NaN stays NaN, infinities become
infinity and 0: what they touch is what it is without tables, and one bad utterance changes no other.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import prange
from torch import Tensor

from samplewise.kernels.layout import FRAME_BASE, FRAMES, LABELS, TOKEN_BASE
from samplewise.kernels.numba import math as fast
from samplewise.kernels.numba import scalars as s
from samplewise.kernels.numba.arrays import LOCK, array, use_threads
from samplewise.kernels.numba.compiling import kernel

FACTORS = {"tanh": 2.0, "sigmoid": -1.0}  # of an encoding in its exponential
LARGEST = 40.0  # of finite |e| and |p|: exponentials are normal numbers, and a product that is infinity or 0 saturates rightly
LEAST = 0.5  # max|e| + max|p|: below it the absolute error would be a large relative one
INFINITY = np.int32(0x7F800000)  # its bits, those of NaN are above
PIECES = 16  # of an utterance's rows, to be shared out among threads


def exponentials(
    encoder_rows: Tensor, predictor_rows: Tensor, utterances: Tensor, activation: str
) -> tuple[Tensor, Tensor] | None:
    """Float32 tables (F, D) and (K, D) of exp(2x) for tanh and exp(-x) for sigmoid, or None where they would not serve.

    encoder_rows (F, D), predictor_rows (K, D), utterances the packed table of `layout`. Only the rows that an utterance has are
    read and made; others may hold anything. None for other activations and for float64, and where a finite encoding is beyond
    LARGEST, or all are tiny.
    """
    if activation not in FACTORS or torch.float64 in (encoder_rows.dtype, predictor_rows.dtype):
        return None
    table = array(utterances)
    tables, peaks = [], []
    with LOCK:
        use_threads()
        for rows, base, count in (
            (encoder_rows, table[:, FRAME_BASE], table[:, FRAMES]),
            (predictor_rows, table[:, TOKEN_BASE], table[:, LABELS] + 1),
        ):
            out = torch.empty(rows.shape, dtype=torch.float32)
            found = np.zeros(len(table) * PIECES, dtype=np.int32)
            _exponentials(array(rows), base, count, np.float32(FACTORS[activation]), array(out), found)
            tables.append(out)
            peaks.append(float(found.max().view(np.float32)))
    serves = max(peaks) <= LARGEST and sum(peaks) >= LEAST
    return (tables[0], tables[1]) if serves else None


@kernel(fastmath={"contract", "nsz"})
def _exponentials(rows, base, count, factor, out, peaks):
    """peaks: the largest finite |x| of each piece, as its bits, which order as numbers do."""
    for piece in prange(peaks.size):
        g, part = piece // PIECES, piece % PIECES
        most = np.int32(0)
        for r in range(base[g] + count[g] * part // PIECES, base[g] + count[g] * (part + 1) // PIECES):
            x, o = rows[r], out[r]
            for d in range(o.size):
                value = s.load(x[d])
                bits = fast.bits_of_float32(value) & np.int32(0x7FFFFFFF)
                bits = bits if bits < INFINITY else np.int32(0)
                most = bits if bits > most else most
                y = fast.exp32(factor * value)
                y = np.float32(np.inf) if factor * value == np.float32(np.inf) else y
                o[d] = np.float32(0.0) if factor * value == np.float32(-np.inf) else y
        peaks[piece] = most
