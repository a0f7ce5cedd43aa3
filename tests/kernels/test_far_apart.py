"""`lattice` of every backend where probabilities lie far apart, and in long utterances."""

import math

import pytest
import torch

from samplewise.kernels.layout import packed_table
from tests.kernels.test_lattice import INF, emissions, right, run


def by_logarithms(blank, label, frames, labels):
    """Loss and posteriors of one utterance in float64, row by row, in logarithms."""
    blank, label = blank.double().view(frames, labels + 1), label.double().view(frames, labels + 1)
    alpha, beta = torch.full((frames + 1, labels + 1), -INF).double(), torch.full((frames + 1, labels + 2), -INF).double()
    alpha[0, 0], beta[frames, labels] = 0.0, 0.0
    for d in range(frames + labels):
        u = torch.arange(max(0, d - frames + 1), min(labels, d) + 1)
        t = d - u
        alpha[t + 1, u] = torch.logaddexp(alpha[t + 1, u], alpha[t, u] + blank[t, u])
        on = u < labels
        t, u = t[on], u[on]
        alpha[t, u + 1] = torch.logaddexp(alpha[t, u + 1], alpha[t, u] + label[t, u])
    for d in range(frames + labels - 1, -1, -1):
        u = torch.arange(max(0, d - frames + 1), min(labels, d) + 1)
        t = d - u
        beta[t, u] = torch.logaddexp(beta[t + 1, u] + blank[t, u], beta[t, u + 1] + label[t, u])
    loss = -beta[0, 0]
    by_blank = (alpha[:-1] + blank + beta[1:, :-1] + loss).exp()
    by_label = (alpha[:-1] + label + beta[:-1, 1:] + loss).exp()
    return loss, by_blank.view(-1), by_label.view(-1)


