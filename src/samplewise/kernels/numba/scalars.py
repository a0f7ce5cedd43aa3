"""One scalar vocabulary for four element types: how a kernel reads, writes and exponentiates.

NumPy has no bfloat16 and numba computes no float16, so such tensors arrive as their bits: int16 for bfloat16, uint16 for
float16 (see `arrays.py`). `load` turns an element into a float32 (float64 stays float64) and `encode` turns it back, rounding
to nearest even. Everything between is ordinary arithmetic.
"""

from __future__ import annotations

import math as libm

import numpy as np
from numba import njit, types
from numba.extending import overload, register_jitable

from samplewise.kernels.numba import math as fast

LARGEST_HALF = np.float32(65520.0)  # rounds to infinity in float16
HALF_SCALE = np.float32(2.0**112)  # between the exponent biases of float16 and float32


@njit
def _float32_of_bfloat16(bits):
    return fast.float32_of_bits(np.int32(bits) << np.int32(16))


@njit
def _bfloat16_of_float32(value):
    bits = fast.bits_of_float32(value)
    rounded = (bits + np.int32(0x7FFF) + ((bits >> np.int32(16)) & np.int32(1))) >> np.int32(16)
    return np.int16(rounded) if value == value else np.int16(0x7FC0)


@njit(fastmath={"contract"})
def _float32_of_float16(bits):
    wide = np.int32(bits)
    magnitude = fast.float32_of_bits((wide & np.int32(0x7FFF)) << np.int32(13)) * HALF_SCALE
    special = fast.float32_of_bits(((wide & np.int32(0x3FF)) << np.int32(13)) | np.int32(0x7F800000))
    magnitude = special if (wide & np.int32(0x7C00)) == np.int32(0x7C00) else magnitude
    return -magnitude if (wide & np.int32(0x8000)) != np.int32(0) else magnitude


@njit(fastmath={"contract"})
def _float16_of_float32(value):
    magnitude = abs(value)
    bits = fast.bits_of_float32(magnitude / HALF_SCALE)
    rounded = (bits + np.int32(0xFFF) + ((bits >> np.int32(13)) & np.int32(1))) >> np.int32(13)
    rounded = np.int32(0x7C00) if magnitude >= LARGEST_HALF else rounded
    rounded = rounded if value == value else np.int32(0x7E00)
    return np.uint16(rounded | (np.int32(0x8000) if value < np.float32(0.0) else np.int32(0)))


def load(element):
    """The value of an array element: float32, or float64 for a float64 array."""
    raise NotImplementedError("compiled code only")


@overload(load)
def _load(element):
    if element == types.int16:
        return lambda element: _float32_of_bfloat16(element)
    if element == types.uint16:
        return lambda element: _float32_of_float16(element)
    return lambda element: element


def encode(value, like):
    """The array element that stands for `value` in an array whose elements are typed as `like`."""
    raise NotImplementedError("compiled code only")


@overload(encode)
def _encode(value, like):
    if like == types.int16:
        return lambda value, like: _bfloat16_of_float32(np.float32(value))
    if like == types.uint16:
        return lambda value, like: _float16_of_float32(np.float32(value))
    return lambda value, like: value


def exp(x):
    raise NotImplementedError("compiled code only")


@overload(exp)
def _exp(x):
    return (lambda x: fast.exp64(x)) if x == types.float64 else (lambda x: fast.exp32(x))


def log(x):
    raise NotImplementedError("compiled code only")


@overload(log)
def _log(x):
    return (lambda x: libm.log(x)) if x == types.float64 else (lambda x: fast.log32(x))


def tanh(x):
    raise NotImplementedError("compiled code only")


@overload(tanh)
def _tanh(x):
    return (lambda x: fast.tanh64(x)) if x == types.float64 else (lambda x: fast.tanh32(x))


def order(x):
    """An integer that orders floats as numbers do, NaN above infinity: a maximum over it vectorises and keeps NaN."""
    raise NotImplementedError("compiled code only")


@overload(order)
def _order(x):
    if x == types.float64:

        def order64(x):
            bits = fast.bits_of_float64(x)
            return bits ^ ((bits >> np.int64(63)) & np.int64(0x7FFFFFFFFFFFFFFF))

        return order64

    def order32(x):
        bits = fast.bits_of_float32(x)
        return bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF))

    return order32


def from_order(key, like):
    """The float whose `order` is `key`; `like` gives the type."""
    raise NotImplementedError("compiled code only")


@overload(from_order)
def _from_order(key, like):
    if like == types.float64:
        return lambda key, like: fast.float64_of_bits(key ^ ((key >> np.int64(63)) & np.int64(0x7FFFFFFFFFFFFFFF)))
    return lambda key, like: fast.float32_of_bits(key ^ ((key >> np.int32(31)) & np.int32(0x7FFFFFFF)))


@register_jitable
def sigmoid(x):
    """To some units in the last place of the result, however small: half a tanh and a half would leave none of its digits."""
    one = type_of(x, 1.0)
    small = exp(-abs(x))
    return (one if x >= type_of(x, 0.0) else small) / (one + small)


@register_jitable
def sigmoid_slope(x):
    """Of sigmoid: to some units in the last place on both sides; y (1 - y) would leave none where y is 1."""
    one = type_of(x, 1.0)
    small = exp(-abs(x))
    return small / ((one + small) * (one + small))


@register_jitable
def normal_cdf(x):
    return type_of(x, 0.5) * (type_of(x, 1.0) + type_of(x, libm.erf(x * type_of(x, 0.7071067811865476))))


@register_jitable
def normal_pdf(x):
    return type_of(x, 0.3989422804014327) * exp(type_of(x, -0.5) * x * x)


def type_of(like, value):
    """`value` as a float of the type of `like`, so that float32 arithmetic does not widen."""
    raise NotImplementedError("compiled code only")


@overload(type_of)
def _type_of(like, value):
    return (lambda like, value: np.float64(value)) if like == types.float64 else (lambda like, value: np.float32(value))
