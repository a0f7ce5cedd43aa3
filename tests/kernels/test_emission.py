"""`emission` and `emission_gradient` of every backend: log-softmax of a tile, and its gradient in place."""

import sys

import pytest
import torch

from samplewise.kernels import eager

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
EVERY_DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=str)
NAN, INF = float("nan"), float("inf")


def real_of(dtype):
    return torch.float64 if dtype == torch.float64 else torch.float32


def tile(rows, classes, dtype, scale=3.0):
    """Logits, bias, nodes in any order within a larger array, labels with some missing."""
    logits = torch.randn(rows, classes).mul(scale).to(dtype)
    bias = torch.randn(classes).to(real_of(dtype))
    node = torch.randperm(2 * rows)[:rows]
    label = torch.randint(-1, classes, (rows,))
    return logits, bias, node, label


def emission(kernels, logits, bias, node, label, blank):
    """The kernel's outputs, of twice as many nodes as rows, which hold NaN before."""
    size, real = 2 * len(node), bias.dtype
    outputs = [torch.full((size,), NAN, dtype=kind) for kind in (torch.float64, real, real)]
    kernels.emission(logits, bias, node, label, blank, *outputs)
    return outputs


@EVERY_DTYPE
@pytest.mark.parametrize("classes", [1, 2, 33, 129, 1025])
@pytest.mark.parametrize("rows", [1, 7])
def test_emission(kernels, rows, classes, dtype):
    logits, bias, node, label = tile(rows, classes, dtype)
    blank = classes // 2
    kept = logits.clone()
    log_denominator, lp_blank, lp_label = emission(kernels, logits, bias, node, label, blank)
    assert torch.equal(logits, kept)

    log_probs = (logits.double() + bias.double()).log_softmax(1)
    right = torch.where(label < 0, -INF, log_probs.gather(1, label.clamp(min=0)[:, None])[:, 0])
    close = {"rtol": 4 * torch.finfo(bias.dtype).eps, "atol": 16 * torch.finfo(bias.dtype).eps}
    torch.testing.assert_close(log_denominator[node], (logits.double() + bias.double()).logsumexp(1), **close)
    torch.testing.assert_close(lp_blank[node].double(), log_probs[:, blank], **close)
    torch.testing.assert_close(lp_label[node].double(), right, **close)
    others = torch.ones(2 * rows, dtype=torch.bool).index_fill_(0, node, False)
    assert all(output[others].isnan().all() for output in (log_denominator, lp_blank, lp_label)), "another node was written"


