"""Log-mel features against a written-out transform, and their edge cases."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from samplewise.asr.features import FLOOR, LogMel, make_features
from samplewise.asr.recipe import LogMelOptions

OPTIONS = LogMelOptions(sample_rate=8000, mels=20, normalise=False)


def noise(samples: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(samples).astype(np.float32)


def test_against_a_loop_over_frames():
    features = LogMel(OPTIONS)
    samples = noise(1000)
    window = np.hanning(200)
    for frame, found in enumerate(features(samples)):
        power = np.abs(np.fft.rfft(samples[frame * 80 : frame * 80 + 200] * window, 256)) ** 2
        expected = np.log(power @ features.bank.numpy().astype(np.float64) + FLOOR)
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("samples", "frames"), [(0, 0), (199, 0), (200, 1), (279, 1), (280, 2), (8000, 98)])
def test_only_whole_frames_count(samples, frames):
    features = LogMel(OPTIONS)
    assert features(noise(samples)).shape == (frames, 20)
    assert features.frames(samples) == frames


def test_a_tone_is_loudest_in_its_band():
    time = np.arange(4000) / 8000
    features = LogMel(OPTIONS)
    loudest = [int(features(np.sin(2 * np.pi * f * time).astype(np.float32)).mean(0).argmax()) for f in (300, 1000, 3000)]
    assert loudest == sorted(loudest)
    assert len(set(loudest)) == 3


def test_normalised_features_do_not_depend_on_level():
    features = make_features(LogMelOptions(sample_rate=8000, mels=20))
    samples = noise(4000)
    torch.testing.assert_close(features(samples), features(samples * 8), rtol=0, atol=2e-3)
    assert features(samples).mean(0).abs().max() < 1e-5
    assert torch.allclose(features(samples).std(0, unbiased=False), torch.ones(20), atol=0.01)


def test_silence_is_finite():
    assert torch.isfinite(make_features(LogMelOptions(sample_rate=8000, mels=20))(np.zeros(4000, np.float32))).all()


def test_more_bands_than_the_transform_resolves_warn_nobody():
    assert make_features(LogMelOptions(sample_rate=8000, mels=128)).dim == 128
