"""SpecAugment (Park et al. 2019, arXiv 1904.08779): bands and stretches of the features are blanked out in training."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from samplewise.asr.options import SpecAugmentOptions


class SpecAugment(nn.Module):
    """Masks of frequency and time, drawn anew for every utterance; nothing is changed in evaluation.

    The width of a mask is uniform in 0..`frequency_width` bands or 0..`time_width` frames, its place uniform among those
    that fit. A mask of time covers at most `time_share` of the utterance. Masked features are 0, the mean of
    normalised ones. Time warping, the third part of the paper, is left out: there it mattered least.

    Args:
        options: number and widths of the masks.
    """

    def __init__(self, options: SpecAugmentOptions):
        super().__init__()
        self.options = options

    def forward(self, features: Tensor, lengths: Tensor) -> Tensor:
        """Features (B, F, M) of `lengths` (B,) frames, some of them masked."""
        if not self.training:
            return features
        options = self.options
        bands = torch.full_like(lengths, features.shape[2])
        widest = torch.minimum((options.time_share * lengths).long(), torch.full_like(lengths, options.time_width))
        masked = drawn(options.time_masks, widest, lengths, features.shape[1]).unsqueeze(2)  # (B, F, 1)
        widest = torch.full_like(lengths, options.frequency_width).minimum(bands)
        masked = masked | drawn(options.frequency_masks, widest, bands, features.shape[2]).unsqueeze(1)  # (B, F, M)
        return features.masked_fill(masked, 0.0)


def drawn(masks: int, widest: Tensor, lengths: Tensor, size: int) -> Tensor:
    """Which of `size` places are masked (B, size), by so many masks of 0 to `widest` (B,) places within `lengths` (B,)."""
    shape = (len(lengths), masks, 1)
    width = (torch.rand(shape, device=lengths.device) * (widest[:, None, None] + 1)).long()  # (B, N, 1)
    start = (torch.rand(shape, device=lengths.device) * (lengths[:, None, None] - width + 1)).long()
    place = torch.arange(size, device=lengths.device)
    return ((start <= place) & (place < start + width)).any(dim=1)
