"""The joint encoding of a tile of nodes, z = act(encoder row + predictor row), and its gradient (paper: f^J)."""

from __future__ import annotations

from numba import njit, prange
from torch import Tensor

from samplewise.kernels.numba import scalars as s
from samplewise.kernels.numba.arrays import LOCK, array, kernel, use_threads

ACTIVATIONS = {
    "identity": s.IDENTITY, "tanh": s.TANH, "relu": s.RELU, "sigmoid": s.SIGMOID, "gelu": s.GELU, "silu": s.SILU,
    "tanh of exponentials": s.TANH_OF_EXPONENTIALS, "sigmoid of exponentials": s.SIGMOID_OF_EXPONENTIALS,
}  # fmt: skip
NUMERIC = {"contract", "nsz"}


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
            ACTIVATIONS[activation],
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
            ACTIVATIONS[activation], array(d_encoder_rows), array(d_predictor_rows), threads,
        )  # fmt: skip


@njit(fastmath=NUMERIC, error_model="numpy", nogil=True)
def _tanh_of(q):
    """tanh x of q = exp(2x): 1 or -1 and a small number, whose rounding does not count, or (q - 1) / (q + 1) near 0."""
    whole, rest = s.type_of(q, 0.0), q - s.type_of(q, 1.0)
    whole, rest = (s.type_of(q, 1.0), s.type_of(q, -2.0)) if q > s.type_of(q, 3.0) else (whole, rest)
    whole, rest = (s.type_of(q, -1.0), q + q) if q < s.type_of(q, 1.0 / 3.0) else (whole, rest)
    return whole + rest / (q + s.type_of(q, 1.0))


@kernel(fastmath=NUMERIC)
def _joint(encoder_rows, predictor_rows, frame, token, activation, out):
    for r in prange(out.shape[0]):
        e, p, o = encoder_rows[frame[r]], predictor_rows[token[r]], out[r]
        if activation == s.TANH:
            for d in range(o.size):
                o[d] = s.encode(s.tanh(s.load(e[d]) + s.load(p[d])), o[d])
        elif activation == s.TANH_OF_EXPONENTIALS:
            for d in range(o.size):
                o[d] = s.encode(_tanh_of(s.load(e[d]) * s.load(p[d])), o[d])
        elif activation == s.SIGMOID_OF_EXPONENTIALS:
            for d in range(o.size):
                q = s.load(e[d]) * s.load(p[d])
                o[d] = s.encode(s.type_of(q, 1.0) / (q + s.type_of(q, 1.0)), o[d])
        elif activation == s.RELU:
            for d in range(o.size):
                x = s.load(e[d]) + s.load(p[d])
                o[d] = s.encode(s.type_of(x, 0.0) if x < s.type_of(x, 0.0) else x, o[d])
        elif activation == s.SIGMOID:
            for d in range(o.size):
                o[d] = s.encode(s.sigmoid(s.load(e[d]) + s.load(p[d])), o[d])
        elif activation == s.GELU:
            for d in range(o.size):
                x = s.load(e[d]) + s.load(p[d])
                o[d] = s.encode(x * s.normal_cdf(x), o[d])
        elif activation == s.SILU:
            for d in range(o.size):
                x = s.load(e[d]) + s.load(p[d])
                o[d] = s.encode(x * s.sigmoid(x), o[d])
        else:
            for d in range(o.size):
                o[d] = s.encode(s.load(e[d]) + s.load(p[d]), o[d])


@kernel(fastmath=NUMERIC)
def _joint_gradient(dz, z, encoder_rows, predictor_rows, frame, token, activation, d_encoder, d_predictor, threads):
    columns = dz.shape[1]
    for part in prange(threads):
        low, high = columns * part // threads, columns * (part + 1) // threads
        for r in range(dz.shape[0]):
            g, y = dz[r, low:high], z[r, low:high]
            e, p = encoder_rows[frame[r], low:high], predictor_rows[token[r], low:high]
            de, dp = d_encoder[frame[r], low:high], d_predictor[token[r], low:high]
            _scatter_row(g, y, e, p, activation, de, dp)


@njit(fastmath=NUMERIC, error_model="numpy", nogil=True)
def _scatter_row(g, y, e, p, activation, de, dp):
    if activation == s.TANH:
        for d in range(g.size):
            v = s.load(y[d])
            x = s.load(g[d]) * (s.type_of(v, 1.0) - v * v)
            de[d] += x
            dp[d] += x
    elif activation == s.RELU:
        for d in range(g.size):
            v = s.load(g[d])
            x = v if s.load(y[d]) > s.type_of(v, 0.0) else s.type_of(v, 0.0)
            de[d] += x
            dp[d] += x
    elif activation == s.SIGMOID:
        for d in range(g.size):
            v = s.load(e[d]) + s.load(p[d])
            x = s.load(g[d])
            x = x * s.sigmoid_slope(v) if x != s.type_of(v, 0.0) else s.type_of(v, 0.0)
            de[d] += x
            dp[d] += x
    elif activation == s.GELU:
        for d in range(g.size):
            v = s.load(e[d]) + s.load(p[d])
            x = s.load(g[d])
            x = x * (s.normal_cdf(v) + v * s.normal_pdf(v)) if x != s.type_of(v, 0.0) else s.type_of(v, 0.0)
            de[d] += x
            dp[d] += x
    elif activation == s.SILU:
        for d in range(g.size):
            v = s.load(e[d]) + s.load(p[d])
            y_sigmoid = s.sigmoid(v)
            x = s.load(g[d])
            slope = y_sigmoid * (s.type_of(v, 1.0) + v * (s.type_of(v, 1.0) - y_sigmoid))
            x = x * slope if x != s.type_of(v, 0.0) else s.type_of(v, 0.0)  # zero times NaN is zero here
            de[d] += x
            dp[d] += x
    else:
        for d in range(g.size):
            de[d] += s.load(g[d])
            dp[d] += s.load(g[d])
