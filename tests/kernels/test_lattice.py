"""`lattice` of every backend: losses and posteriors of packed and padded utterances, in place, one or many."""

import math

import pytest
import torch

from samplewise.kernels import eager
from samplewise.kernels.layout import packed_table, padded_table
from samplewise.reference import enumerated_loss, log_likelihood

NAN, INF = float("nan"), float("inf")
CPU = torch.device("cpu")
SIZES = [
    ((5,), (2,)),
    ((1,), (0,)),
    ((1, 1, 1), (0, 3, 1)),
    ((4, 1, 7, 2), (2, 0, 0, 9)),
    ((33, 17), (5, 12)),
    ((130, 3, 64, 1, 2, 9), (1, 70, 31, 0, 1, 4)),
]


def emissions(frames, labels, dtype=torch.float64, scale=2.0):
    """Log-probabilities of packed nodes; -inf where no label is left. Their table, too."""
    table, nodes = packed_table(frames, labels, 0, 0, 0, CPU)
    blank, label = (torch.randn(nodes).mul(scale).abs().neg().to(dtype) for _ in range(2))
    for start, stride, u, t, *_ in table.tolist():
        label[start : start + t * stride].view(t, stride)[:, u] = -INF
    return blank, label, table


def run(kernels, blank, label, table, weights=None, in_place=False):
    """Losses and posteriors, from outputs that hold NaN before; or, in place, from the emissions that they overwrite."""
    count = len(table)
    weights = torch.ones(count, dtype=torch.float64) if weights is None else weights
    losses = torch.full((count,), NAN, dtype=torch.float64)
    if in_place:
        blank, label = blank.clone(), label.clone()
        gammas = (blank, label)
    else:
        gammas = (torch.full_like(blank, NAN), torch.full_like(blank, NAN))
    kernels.lattice(blank, label, table, weights, losses, *gammas)
    return losses, *gammas


def right(blank, label, table, weights=None):
    """The same by autograd of the reference."""
    blank, label = (x.double().clone().requires_grad_() for x in (blank, label))
    losses = []
    for start, stride, u, t, *_ in table.tolist():
        nodes = slice(start, start + t * stride)
        losses.append(-log_likelihood(blank[nodes].view(t, stride)[:, : u + 1], label[nodes].view(t, stride)[:, :u]))
    losses = torch.stack(losses)
    total = losses.sum() if weights is None else (losses * weights).sum()
    gammas = torch.autograd.grad(total, (blank, label), materialize_grads=True)
    return losses.detach(), *(gamma.neg() for gamma in gammas)


