"""Which numbers of symbols to keep in each frame: the ranges of pruned RNN-T (arXiv 2206.13236, section 3.2)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad


def kept_probability(of_symbol: Tensor, of_blank: Tensor, width: int) -> Tensor:
    """(B, S+2-width, T): for each first number of a range, the probability that an alignment leaves the frame within it,
    without having entered the range's first number in this frame."""
    T = of_blank.shape[2]
    leaving = of_blank.unfold(1, width, 1).sum(3)
    return leaving - pad(of_symbol[:, :, :T], (0, 0, 1, 0))[:, : leaving.shape[1]]


def kept_occupancy(of_symbol: Tensor, of_blank: Tensor, width: int) -> Tensor:
    """(B, S+2-width, T): the occupancy of a range's numbers, of both kinds of arcs: an older rule."""
    T = of_blank.shape[2]
    total = pad(of_symbol[:, :, :T], (0, 0, 0, 1)) + of_blank
    return total.unfold(1, width, 1).sum(3)


def ranges_of(gain: Tensor, frames: Tensor, symbols: Tensor, width: int, step: int) -> Tensor:
    """Ranges (B, T, width) of numbers of symbols, from what each first number gains (B, S+2-width, T).

    They begin with 0 and end with the last number in the last of an utterance's frames (B,), never go back, and go on by `step`
    at most, so that a path is left.
    """
    t = torch.arange(gain.shape[2], device=gain.device)[None]  # (1, T)
    last = (symbols - width + 1).clamp(min=0)
    first = _lower(torch.where(t < frames[:, None] - 1, gain.argmax(1), last[:, None]))
    slack = _lower(step * t - first).clamp(min=0)
    return (step * t - slack)[..., None] + torch.arange(width, device=gain.device)


def _lower(x: Tensor) -> Tensor:
    """The least of what follows, (B, T)."""
    return x.flip(1).cummin(1).values.flip(1)
