"""Exponentials that LLVM can vectorise, for float32 and float64.

`math.exp` and `math.tanh` are calls into libm that no vectoriser enters. These are polynomials with a scale made from bits:
e^x = 2^k e^r with k = round(x / ln 2), |r| <= ln 2 / 2. Rounding adds a large constant, so no float is ever
converted to an integer and NaN stays NaN. The polynomials are Taylor series of e^r - 1 whose first dropped term is below
half a unit in the last place at |r| = ln 2 / 2.
"""

from __future__ import annotations

import math as libm

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

LOG2E = 1.4426950408889634
LN2_HIGH32, LN2_LOW32 = np.float32(0.693359375), np.float32(-2.12194440e-4)
LN2_HIGH64, LN2_LOW64 = 6.93147180369123816490e-01, 1.90821492927058770002e-10
ROUND32, ROUND64 = np.float32(12582912.0), 6755399441055744.0  # 1.5 * 2^23, 1.5 * 2^52


def _bitcast(source: types.Type, target: types.Type, llvm: ir.Type):
    @intrinsic
    def cast(typingctx, value):
        def codegen(context, builder, signature, args):
            return builder.bitcast(args[0], llvm)

        return target(source), codegen

    return cast


bits_of_float32 = _bitcast(types.float32, types.int32, ir.IntType(32))
float32_of_bits = _bitcast(types.int32, types.float32, ir.FloatType())
bits_of_float64 = _bitcast(types.float64, types.int64, ir.IntType(64))
float64_of_bits = _bitcast(types.int64, types.float64, ir.DoubleType())


@njit(fastmath={"contract"})
def _series32(r):
    """e^r - 1 for |r| <= 0.35, float32."""
    p = np.float32(1.0 / 5040.0)
    p = p * r + np.float32(1.0 / 720.0)
    p = p * r + np.float32(1.0 / 120.0)
    p = p * r + np.float32(1.0 / 24.0)
    p = p * r + np.float32(1.0 / 6.0)
    p = p * r + np.float32(0.5)
    return p * r * r + r


@njit(fastmath={"contract"})
def _reduce32(x):
    """x = k ln 2 + r: returns r and 2^k. Contraction only: reassociation would cancel the rounding constant."""
    shifted = x * np.float32(LOG2E) + ROUND32
    k = shifted - ROUND32
    r = (x - k * LN2_HIGH32) - k * LN2_LOW32
    scale = float32_of_bits((bits_of_float32(shifted) + np.int32(127)) << np.int32(23))
    return r, scale


@njit(fastmath={"contract"})
def exp32(x):
    """e^x for x <= 88; below -87 the smallest normal number stands for zero. NaN stays NaN."""
    x = np.float32(-87.0) if x < np.float32(-87.0) else x
    r, scale = _reduce32(x)
    return scale * _series32(r) + scale


@njit(fastmath={"contract"})
def expm132(x):
    """e^x - 1 for |x| <= 80, without cancellation near 0."""
    r, scale = _reduce32(x)
    return scale * _series32(r) + (scale - np.float32(1.0))


@njit(fastmath={"contract"})
def _series64(r):
    p = 1.0 / 87178291200.0
    p = p * r + 1.0 / 6227020800.0
    p = p * r + 1.0 / 479001600.0
    p = p * r + 1.0 / 39916800.0
    p = p * r + 1.0 / 3628800.0
    p = p * r + 1.0 / 362880.0
    p = p * r + 1.0 / 40320.0
    p = p * r + 1.0 / 5040.0
    p = p * r + 1.0 / 720.0
    p = p * r + 1.0 / 120.0
    p = p * r + 1.0 / 24.0
    p = p * r + 1.0 / 6.0
    p = p * r + 0.5
    return p * r * r + r


@njit(fastmath={"contract"})
def _reduce64(x):
    shifted = x * LOG2E + ROUND64
    k = shifted - ROUND64
    r = (x - k * LN2_HIGH64) - k * LN2_LOW64
    scale = float64_of_bits((bits_of_float64(shifted) + np.int64(1023)) << np.int64(52))
    return r, scale


@njit(fastmath={"contract"})
def exp64(x):
    x = -708.0 if x < -708.0 else x
    r, scale = _reduce64(x)
    return scale * _series64(r) + scale


@njit(fastmath={"contract"})
def expm164(x):
    r, scale = _reduce64(x)
    return scale * _series64(r) + (scale - 1.0)


