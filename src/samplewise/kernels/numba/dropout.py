"""Dropout inside a joint network; the mask is that of `kernels/eager/dropout.py`, bit by bit."""

from __future__ import annotations

import numpy as np
from numba import njit, prange
from torch import Tensor

from samplewise.kernels.masks import GOLDEN, WORD, Dropout
from samplewise.kernels.numba import scalars as s
from samplewise.kernels.numba.arrays import LOCK, array, use_threads
from samplewise.kernels.numba.compiling import kernel

OPTIONS = {"error_model": "numpy", "nogil": True}


def drop(z: Tensor, frame: Tensor, token: Tensor, dropout: Dropout) -> None:
    """Mask joint encodings (R, D), or their gradients, in place; see `kernels/eager/dropout.py`."""
    with LOCK:
        use_threads()
        _drop(array(z), array(frame), array(token), *numbers(dropout, array(z).dtype))


def numbers(dropout: Dropout | None, dtype: np.dtype) -> tuple:
    """What the compiled kernels take: threshold 0 stands for no dropout."""
    if dropout is None:
        dropout = Dropout(0, 0, 1.0, 1, 1, 0)
    real = np.float64 if dtype == np.float64 else np.float32
    words = [np.uint32(x) for x in (dropout.seed & WORD, (dropout.seed >> 32) & WORD, dropout.threshold)]
    return (*words, real(dropout.scale), dropout.frames, dropout.tokens, dropout.first)


@njit(inline="always", **OPTIONS)  # type: ignore[call-overload]
def mix(x):
    x = np.uint32((x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B))
    x = np.uint32((x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35))
    return np.uint32(x ^ (x >> np.uint32(16)))


@njit(**OPTIONS)  # type: ignore[call-overload]
def key_of(low, high, utterance, frame, label):
    key = np.uint32(mix(np.uint32(low ^ np.uint32(GOLDEN))) ^ high)
    key = mix(key)
    key = mix(np.uint32(key + np.uint32(utterance)))
    key = mix(np.uint32(key + np.uint32(frame)))
    return mix(np.uint32(key + np.uint32(label)))


@njit(**OPTIONS)  # type: ignore[call-overload]
def mask(row, key, threshold, scale):
    """A row of features, in place."""
    for d in range(row.size):
        stays = mix(np.uint32(key ^ np.uint32(np.uint32(d) * np.uint32(GOLDEN)))) >= threshold
        x = s.load(row[d]) * scale
        row[d] = s.encode(x if stays else s.type_of(x, 0.0), row[d])


@njit(**OPTIONS)  # type: ignore[call-overload]
def mask_panel(z, dim, keys, threshold, scale):
    """Joint encodings (depth, lanes) of a panel of nodes, whose keys these are, in place."""
    for d in range(dim):
        row, feature = z[d], np.uint32(np.uint32(d) * np.uint32(GOLDEN))
        for i in range(row.size):
            row[i] = row[i] * scale if mix(np.uint32(keys[i] ^ feature)) >= threshold else s.type_of(scale, 0.0)


@kernel()
def _drop(z, frame, token, low, high, threshold, scale, frames, tokens, first):
    for r in prange(z.shape[0]):
        g = frame[r] // frames
        key = key_of(low, high, first + g, frame[r] - g * frames, token[r] - g * tokens)
        mask(z[r], key, threshold, scale)