def test_a_path_far_from_where_alpha_is_large(kernels):
    """Along one diagonal alpha spans e^15000, float64's range is e^1450: labels are improbable until the very end."""
    frames, labels = 40, 300
    blank, label, table = emissions((frames,), (labels,), scale=1e-6)
    label.view(frames, labels + 1)[:, :-1] -= 50.0
    got, expected = run(kernels, blank, label, table), by_logarithms(blank, label, frames, labels)
    assert got[0].item() == pytest.approx(expected[0].item(), rel=1e-13) and expected[0] > 14800
    for gamma, truth in zip(got[1:], expected[1:], strict=True):
        torch.testing.assert_close(gamma, truth, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("size", [1e4, 1e7, 1e9, 1e30])
def test_losses_beyond_all_exponents(kernels, size, dtype):
    """A path goes where it must, and what else there is keeps its digits as far as those of the loss reach."""
    blank, label, table = emissions((9, 20), (4, 3), dtype)
    blank[15:20] = -size  # a frame that all paths leave
    got, expected = run(kernels, blank, label, table), right(blank, label, table)
    assert got[0][0] == pytest.approx(expected[0][0].item(), rel=1e-13) and got[0][0] >= 0.9 * size
    for gamma, truth in zip(got[1:], expected[1:], strict=True):
        assert gamma.isfinite().all() and gamma.min() >= 0 and gamma.max() <= 1
        torch.testing.assert_close(gamma[45:].double(), truth[45:], rtol=0, atol=1e-6)
        if size <= 1e9:
            torch.testing.assert_close(gamma.double(), truth, rtol=0, atol=1e-6)


def test_losses_of_a_billion(kernels):
    """Many large emissions whose sum is exact: the posteriors are those of the same lattice without them."""
    blank, label, table = emissions((64,), (16,))
    plain = run(kernels, blank, label, table)
    blank, label = blank - 2.0**24, label - 2.0**24  # every path has as many arcs
    far = run(kernels, blank, label, table)
    assert far[0].item() == pytest.approx(plain[0].item() + 80 * 2.0**24, rel=1e-15) and far[0] > 1e9
    for gamma, truth in zip(far[1:], plain[1:], strict=True):
        torch.testing.assert_close(gamma, truth, rtol=0, atol=1e-5)  # emissions near 2^24 have 2^-29 as their last digit


def test_nothing_is_less_than_anything(kernels):
    """-1e30 is improbable, -inf impossible: with the one there is a loss, with the other none."""
    for value in (-1e30, -INF):
        blank, label, table = emissions((30,), (3,))
        blank.view(30, 4)[17] = value
        losses, by_blank, _ = run(kernels, blank, label, table)
        assert losses.item() == pytest.approx(-value)
        assert (by_blank.view(30, 4)[17].sum() > 0) == math.isfinite(value)


def test_a_long_utterance(kernels):
    """20000 frames: no digit is lost to the length."""
    if not kernels.__name__.endswith("numba"):
        pytest.skip("takes minutes")
    frames, labels = 20000, 20
    blank, label, table = emissions((frames,), (labels,), torch.float32)
    got, expected = run(kernels, blank, label, table), by_logarithms(blank, label, frames, labels)
    assert got[0].item() == pytest.approx(expected[0].item(), rel=1e-14)
    for gamma, truth in zip(got[1:], expected[1:], strict=True):
        torch.testing.assert_close(gamma.double(), truth, rtol=1e-6, atol=1e-9)


def test_threads_change_no_bit(kernels):
    """Neither halves on two threads nor whole utterances on several."""
    if not kernels.__name__.endswith("numba"):
        pytest.skip("nothing there depends on threads")
    for frames, labels in [
        ((300,), (40,)),
        ((33, 170, 5), (50, 3, 9)),
        ([7 + 13 * i for i in range(9)], [5 * i for i in range(9)]),
    ]:
        problem = emissions(frames, labels, torch.float32)
        found = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(run(kernels, *problem))
        assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


def test_nodes_beside_the_utterances_are_not_touched(kernels):
    """Lanes and strips end where the lattice does, whatever its size."""
    for frames, labels in [(1, 0), (15, 3), (16, 15), (17, 16), (31, 17), (33, 40), (5, 100)]:
        blank, label, table = emissions((frames,), (labels,))
        nodes, apart = blank.numel(), run(kernels, blank, label, table)
        around = [torch.full((nodes + 200,), math.nan, dtype=torch.float64) for _ in range(2)]
        for x, y in zip(around, (blank, label), strict=True):
            x[100 : 100 + nodes] = y
        table[:, 0] += 100
        within = run(kernels, *around, table)
        assert torch.equal(within[0], apart[0])
        for x, y in zip(within[1:], apart[1:], strict=True):
            assert torch.equal(x[100 : 100 + nodes], y) and x[:100].isnan().all() and x[100 + nodes :].isnan().all()


@pytest.mark.parametrize("emission", [0.49, 0.51, 0.7, 0.72])
def test_numbers_that_grow_or_shrink_a_little_with_every_step(kernels, emission):
    """Emissions whose mantissas are all far from 1: their products over thousands of steps are beyond float64. All paths are
    alike, so the loss has a formula."""
    if not kernels.__name__.endswith("numba"):
        pytest.skip("has no mantissas, and takes long")
    frames, labels = 4500, 3
    emissions = torch.full((2, frames * (labels + 1)), math.log(emission), dtype=torch.float64)
    table, _ = packed_table([frames], [labels], frames, labels + 1, labels, torch.device("cpu"))
    losses, gammas = torch.empty(1, dtype=torch.float64), torch.empty_like(emissions)
    kernels.lattice(*emissions, table, torch.ones(1, dtype=torch.float64), losses, *gammas)
    paths = math.log(math.comb(frames - 1 + labels, labels))
    assert losses.item() == pytest.approx(-(paths + (frames + labels) * math.log(emission)), rel=1e-12)
    assert gammas.sum().item() == pytest.approx(frames + labels, rel=1e-9)
