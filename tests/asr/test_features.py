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


def test_bands_are_spaced_on_the_mel_scale():
    """2595 log10(1 + f / 700) of their centres grows by the same amount from band to band, as in most recipes."""
    options = LogMelOptions(sample_rate=16000, mels=20, low=20.0, window=0.128)
    bank = LogMel(options).bank.double()  # fine enough bins for centres of triangles
    hertz = torch.linspace(0, 8000, len(bank), dtype=torch.float64)
    mel = 2595 * torch.log10(1 + hertz / 700)
    edges = torch.linspace(float(2595 * np.log10(1 + 20 / 700)), float(mel[-1]), 22, dtype=torch.float64)
    assert (mel[bank.argmax(0)] - edges[1:-1]).abs().max() < 0.1 * (edges[1] - edges[0])
    assert torch.equal(bank[mel > edges[2]][:, 0], torch.zeros(int((mel > edges[2]).sum()), dtype=torch.float64))
