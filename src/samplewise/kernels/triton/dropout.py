"""Dropout inside a joint network; the mask is that of `kernels/eager/dropout.py`, bit by bit."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from samplewise.kernels.masks import GOLDEN, WORD, Dropout
from samplewise.kernels.triton.launch import blocks, on, power_of_2, rows_of
from samplewise.kernels.triton.numbers import narrow, widen

BLOCK, WIDEST, WARPS = 2048, 512, 4  # elements and columns of a block
FEATURE: tl.constexpr = tl.constexpr(GOLDEN)
BITS: tl.constexpr = tl.constexpr(WORD)


def drop(z: Tensor, frame: Tensor, token: Tensor, dropout: Dropout) -> None:
    """Mask joint encodings (R, D), or their gradients, in place; see `kernels/eager/dropout.py`."""
    rows, dim = z.shape
    width = power_of_2(dim, WIDEST)
    height = max(32 * WARPS // width, min(64, BLOCK // width))
    if rows:
        z.mul_(dropout.scale)  # here, for a kernel would take the factor as a float32
        stored = rows_of(z)
        with on(z):
            _drop[(blocks(rows, height), blocks(dim, width))](
                stored, frame, token, rows, dim, stored.stride(0), *numbers(dropout), HEIGHT=height, WIDTH=width,
                num_warps=WARPS,
            )  # fmt: skip


def numbers(dropout: Dropout) -> tuple[int, int, int, int, int, int]:
    """What kernels take, apart from the scale: two words of the seed, threshold, frames, tokens, first utterance."""
    low, high = dropout.seed & WORD, (dropout.seed >> 32) & WORD
    return low, high, dropout.threshold, dropout.frames, dropout.tokens, dropout.first


@triton.jit
def mix(x):
    """Of 32 bits in int64."""
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & BITS
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & BITS
    return x ^ (x >> 16)


@triton.jit
def key_of(low, high, utterance, frame, label):
    """Of nodes, int64."""
    start = frame * 0 + low
    key = mix(mix(start ^ FEATURE) ^ high)
    key = mix((key + utterance) & BITS)
    key = mix((key + frame) & BITS)
    return mix((key + label) & BITS)


@triton.jit
def kept(key, feature, threshold):
    """Which features stay."""
    return mix(key ^ ((feature.to(tl.int64) * FEATURE) & BITS)) >= threshold


@triton.jit(do_not_specialize=["rows", "dim", "low", "high", "threshold", "frames", "tokens", "first"])
def _drop(
    z, frame, token, rows, dim, z_stride, low, high, threshold, frames, tokens, first, HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    r = tl.program_id(0).to(tl.int64) * HEIGHT + tl.arange(0, HEIGHT)
    d = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    live = r < rows
    held = live[:, None] & (d < dim)[None, :]
    f = tl.load(frame + r, mask=live, other=0)
    k = tl.load(token + r, mask=live, other=0)
    g = f // frames
    key = key_of(low, high, first + g, f - g * frames, k - g * tokens)
    place = z + r[:, None] * z_stride + d[None, :]
    REAL: tl.constexpr = tl.float64 if z.dtype.element_ty == tl.float64 else tl.float32
    x = widen(tl.load(place, mask=held, other=0), REAL)
    x = tl.where(kept(key[:, None], d[None, :], threshold), x, 0.0).to(REAL)
    tl.store(place, narrow(x, z.dtype.element_ty), mask=held)
