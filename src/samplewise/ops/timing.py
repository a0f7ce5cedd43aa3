"""When labels may be emitted, and what it costs: a delay penalty, and an alignment to stay with. Both act on the label's entry
of a node before the lattice.

Sources: delay penalty arXiv 2211.00490, in k2's form; alignment-restricted training arXiv 2011.03072.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from samplewise.checks import Lengths


def delay(penalty: float, frames: Tensor | float, frame: Tensor) -> Tensor:
    """What is added to the log-probability of a label at a frame of an utterance of so many."""
    return penalty * ((frames - 1) / 2 - frame)


@dataclass(frozen=True)
class Timing:
    """Of a batch: `penalty` for a frame of delay, and the first and last frame of every label, (B, U, 2), or None."""

    penalty: float
    alignment: Tensor | None
    frames: Tensor  # (B,) real dtype, lengths

    @classmethod
    def of(cls, penalty: float, alignment: Tensor | None, lengths: Lengths, real: torch.dtype, device: torch.device) -> Timing:
        frames = torch.tensor(lengths.frames, dtype=real, device=device)
        return cls(penalty, None if alignment is None else alignment.to(device=device, dtype=torch.int64), frames)

    def apply(self, by_label: Tensor, at: Tensor, utterance: Tensor, frame: Tensor, label: Tensor) -> None:
        """Of nodes (utterance, frame, label), each (R,), with their label entries at by_label[at]."""
        values = by_label[at]
        if self.penalty:
            values += delay(self.penalty, self.frames[utterance], frame)
        if self.alignment is not None and self.alignment.shape[1]:
            span = self.alignment[utterance, label.clamp(max=self.alignment.shape[1] - 1)]  # (R, 2)
            values.masked_fill_((frame < span[:, 0]) | (frame > span[:, 1]), -torch.inf)
        by_label[at] = values

    def reachable(self, b: int, frames: int, labels: int) -> tuple[Tensor, Tensor]:
        """The first and the last frame (U+1,) at which a path of utterance b can have emitted so many labels."""
        first = torch.zeros(labels + 1, dtype=torch.int64, device=self.frames.device)
        last = torch.full_like(first, frames - 1)
        if self.alignment is not None and labels:
            span = self.alignment[b, :labels]
            first[1:] = span[:, 0].cummax(0).values
            last[:-1] = span[:, 1].flip(0).cummin(0).values.flip(0)
        return first, last.clamp(max=frames - 1)
