"""`band_lattice` of every backend: frames of which only an interval of nodes exists."""

import random

import pytest
import torch

from tests.kernels.test_lattice import INF, NAN, emissions, run


def intervals(frames, labels, seed, empty=False):
    """Random intervals (R,) low and high, mostly such that some path goes through."""
    chance, low, high = random.Random(seed), [], []
    for T, U in zip(frames, labels, strict=True):
        at = 0
        for t in range(T):
            start = 0 if t == 0 else max(0, min(at, U + 1) - chance.randrange(3))
            at = U + 1 if t == T - 1 else min(U + 1, max(start, at) + 1 + chance.randrange(4) * chance.randrange(2))
            low.append(start)
            high.append(at)
        if empty:
            row = len(low) - 1 - chance.randrange(T)
            high[row] = low[row]
    return torch.tensor(low), torch.tensor(high)


def banded(kernels, frames, labels, low, high, dtype=torch.float64, weights=None, both=True, in_place=False):
    """Losses and posteriors of the band, spread over the whole lattice, and those of the whole lattice with -inf outside."""
    blank, label, table = emissions(frames, labels, dtype)
    widths = torch.cat([torch.full((T,), U + 1) for T, U in zip(frames, labels, strict=True)])
    starts = widths.cumsum(0) - widths
    inside = torch.cat([start + torch.arange(lo, hi) for start, lo, hi in zip(starts, low, high, strict=True)])
    outside = torch.ones(len(blank), dtype=torch.bool)
    outside[inside] = False
    weights = torch.ones(len(frames), dtype=torch.float64) if weights is None else weights
    whole = run(kernels, blank.masked_fill(outside, -INF), label.masked_fill(outside, -INF), table, weights)
    count = high - low
    base = count.cumsum(0) - count - low
    lp_blank, lp_label = blank[inside], label[inside]
    gammas = (lp_blank, lp_label) if in_place else (torch.full_like(lp_blank, NAN), torch.full_like(lp_label, NAN))
    losses = torch.full((len(frames),), NAN, dtype=torch.float64)
    outputs = (gammas[0], gammas[1] if both else None)
    kernels.band_lattice(lp_blank, lp_label, table, base, low, high, weights, losses, *outputs)
    return (losses, *gammas), (whole[0], *(x[inside] for x in whole[1:]))


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_as_the_whole_lattice(kernels, seed, dtype):
    frames, labels = (9, 1, 40, 12), (3, 4, 9, 0)
    low, high = intervals(frames, labels, seed, empty=seed % 4 == 3)
    weights = torch.tensor([1.0, -0.5, 2.0, 0.0], dtype=torch.float64)
    got, expected = banded(kernels, frames, labels, low, high, dtype, weights, in_place=seed % 2 == 1)
    assert torch.isinf(got[0]).all() == (seed % 4 == 3)
    torch.testing.assert_close(got[0], expected[0], rtol=1e-13, atol=1e-13)
    for gamma, truth in zip(got[1:], expected[1:], strict=True):
        torch.testing.assert_close(gamma, truth, rtol=1e-6 if dtype == torch.float32 else 1e-12, atol=1e-12)


def test_the_whole_lattice_is_a_band(kernels):
    frames, labels = (20, 3), (40, 2)
    low, high = torch.zeros(23, dtype=torch.int64), torch.tensor([41] * 20 + [3] * 3)
    got, expected = banded(kernels, frames, labels, low, high)
    for ours, truth in zip(got, expected, strict=True):
        torch.testing.assert_close(ours, truth, rtol=1e-12, atol=1e-13)


def test_no_path_inside(kernels):
    """Intervals that do not meet, no first node, no last node: infinite loss, no occupancy, and the next utterance as ever."""
    for low, high in [([0, 2, 2], [1, 4, 4]), ([1, 1, 1], [4, 4, 4]), ([0, 0, 0], [4, 4, 3]), ([0, 0, 4], [4, 4, 4])]:
        low, high = torch.tensor([*low, 0, 0]), torch.tensor([*high, 2, 2])
        got, expected = banded(kernels, (3, 2), (3, 1), low, high)
        assert got[0][0] == INF and got[0][1] == pytest.approx(expected[0][1].item())
        for gamma, truth in zip(got[1:], expected[1:], strict=True):
            torch.testing.assert_close(gamma, truth, rtol=1e-12, atol=1e-13)


def test_occupancy_and_losses_alone(kernels):
    frames, labels = (9, 30), (3, 9)
    low, high = intervals(frames, labels, 1)
    got, expected = banded(kernels, frames, labels, low, high, both=False)
    torch.testing.assert_close(got[1], expected[1] + expected[2], rtol=1e-12, atol=1e-13)
    blank, label, table = emissions((1,), (0,))
    losses, one, zero = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    kernels.band_lattice(blank, label, table, zero, zero, one, losses + 1, losses, None, None)
    assert losses.item() == -blank.item()


def test_not_a_number(kernels):
    frames, labels = (5, 4), (2, 2)
    low, high = torch.zeros(9, dtype=torch.int64), torch.full((9,), 3)
    blank, label, table = emissions(frames, labels)
    blank[7] = NAN
    losses = torch.zeros(2, dtype=torch.float64)
    kernels.band_lattice(blank, label, table, torch.arange(9) * 3, low, high, torch.ones_like(losses), losses, blank, label)
    assert losses[0].isnan() and losses[1].isfinite()
    assert (blank[:15] == 0).all() and (label[:15] == 0).all() and blank[15:].sum().item() == pytest.approx(4)
