"""Features of an utterance: log-mel energies by a short-time Fourier transform, or what is stored, with derivatives."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from transformers.audio_utils import mel_filter_bank

from samplewise.asr.errors import UserError
from samplewise.asr.recipe import LogMelOptions, StoredOptions

FLOOR = 1e-5  # energy added before the logarithm: digital silence is as faint noise


class Features(Protocol):
    """A feature source: from samples, or stored features, to frames."""

    dim: int
    sample_rate: int

    def __call__(self, samples: np.ndarray) -> torch.Tensor:
        """Samples (S,) to features (F, dim); F may be 0."""


class LogMel:
    """Log-mel energies, each band of the utterance brought to zero mean and unit variance.

    A frame is `window` seconds long and starts every `hop` seconds; only whole frames count, so
    F = 1 + (S - window) // hop, and 0 where the recording is shorter than one window.
    """

    def __init__(self, options: LogMelOptions):
        self.options = options
        self.dim = options.mels
        self.sample_rate = options.sample_rate
        self.window = round(options.window * options.sample_rate)
        self.hop = round(options.hop * options.sample_rate)
        self.fft = 1 << (self.window - 1).bit_length()
        self.taper = torch.hann_window(self.window, periodic=False)
        self.bank = filter_bank(options, self.fft)  # (fft/2+1, mels)

    def frames(self, samples: int) -> int:
        """Number of frames of a recording of so many samples."""
        return max(0, 1 + (samples - self.window) // self.hop)

    def __call__(self, samples: np.ndarray) -> torch.Tensor:
        if self.frames(len(samples)) == 0:
            return torch.zeros(0, self.dim)
        pieces = torch.from_numpy(samples).unfold(0, self.window, self.hop) * self.taper  # (F, window)
        power = torch.fft.rfft(pieces, n=self.fft).abs().square()  # (F, fft/2+1)
        features = torch.log(power @ self.bank + FLOOR)  # (F, mels)
        if self.options.normalise:
            deviation = features.std(dim=0, unbiased=False)
            features = (features - features.mean(dim=0)) / (deviation + 1e-3)
        return features


def filter_bank(options: LogMelOptions, fft: int) -> torch.Tensor:
    """Triangular filters spaced on the mel scale, (fft/2+1, mels)."""
    with warnings.catch_warnings():  # more bands than a short transform resolves: some low ones are empty, which is fine
        warnings.filterwarnings("ignore", message="At least one mel filter has all zero values")
        bank = mel_filter_bank(
            num_frequency_bins=fft // 2 + 1,
            num_mel_filters=options.mels,
            min_frequency=options.low,
            max_frequency=options.high or options.sample_rate / 2,
            sampling_rate=options.sample_rate,
            mel_scale="htk",
        )
    return torch.from_numpy(bank).float()


class Stored:
    """Features that were stored, normalised, with their time derivatives (regression over two frames to each side).

    d(t) = sum_{n=1..2} n (c(t+n) - c(t-n)) / 10; the first and the last frame are repeated beyond the ends.
    """

    sample_rate = 100  # frames a second; audio is never read

    def __init__(self, options: StoredOptions):
        self.options = options
        self.dim = options.dim * (1 + options.deltas)

    def __call__(self, samples: np.ndarray) -> torch.Tensor:
        if samples.ndim != 2:
            raise UserError("this recogniser was trained on stored features and cannot be given recordings")
        if not len(samples):
            return torch.zeros(0, self.dim)
        orders = [self._normalised(torch.from_numpy(samples))]
        for _ in range(self.options.deltas):
            orders.append(derivative(orders[-1]))
        return torch.cat([orders[0], *(self._normalised(order) for order in orders[1:])], dim=1)  # (F, dim)

    def _normalised(self, x: torch.Tensor) -> torch.Tensor:
        if not self.options.normalise:
            return x
        return (x - x.mean(dim=0)) / (x.std(dim=0, unbiased=False) + 1e-3)


def derivative(x: torch.Tensor) -> torch.Tensor:
    """Of features (F, M) by time, as a regression over five frames."""
    wide = torch.cat([x[:1], x[:1], x, x[-1:], x[-1:]])  # (F+4, M)
    return (2 * (wide[4:] - wide[:-4]) + wide[3:-1] - wide[1:-3]) / 10


FEATURES: dict[str, Callable[..., Features]] = {"log_mel": LogMel, "stored": Stored}


def make_features(options: LogMelOptions | StoredOptions) -> Features:
    """The feature source that the recipe names."""
    return FEATURES[options.kind](options)
