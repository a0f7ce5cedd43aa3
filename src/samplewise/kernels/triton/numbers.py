"""Numbers inside Triton kernels: conversions, exponentials that keep their digits, activations and their slopes.

e^x - 1 = 2^k (e^r - 1) + (2^k - 1) with k = round(x / ln 2): a Taylor series in r whose first dropped term is below half a unit
in the last place, and 2^k made from bits. Triton has no tanh that runs in its interpreter too.
"""

from __future__ import annotations

import triton
import triton.language as tl

from samplewise.kernels import activations

SLOPE = tl.constexpr(activations.SLOPE)


@triton.jit
def widen(x, REAL: tl.constexpr):
    """A loaded number as float32 or float64. int16 is bfloat16 in the interpreter: the upper half of a float32."""
    if x.dtype == tl.int16:
        x = (x.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    return x.to(REAL)


@triton.jit
def narrow(x, STORED: tl.constexpr):
    """A number as it is stored, rounded to nearest, ties to even."""
    if tl.int16 == STORED:
        word = x.to(tl.float32).to(tl.int32, bitcast=True)
        rounded = (word + 0x7FFF + ((word >> 16) & 1)) >> 16
        x = tl.where(x != x, 0x7FC0, rounded)
    return x.to(STORED)


@triton.jit
def logaddexp(a, b):
    """log(e^a + e^b); -inf stands for nothing, and NaN stays NaN."""
    top = tl.where(a > b, a, b)
    low = tl.where(a > b, b, a)
    apart = tl.where(low == float("-inf"), float("-inf"), low - top)
    return top + tl.log(1.0 + tl.exp(apart))


@triton.jit
def log1p(x):
    """log(1 + x) for x >= 0, also where 1 + x has no digits left of x: what was rounded away is a factor of the logarithm."""
    y = 1.0 + x
    return tl.where(y == 1.0, x, tl.log(y) * (x / tl.where(y == 1.0, 1.0, y - 1.0)))


@triton.jit
def expm1(x):
    """e^x - 1 for |x| <= 80, float32 or float64, without cancellation near 0."""
    k = tl.floor(x * 1.4426950408889634 + 0.5)
    if x.dtype == tl.float64:
        r = (x - k * 6.93147180369123816490e-01) - k * 1.90821492927058770002e-10
        p = r * (1.0 / 87178291200.0) + 1.0 / 6227020800.0
        p = p * r + 1.0 / 479001600.0
        p = p * r + 1.0 / 39916800.0
        p = p * r + 1.0 / 3628800.0
        p = p * r + 1.0 / 362880.0
        p = p * r + 1.0 / 40320.0
        p = p * r + 1.0 / 5040.0
        p = p * r + 1.0 / 720.0
        scale = ((k.to(tl.int64) + 1023) << 52).to(tl.float64, bitcast=True)
    else:
        r = (x - k * 0.693359375) - k * -2.12194440e-4
        p = r * (1.0 / 5040.0) + 1.0 / 720.0
        scale = ((k.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)
    p = p * r + 1.0 / 120.0
    p = p * r + 1.0 / 24.0
    p = p * r + 1.0 / 6.0
    p = p * r + 0.5
    return scale * (p * r * r + r) + (scale - 1.0)


@triton.jit
def tanh(x):
    """e / (e + 2) with e = e^2x - 1. From |x| = 19.1 on (float32: 9.1) the result rounds to 1."""
    if x.dtype == tl.float64:
        x = tl.where(x > 19.1, 19.1, x)
        x = tl.where(x < -19.1, -19.1, x)
    else:
        x = tl.where(x > 9.1, 9.1, x)
        x = tl.where(x < -9.1, -9.1, x)
    e = expm1(2.0 * x)
    return e / (e + 2.0)


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def activate(x, ACTIVATION: tl.constexpr):
    """act(x)."""
    if ACTIVATION == "tanh":
        x = tanh(x)
    elif ACTIVATION == "relu":
        x = tl.where(x < 0.0, 0.0, x)
    elif ACTIVATION == "sigmoid":
        x = sigmoid(x)
    elif ACTIVATION == "gelu":
        x = x * 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))
    elif ACTIVATION == "silu":
        x = x * sigmoid(x)
    elif ACTIVATION == "leaky_relu":
        x = tl.where(x < 0.0, x * SLOPE, x)
    return x


@triton.jit
def slope(x, y, ACTIVATION: tl.constexpr):
    """act'(x), from y = act(x), or from x for those `of_sum` in `kernels/activations.py`; else x is not read."""
    if ACTIVATION == "tanh":
        y = 1.0 - y * y
    elif ACTIVATION == "relu":
        y = tl.where(y > 0.0, 1.0, 0.0).to(y.dtype)
    elif ACTIVATION == "sigmoid":
        y = sigmoid(x) * sigmoid(-x)  # 1 - y has no digits left where y is nearly 1
    elif ACTIVATION == "gelu":
        density = 0.3989422804014327 * tl.exp(-0.5 * x * x)
        y = 0.5 * (1.0 + tl.erf(x * 0.7071067811865476)) + x * density
    elif ACTIVATION == "silu":
        gate = sigmoid(x)
        y = gate * (1.0 + x * (1.0 - gate))
    elif ACTIVATION == "leaky_relu":
        y = tl.where(y > 0.0, 1.0, tl.full(y.shape, SLOPE, y.dtype))
    else:
        y = y * 0.0 + 1.0
    return y