@njit(fastmath={"contract"}, error_model="numpy")
def log32(x):
    """log x for positive normal x, to 1e-7 of max(1, |log x|); NaN and infinity become NaN. x = 2^k m with m near 1, and
    log m = 2 artanh((m - 1) / (m + 1))."""
    bits = bits_of_float32(x)
    k = (bits - np.int32(0x3F3504F3)) >> np.int32(23)  # m from sqrt(1/2) on
    m = float32_of_bits(bits - (k << np.int32(23)))
    f = (m - np.float32(1.0)) / (m + np.float32(1.0))
    q = f * f
    p = np.float32(2.0 / 9.0)
    p = p * q + np.float32(2.0 / 7.0)
    p = p * q + np.float32(2.0 / 5.0)
    p = p * q + np.float32(2.0 / 3.0)
    whole = np.float32(k)
    small = p * q * f + (whole * LN2_LOW32 + (x - x))
    return whole * LN2_HIGH32 + (np.float32(2.0) * f + small)


@njit(fastmath={"contract"}, error_model="numpy")
def tanh32(x):
    """tanh x = e / (e + 2) with e = e^2x - 1. From |x| = 9.1 on, float32 rounds to 1."""
    x = np.float32(9.1) if x > np.float32(9.1) else x
    x = np.float32(-9.1) if x < np.float32(-9.1) else x
    e = expm132(np.float32(2.0) * x)
    return e / (e + np.float32(2.0))


@njit(fastmath={"contract"}, error_model="numpy")
def tanh64(x):
    x = 19.1 if x > 19.1 else x
    x = -19.1 if x < -19.1 else x
    e = expm164(2.0 * x)
    return e / (e + 2.0)


# A probability far outside of float64's range as m 2^e: two float64, e integral. None is so small that it is zero: e^-inf is
# 2^NOTHING, which adds nothing to any number that is not as small.
NOTHING = -1e295
WHOLE64 = 1e15  # beyond it e^x is a power of two
FARTHEST = 900.0  # powers of two that are made from bits


@njit(fastmath={"contract"}, error_model="numpy")
def split64(x):
    """(m, e) with e^x = m 2^e, m within a factor of sqrt(2) of 1. NaN has m = NaN; from 1e15 on m is infinite.

    A polynomial of degree 11 (Chebyshev) for e^r, off by 1.3e-17 at most.
    """
    y = x if x < WHOLE64 else WHOLE64
    y = y if y > -WHOLE64 else -WHOLE64
    k = (y * LOG2E + ROUND64) - ROUND64
    r = (y - k * LN2_HIGH64) - k * LN2_LOW64
    q = 2.5100385495510319078e-8
    q = q * r + 2.7620088445409748161e-7
    q = q * r + 2.7557268459997064772e-6
    q = q * r + 2.4801521295954375131e-5
    q = q * r + 1.9841269863053616878e-4
    q = q * r + 1.3888888917213716901e-3
    q = q * r + 8.3333333333300618325e-3
    q = q * r + 4.1666666666624127873e-2
    q = q * r + 1.6666666666666667453e-1
    q = q * r + 5.0000000000000010221e-1
    m = (q * r * r + r) + 1.0
    far = x * LOG2E
    far = far if far > NOTHING else NOTHING
    k = k if x > -WHOLE64 else far
    return (m if x < WHOLE64 else x * np.inf), k


@njit(fastmath={"contract"})
def power64(d):
    """2^d for integral d <= 900; below -900 that of -900."""
    d = d if d > -FARTHEST else -FARTHEST
    return float64_of_bits((bits_of_float64(d + ROUND64) + np.int64(1023)) << np.int64(52))


@njit(fastmath={"contract"})
def exponent64(m):
    """The integral d with 1 <= m 2^-d < 2, for positive m; 900 for infinity and NaN."""
    d = (
        float64_of_bits((bits_of_float64(m) >> np.int64(52)) | bits_of_float64(4503599627370496.0))
        - 4503599627370496.0
        - 1023.0
    )
    return d if d < FARTHEST else FARTHEST


@njit(fastmath={"contract"}, error_model="numpy")
def joined64(m, e):
    """log(m 2^e), -inf for nothing."""
    if m != m or e < NOTHING / 2:
        return m if m != m else -np.inf
    d = exponent64(m)
    e += d
    m *= power64(-d)
    if m > 1.4142135623730951:
        m *= 0.5
        e += 1.0
    return e * LN2_HIGH64 + (e * LN2_LOW64 + libm.log(m))