@pytest.mark.parametrize("level", [1e3, 1e5, -1e5])
def test_large_scores_keep_their_digits(kernels, level):
    """Scores that differ by multiples of 1/64 around 100000: their softmax is as exact as around 0."""
    steps = torch.randint(-256, 256, (50, 40)).float() / 64
    bias = torch.zeros(40)
    node, label = torch.arange(50), torch.full((50,), 3)
    log_denominator, lp_blank, lp_label = emission(kernels, steps + level, bias, node, label, 1)
    right = steps.double().log_softmax(1)
    torch.testing.assert_close(lp_blank[:50].double(), right[:, 1], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(lp_label[:50].double(), right[:, 3], rtol=1e-6, atol=1e-6)
    gradient = steps + level
    ones, zeros = torch.ones(100), torch.zeros(100)
    kernels.emission_gradient(gradient, bias, node, label, 1, log_denominator, ones, zeros, torch.zeros(40))
    gradient[:, 1] += 1
    torch.testing.assert_close(gradient.double(), right.exp(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("place", [3, 1100, 2499])
def test_many_classes_far_below_one(kernels, place):
    """In whichever part of a row a kernel meets it."""
    logits = torch.zeros(8, 2500)
    logits[:, place] = 500.0
    node, label = torch.arange(8), torch.full((8,), place)
    log_denominator, lp_blank, lp_label = emission(kernels, logits, torch.zeros(2500), node, label, 7)
    assert log_denominator[:8].tolist() == [500.0] * 8
    assert lp_label[:8].tolist() == [0.0] * 8 and lp_blank[:8].tolist() == [-500.0] * 8


def test_the_largest_class_of_a_sure_row_costs_nothing(kernels):
    """Where one score towers over the others, its log-probability is 0, not a rounding error of the score."""
    logits = torch.randn(64, 9) * 300
    bias = torch.randn(9) * 150
    scores = logits + bias
    sure = scores.topk(2, 1).values.diff(dim=1)[:, 0] < -110
    top = scores.argmax(1)
    _, _, lp_label = emission(kernels, logits, bias, torch.arange(64), top, 0)
    assert sure.sum() > 20
    assert (lp_label[:64][sure].abs() < 1e-7).all()


def test_not_finite(kernels):
    """NaN and infinite scores reach their own rows and no others; a class of probability 0 is no trouble."""
    logits, bias, _, _ = tile(6, 33, torch.float32)
    logits[0, 20] = NAN
    logits[1, 5] = INF
    logits[2, 32] = -INF
    logits[3] = -INF
    logits[4, 7] = -NAN
    node, label = torch.arange(6), torch.tensor([1, 2, 3, 4, 5, 32])
    outputs = [x[:6] for x in emission(kernels, logits, bias, node, label, 0)]
    for row in (0, 1, 3, 4):
        assert not any(torch.isfinite(output[row]) for output in outputs[1:]), row
    for row in (2, 5):
        right = (logits[row].double() + bias.double()).log_softmax(0)
        assert outputs[1][row].item() == pytest.approx(right[0].item(), rel=1e-5)
        assert outputs[2][row].item() == pytest.approx(right[label[row]].item(), rel=1e-5)


@EVERY_DTYPE
@pytest.mark.parametrize("classes", [2, 33, 129, 1025])
@pytest.mark.parametrize("rows", [1, 7])
def test_emission_gradient(kernels, rows, classes, dtype):
    """gamma softmax - gamma_blank e_blank - gamma_label e_label, in place; posteriors may be negative, with their upstream."""
    logits, bias, node, label = tile(rows, classes, dtype)
    blank = classes - 1
    label[label == blank] = 0
    log_denominator, _, _ = emission(kernels, logits, bias, node, label, blank)
    sign = torch.tensor([1.0, -1.0]).repeat(rows)
    by_blank, by_label = (torch.rand(2 * rows, dtype=bias.dtype) * sign for _ in range(2))
    by_label[node[label < 0]] = 0.0

    both = (by_blank + by_label)[node].double()
    right = both[:, None] * (logits.double() + bias.double()).softmax(1)
    right[:, blank] -= by_blank[node].double()
    right.scatter_add_(1, label.clamp(min=0)[:, None], -by_label[node].double()[:, None])
    before = torch.randn(classes, dtype=bias.dtype)
    d_bias = before.clone()
    kernels.emission_gradient(logits, bias, node, label, blank, log_denominator, by_blank, by_label, d_bias)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(logits.double(), right, rtol=4 * eps, atol=4 * min(eps, 1e-4))
    torch.testing.assert_close((d_bias - before).double(), right.sum(0), rtol=1e-2 if eps > 1e-6 else 1e-5, atol=8 * eps)


@pytest.mark.parametrize("classes", [2, 33, 1025])
def test_a_denominator_of_scores_that_were_rounded_otherwise(kernels, classes):
    """A product of another shape may round scores of a thousand nats by 1e-4; the softmax is that of the scores at hand."""
    logits, bias, node, label = tile(7, classes, torch.float32)
    logits, label = logits + 1000.0, label.clamp(min=1)
    log_denominator, *_ = emission(kernels, logits, bias, node, label, 0)
    by_blank, by_label = torch.rand(2, 14)
    right, other = logits.clone(), logits.clone()
    sums = torch.zeros(2, classes)
    kernels.emission_gradient(right, bias, node, label, 0, log_denominator, by_blank, by_label, sums[0])
    kernels.emission_gradient(other, bias, node, label, 0, log_denominator + 1e-4, by_blank, by_label, sums[1])
    assert right.sum(1).abs().max() < 1e-5
    torch.testing.assert_close(other, right, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(sums[1], sums[0], rtol=1e-5, atol=1e-5)


@EVERY_DTYPE
def test_rows_without_occupancy_become_zero(kernels, dtype):
    """Whatever they hold, and their denominator too."""
    logits, bias, _, _ = tile(3, 9, dtype)
    logits[1] = NAN
    node, label = torch.arange(3), torch.tensor([1, 2, -1])
    log_denominator, _, _ = emission(kernels, logits, bias, node, label, 0)
    gammas = torch.zeros(2, 6, dtype=bias.dtype)
    gammas[:, 0] = 0.5
    d_bias = torch.zeros_like(bias)
    kernels.emission_gradient(logits, bias, node, label, 0, log_denominator, *gammas, d_bias)
    assert (logits[1:] == 0).all() and (logits[0] != 0).any() and torch.isfinite(d_bias).all()


def test_tiny_occupancies_leave_no_denormal_numbers(kernels):
    """They are slow, and nothing in float32. (Plain PyTorch makes them.)"""
    if kernels.__name__.endswith("eager"):
        pytest.skip("a pass over the tile more is not worth it without a compiled kernel")
    logits, bias, _, label = tile(40, 129, torch.float32)
    node = torch.arange(40)
    label[label == 0] = 1
    log_denominator, _, _ = emission(kernels, logits, bias, node, label, 0)
    gamma = torch.full((80,), 1e-36)
    zero = torch.zeros(80)
    kernels.emission_gradient(logits, bias, node, label, 0, log_denominator, gamma, zero, torch.zeros(129))
    logits[:, 0] = 0
    logits.scatter_(1, label.clamp(min=0)[:, None], 0.0)  # the two entries of the arcs are what they are
    small = logits[logits != 0].abs()
    assert small.numel() > 0 and (small >= torch.finfo(torch.float32).smallest_normal).all()


def test_columns_add_up_on_several_threads(kernels):
    logits, bias, node, label = tile(500, 17, torch.float64)
    label[label == 0] = 1
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        ours, d_bias = logits.clone(), torch.zeros_like(bias)
        log_denominator, _, _ = emission(kernels, ours, bias, node, label, 0)
        gammas = torch.linspace(0, 1, 2000, dtype=torch.float64).view(2, 1000)
        kernels.emission_gradient(ours, bias, node, label, 0, log_denominator, *gammas, d_bias)
        torch.testing.assert_close(d_bias, ours.sum(0), rtol=1e-12, atol=1e-12)
        results.append(ours)
    assert torch.equal(*results)


def test_eager_looks_at_a_tile_in_pieces(monkeypatch):
    """Its scores in full precision are few at a time; the numbers are the same."""
    logits, bias, node, label = tile(50, 9, torch.float32)
    label[label == 0] = 1
    results = []
    for at_once in (1 << 22, 20, 1):
        monkeypatch.setattr(sys.modules["samplewise.kernels.eager.emission"], "AT_ONCE", at_once)
        ours, d_bias = logits.clone(), torch.zeros(9)
        outputs = emission(eager, ours, bias, node, label, 0)
        eager.emission_gradient(ours, bias, node, label, 0, outputs[0], torch.ones(100), torch.ones(100), d_bias)
        results.append([ours, *(output[node] for output in outputs)])
        torch.testing.assert_close(d_bias, ours.sum(0))
    for piecewise in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(piecewise, results[0], strict=True))
