"""SpecAugment: off in evaluation, masks within bounds and within the utterance, all widths and places drawn."""

from __future__ import annotations

import pytest
import torch

from samplewise.asr.augment import SpecAugment
from samplewise.asr.options import SpecAugmentOptions

LENGTHS = torch.tensor([100, 40, 7, 1])


def masked(count: int = 1, seed: int = 0, **options) -> torch.Tensor:
    """Which features (R, B, F, M) were masked in `count` draws."""
    torch.manual_seed(seed)
    augment = SpecAugment(SpecAugmentOptions(**options))
    return torch.stack([augment(torch.ones(4, 100, 20), LENGTHS) == 0 for _ in range(count)])


def test_evaluation_changes_nothing():
    features = torch.randn(4, 100, 20)
    assert SpecAugment(SpecAugmentOptions()).eval()(features, LENGTHS) is features


def test_the_input_is_left_alone():
    features = torch.ones(4, 100, 20)
    SpecAugment(SpecAugmentOptions())(features, LENGTHS)
    assert features.all()


def test_masks_of_time_cover_all_bands_of_a_bounded_stretch_inside_the_utterance():
    found = masked(400, frequency_masks=0, time_masks=1, time_width=10, time_share=0.5)
    assert (found.all(dim=3) == found.any(dim=3)).all()
    frames = found.all(dim=3)  # (R, B, F)
    widths = frames.sum(dim=2)
    assert widths.max(dim=0).values.tolist() == [10, 10, 3, 0]  # 10 frames at most, and half of the utterance at most
    assert widths.min(dim=0).values.tolist() == [0, 0, 0, 0]
    for utterance, length in enumerate(LENGTHS.tolist()):
        seen = frames[:, utterance].any(dim=0)
        assert not seen[length:].any()
        assert seen[:length].all() == (length > 1)
    stretches = (frames[..., 1:] & ~frames[..., :-1]).sum(dim=2) + frames[..., 0]
    assert (stretches <= 1).all()


def test_masks_of_frequency_cover_all_frames_of_bounded_bands():
    found = masked(300, frequency_masks=1, frequency_width=6, time_masks=0)
    bands = found.all(dim=2)
    assert (bands == found.any(dim=2)).all()
    assert bands.sum(dim=2).max() == 6 and bands.sum(dim=2).min() == 0
    assert bands.any(dim=0).all()


def test_several_masks_and_every_utterance_its_own():
    found = masked(50, frequency_masks=0, time_masks=3, time_width=10, time_share=0.9)
    assert found[:, 0].all(dim=2).sum(dim=1).max() > 15
    assert not torch.equal(found[:, 0, :40], found[:, 1, :40])


def test_the_same_random_numbers_mask_the_same():
    assert torch.equal(masked(seed=3), masked(seed=3))
    assert not torch.equal(masked(seed=3), masked(seed=4))


@pytest.mark.parametrize("wrong", [{"time_share": 1.1}, {"time_masks": -1}, {"frequency_width": -2}])
def test_wrong_options_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        SpecAugmentOptions(**wrong)
