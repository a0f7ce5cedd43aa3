"""The joint encoding of a tile of nodes, z = act(encoder row + predictor row), and its gradient (paper: f^J)."""

from __future__ import annotations

from numba import prange
from torch import Tensor

from samplewise.kernels.numba import scalars as s
from samplewise.kernels.numba.activations import (
    NUMBERS,
    NUMERIC,
    SIGMOID_OF_EXPONENTIALS,
    TANH_OF_EXPONENTIALS,
    chosen,
    compiled,
)  # fmt: skip
from samplewise.kernels.numba.arrays import LOCK, array, use_threads
from samplewise.kernels.numba.compiling import kernel

ROWS = 32  # that a thread takes at a time


def joint(encoder_rows: Tensor, predictor_rows: Tensor, frame: Tensor, token: Tensor, activation: str, out: Tensor) -> None:
    """out[r] = act(encoder_rows[frame[r]] + predictor_rows[token[r]]).

    encoder_rows (F, D), predictor_rows (K, D), frame and token (R,) int64, out (R, D). With "tanh of exponentials" and "sigmoid
    of exponentials" the rows are the tables that `exponentials` makes.
    """
    with LOCK:
        use_threads()
        _joint(
            array(encoder_rows),
            array(predictor_rows),
            array(frame),
            array(token),
            NUMBERS[activation],
            array(out),
        )


def joint_gradient(
    d_joint: Tensor, joint_out: Tensor, encoder_rows: Tensor, predictor_rows: Tensor, frame: Tensor, token: Tensor,
    activation: str, d_encoder_rows: Tensor, d_predictor_rows: Tensor,
) -> None:  # fmt: skip
    """Send dz (R, D) through the activation and add it to the rows that made it.

    d_encoder_rows and d_predictor_rows accumulate and are float32 (float64 for float64 inputs). Every thread owns a range of
    columns, so nothing is added twice and the sums do not depend on timing.
    """
    with LOCK:
        threads = use_threads()
        _joint_gradient(
            array(d_joint), array(joint_out), array(encoder_rows), array(predictor_rows), array(frame), array(token),
            NUMBERS[activation], array(d_encoder_rows), array(d_predictor_rows), threads,
        )  # fmt: skip


@compiled()
def _tanh_of(q):
    """tanh x of q = exp(2x): 1 or -1 and a small number, whose rounding does not count, or (q - 1) / (q + 1) near 0."""
    whole, rest = s.type_of(q, 0.0), q - s.type_of(q, 1.0)
    whole, rest = (s.type_of(q, 1.0), s.type_of(q, -2.0)) if q > s.type_of(q, 3.0) else (whole, rest)
    whole, rest = (s.type_of(q, -1.0), q + q) if q < s.type_of(q, 1.0 / 3.0) else (whole, rest)
    return whole + rest / (q + s.type_of(q, 1.0))


@compiled()
def _tanh_rows(encoder_rows, predictor_rows, frame, token, out):
    for r in range(out.shape[0]):
        e, p, o = encoder_rows[frame[r]], predictor_rows[token[r]], out[r]
        for d in range(o.size):
            o[d] = s.encode(_tanh_of(s.load(e[d]) * s.load(p[d])), o[d])


@compiled()
def _sigmoid_rows(encoder_rows, predictor_rows, frame, token, out):
    for r in range(out.shape[0]):
        e, p, o = encoder_rows[frame[r]], predictor_rows[token[r]], out[r]
        for d in range(o.size):
            q = s.load(e[d]) * s.load(p[d])
            o[d] = s.encode(s.type_of(q, 1.0) / (q + s.type_of(q, 1.0)), o[d])


@chosen
def _act_rows(activation):
    act = activation.forward

    @compiled()
    def rows(encoder_rows, predictor_rows, frame, token, out):
        for r in range(out.shape[0]):
            e, p, o = encoder_rows[frame[r]], predictor_rows[token[r]], out[r]
            for d in range(o.size):
                o[d] = s.encode(act(s.load(e[d]) + s.load(p[d])), o[d])

    return rows


@kernel(fastmath=NUMERIC)
def _joint(encoder_rows, predictor_rows, frame, token, activation, out):
    rows = out.shape[0]
    for block in prange((rows + ROWS - 1) // ROWS):
        low, high = block * ROWS, min(rows, (block + 1) * ROWS)
        f, t, o = frame[low:high], token[low:high], out[low:high]
        if activation == TANH_OF_EXPONENTIALS:
            _tanh_rows(encoder_rows, predictor_rows, f, t, o)
        elif activation == SIGMOID_OF_EXPONENTIALS:
            _sigmoid_rows(encoder_rows, predictor_rows, f, t, o)
        else:
            _act_rows(activation, encoder_rows, predictor_rows, f, t, o)


@chosen
def _scatter_rows(activation):
    through = activation.backward

    @compiled()
    def of_sums(dz, z, encoder_rows, predictor_rows, frame, token, d_encoder, d_predictor, low, high):
        for r in range(dz.shape[0]):
            f, k = frame[r], token[r]
            g, e, p = dz[r, low:high], encoder_rows[f, low:high], predictor_rows[k, low:high]
            de, dp = d_encoder[f, low:high], d_predictor[k, low:high]
            for d in range(g.size):
                x = s.load(g[d])
                x = through(x, s.load(e[d]) + s.load(p[d])) if x != s.type_of(x, 0.0) else x  # zero times NaN is zero here
                de[d] += x
                dp[d] += x

    @compiled()
    def of_outputs(dz, z, encoder_rows, predictor_rows, frame, token, d_encoder, d_predictor, low, high):
        for r in range(dz.shape[0]):
            g, y = dz[r, low:high], z[r, low:high]
            de, dp = d_encoder[frame[r], low:high], d_predictor[token[r], low:high]
            for d in range(g.size):
                x = through(s.load(g[d]), s.load(y[d]))
                de[d] += x
                dp[d] += x

    return of_sums if activation.of_sum else of_outputs


@kernel(fastmath=NUMERIC)
def _joint_gradient(dz, z, encoder_rows, predictor_rows, frame, token, activation, d_encoder, d_predictor, threads):
    columns = dz.shape[1]
    for part in prange(threads):
        low, high = columns * part // threads, columns * (part + 1) // threads
        _scatter_rows(activation, dz, z, encoder_rows, predictor_rows, frame, token, d_encoder, d_predictor, low, high)
