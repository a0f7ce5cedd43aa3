"""What a mask of dropout is a function of; how its bits are made is in `kernels/eager/dropout.py`, alike in every backend."""

from __future__ import annotations

from typing import NamedTuple

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
    return Dropout(seed, min(round(probability * 2**32), 2**32 - 1), 1.0 / (1.0 - probability), frames, tokens, first)
