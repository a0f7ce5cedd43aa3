"""Dropout inside a joint network: a mask that is a function of seed, utterance, frame, label and feature alone.

Each is mixed in by the finaliser of MurmurHash3 (Appleby, public domain), 32 bits to 32 bits, one to one. So a mask can be made
again wherever its node is, in any tile, group, method or backend.
"""

from __future__ import annotations

import torch
from torch import Tensor

from samplewise.kernels.masks import GOLDEN, WORD, Dropout


def mix(x: Tensor) -> Tensor:
    """Of 32 bits in int64."""
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & WORD
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & WORD
    return x ^ (x >> 16)


def keys(dropout: Dropout, utterance: Tensor, frame: Tensor, label: Tensor) -> Tensor:
    """Of nodes, int64 (R,)."""
    start = torch.full((), (dropout.seed & WORD) ^ GOLDEN, dtype=torch.int64, device=frame.device)
    key = mix(mix(start) ^ ((dropout.seed >> 32) & WORD))
    for number in (utterance, frame, label):
        key = mix((key + number) & WORD)
    return key


def kept(dropout: Dropout, key: Tensor, dim: int) -> Tensor:
    """Which of the features (R, D) stay, for keys (R,)."""
    feature = (torch.arange(dim, dtype=torch.int64, device=key.device) * GOLDEN) & WORD
    return mix(key[..., None] ^ feature) >= dropout.threshold


def drop(z: Tensor, frame: Tensor, token: Tensor, dropout: Dropout) -> None:
    """Mask joint encodings (R, D), or their gradients, in place; frame and token (R,) are their rows, as for `joint`.

    What is dropped becomes 0, whatever it was.
    """
    g = frame // dropout.frames
    key = keys(dropout, dropout.first + g, frame - g * dropout.frames, token - g * dropout.tokens)
    z.mul_(dropout.scale).masked_fill_(~kept(dropout, key, z.shape[1]), 0.0)