@pytest.mark.parametrize("frames, labels", SIZES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_losses_and_posteriors(kernels, frames, labels, dtype):
    blank, label, table = emissions(frames, labels, dtype)
    kept = blank.clone(), label.clone()
    weights = torch.linspace(-2, 3, len(table), dtype=torch.float64) + 0.1
    got, expected = run(kernels, blank, label, table, weights), right(blank, label, table, weights)
    assert torch.equal(blank, kept[0]) and torch.equal(label, kept[1])
    torch.testing.assert_close(got[0], expected[0], rtol=1e-13, atol=1e-13)
    eps = torch.finfo(dtype).eps
    for gamma, truth in zip(got[1:], expected[1:], strict=True):
        torch.testing.assert_close(gamma.double(), truth, rtol=4 * eps, atol=1e-12 if eps < 1e-10 else 1e-9)


@pytest.mark.parametrize("frames, labels", SIZES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_in_place(kernels, frames, labels, dtype):
    """The posteriors may take the place of the emissions."""
    problem = emissions(frames, labels, dtype)
    apart, together = run(kernels, *problem), run(kernels, *problem, in_place=True)
    assert all(torch.equal(a, b) for a, b in zip(apart, together, strict=True))


@pytest.mark.parametrize("labels", [127, 128, 260])
def test_many_labels(kernels, labels):
    """As wide as a block of threads of some kernels, and beyond."""
    blank, label, table = emissions((3, 2), (labels, labels - 1), scale=0.5)
    got, expected = run(kernels, blank, label, table), right(blank, label, table)
    losses = torch.full((2,), NAN, dtype=torch.float64)
    kernels.lattice(blank, label, table, torch.ones(2, dtype=torch.float64), losses, None, None)
    assert torch.equal(losses, got[0])
    for ours, truth in zip(got, expected, strict=True):
        torch.testing.assert_close(ours, truth, rtol=1e-11, atol=1e-12)


def test_float32_alone():
    """On a device without float64 the posteriors of a long utterance keep their digits: no sum grows with its length. (Sums
    that do lose a digit or two more here.)"""
    blank, label, table = emissions((800,), (60,), torch.float32)
    weights, losses = torch.ones(1), torch.full((1,), NAN)
    gammas = torch.full_like(blank, NAN), torch.full_like(blank, NAN)
    eager.lattice(blank, label, table, weights, losses, *gammas)
    expected = right(blank, label, table)
    torch.testing.assert_close(losses.double(), expected[0], rtol=1e-6, atol=0)
    for gamma, truth in zip(gammas, expected[1:], strict=True):
        torch.testing.assert_close(gamma.double(), truth, rtol=0, atol=5e-5)


@pytest.mark.parametrize("frames, labels", SIZES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_occupancy(kernels, frames, labels, dtype):
    """Without a place for label arcs both posteriors are added, also in place."""
    blank, label, table = emissions(frames, labels, dtype)
    weights = torch.linspace(-2, 3, len(table), dtype=torch.float64) + 0.1
    losses, by_blank, by_label = run(kernels, blank, label, table, weights)
    for occupancy in (torch.full_like(blank, NAN), blank):
        kernels.lattice(blank, label, table, weights, losses, occupancy, None)
        torch.testing.assert_close(occupancy, by_blank + by_label, rtol=1e-6 if dtype == torch.float32 else 1e-13, atol=1e-13)


def test_losses_alone(kernels):
    blank, label, table = emissions(*SIZES[-1])
    weights = torch.ones(len(table), dtype=torch.float64)
    losses = torch.full((len(table),), NAN, dtype=torch.float64)
    kernels.lattice(blank, label, table, weights, losses, None, None)
    torch.testing.assert_close(losses, right(blank, label, table)[0], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("labels", [0, 1, 3])
@pytest.mark.parametrize("frames", [1, 2, 5])
def test_against_all_paths(kernels, frames, labels):
    blank, label, table = emissions((frames,), (labels,))
    losses, *_ = run(kernels, blank, label, table)
    shape = (frames, labels + 1)
    truth = enumerated_loss(blank.view(shape), label.view(shape)[:, :labels])
    assert losses.item() == pytest.approx(truth.item(), rel=1e-13)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_posteriors_sum_to_frames_and_labels(kernels, dtype):
    """Blank arcs: one a frame. Label arcs: one a label. Times the weight."""
    frames, labels = SIZES[-1]
    blank, label, table = emissions(frames, labels, dtype)
    weights = torch.tensor([1.0, 2.0, -3.0, 0.5, 1e-3, 1e3], dtype=torch.float64)
    _, by_blank, by_label = run(kernels, blank, label, table, weights)
    for (start, stride, u, t, *_), weight in zip(table.tolist(), weights.tolist(), strict=True):
        blanks = by_blank[start : start + t * stride].double().view(t, stride).sum(1)
        labels_ = by_label[start : start + t * stride].double().view(t, stride).sum(0)
        torch.testing.assert_close(blanks, torch.full((t,), weight, dtype=torch.float64), rtol=1e-5, atol=0)
        torch.testing.assert_close(labels_[:u], torch.full((u,), weight, dtype=torch.float64), rtol=1e-5, atol=0)
        assert labels_[u] == 0


def test_padded_table(kernels):
    """Nodes in a padded array: the padding, whatever it holds, is neither read nor written."""
    frames, labels, T, width = (4, 1, 6), (2, 3, 0), 7, 5
    blank, label, packed = emissions(frames, labels)
    table = padded_table(frames, labels, T, width, CPU)
    wide = [torch.full((3, T, width), NAN, dtype=torch.float64) for _ in range(2)]
    inside = torch.zeros(3, T, width, dtype=torch.bool)
    for b, (start, stride, u, t, *_) in enumerate(packed.tolist()):
        inside[b, :t, : u + 1] = True
        for padded, x in zip(wide, (blank, label), strict=True):
            padded[b, :t, : u + 1] = x[start : start + t * stride].view(t, stride)
    flat = [x.view(-1) for x in wide]
    expected = run(kernels, blank, label, packed)
    got = run(kernels, *flat, table)
    assert torch.equal(got[0], expected[0])
    for gamma, truth in zip(got[1:], expected[1:], strict=True):
        assert torch.equal(gamma.view_as(inside)[inside], truth)
        assert gamma.view_as(inside)[~inside].isnan().all(), "the padding was written"


@pytest.mark.parametrize("value", [NAN, INF])
def test_an_utterance_that_is_not_finite(kernels, value):
    """It has no occupancy, and the others have theirs to the bit."""
    problem = emissions((6, 5, 7), (3, 2, 4))
    clean = run(kernels, *problem)
    blank, label, table = problem
    guilty = slice(int(table[1, 0]), int(table[2, 0]))
    blank[guilty][7] = value
    losses, by_blank, by_label = run(kernels, blank, label, table)
    assert not math.isfinite(losses[1])
    assert (by_blank[guilty] == 0).all() and (by_label[guilty] == 0).all()
    for got, right_ in zip((losses, by_blank, by_label), clean, strict=True):
        others = torch.ones(len(got), dtype=torch.bool)
        others[guilty if len(got) > 3 else 1] = False
        assert torch.equal(got[others], right_[others])


def test_no_path(kernels):
    """A label that can nowhere be emitted: infinite, not NaN, and without occupancy."""
    blank, label, table = emissions((3, 4), (2, 2))
    label[: 3 * 3].view(3, 3)[:, 1] = -INF
    losses, by_blank, _ = run(kernels, blank, label, table)
    assert losses[0] == INF and math.isfinite(losses[1])
    assert (by_blank[:9] == 0).all()


def test_forbidden_arcs(kernels):
    """Arcs of probability 0 have posterior 0, and the rest is as by enumeration."""
    blank, label, table = emissions((4,), (2,))
    blank.view(4, 3)[1, 0] = -INF
    label.view(4, 3)[0, 0] = -INF
    losses, by_blank, by_label = run(kernels, blank, label, table)
    assert losses.item() == pytest.approx(enumerated_loss(blank.view(4, 3), label.view(4, 3)[:, :2]).item(), rel=1e-13)
    assert by_blank.view(4, 3)[1, 0] == 0 and by_label.view(4, 3)[0, 0] == 0
    assert torch.isfinite(by_blank).all() and torch.isfinite(by_label).all()
    torch.testing.assert_close(by_blank.view(4, 3).sum(1), torch.ones(4, dtype=torch.float64))


def test_weight_zero(kernels):
    blank, label, table = emissions((6, 5), (3, 2))
    losses, by_blank, by_label = run(kernels, blank, label, table, torch.tensor([0.0, 1.0], dtype=torch.float64))
    assert torch.isfinite(losses).all()
    assert (by_blank[:24] == 0).all() and (by_label[:24] == 0).all() and (by_blank[24:] > 0).any()


@pytest.mark.parametrize("scale", [100.0, 1000.0])
def test_improbable_paths(kernels, scale):
    """Losses of many thousands: probabilities far below the smallest float64 add up as logarithms."""
    problem = emissions((80, 70), (20, 30), scale=scale)
    got, expected = run(kernels, *problem), right(*problem)
    assert got[0].min() > 20 * scale
    torch.testing.assert_close(got[0], expected[0], rtol=1e-12, atol=0)
    for gamma, truth in zip(got[1:], expected[1:], strict=True):
        torch.testing.assert_close(gamma, truth, rtol=0, atol=1e-8)


def test_many_utterances_on_several_threads(kernels):
    torch.set_num_threads(3)
    problem = emissions([1 + i % 9 for i in range(50)], [i % 5 for i in range(50)])
    got, expected = run(kernels, *problem), right(*problem)
    for ours, truth in zip(got, expected, strict=True):
        torch.testing.assert_close(ours, truth, rtol=1e-11, atol=1e-12)
