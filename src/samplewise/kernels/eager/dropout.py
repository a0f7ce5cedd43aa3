"""Dropout inside a joint network: a mask that is a function of seed, utterance, frame, label and feature alone.

Each is mixed in by the finaliser of MurmurHash3 (Appleby, public domain), 32 bits to 32 bits, one to one. So a mask can be made
again wherever its node is, in any tile, group, method or backend.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

WORD, GOLDEN = 0xFFFFFFFF, 0x9E3779B9


class Dropout(NamedTuple):
    """A call's dropout: features below `threshold` of 2^32 become 0, the others `scale` times as large. Rows of the encodings
    are numbered utterance by utterance, `frames` and `tokens` of each, from utterance `first` on."""

    seed: int
    threshold: int
    scale: float
    frames: int
    tokens: int
    first: int


def dropout_of(probability: float, seed: int, frames: int, tokens: int, first: int) -> Dropout | None:
    """The dropout of a probability 0..1, 1 excluded; None for 0."""
    if probability == 0.0:
        return None
    return Dropout(seed, round(probability * 2**32), 1.0 / (1.0 - probability), frames, tokens, first)


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
