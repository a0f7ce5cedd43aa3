"""The logs of sums of exponentials of all pairs of rows, and their gradients, where products of exponentials underflow, too."""

from __future__ import annotations

import pytest
import torch

from samplewise.ops import pair_sums as module
from samplewise.ops.pair_sums import pair_sums, pair_sums_gradient


def make(scale, dtype=torch.float32, sizes=(3, 5, 7, 40)):
    """Rows of whatever scale; in half of them a column of its own is far above the rest."""
    B, S, T, C = sizes
    x, y = torch.randn(B, S, C, dtype=torch.float64), torch.randn(B, T, C, dtype=torch.float64)
    x[:, ::2, 3] += scale
    y[:, ::2, 8] += scale
    return [rows.to(dtype) for rows in (x, y)]


def dense(x, y):
    return (x.double()[:, :, None] + y.double()[:, None]).logsumexp(3)


def by_product(x, y):
    """What the peers do."""
    tops = x.amax(2, keepdim=True), y.amax(2, keepdim=True)
    product = torch.bmm((x - tops[0]).exp(), (y - tops[1]).exp().transpose(1, 2))
    return (product + torch.finfo(x.dtype).tiny).log() + tops[0] + tops[1].transpose(1, 2)


def run(function, x, y, upstream):
    leaves = [rows.clone().requires_grad_() for rows in (x, y)]
    value = function(*leaves)
    return value.detach(), torch.autograd.grad(value, leaves, upstream.to(value))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("scale", [1.0, 40.0, 80.0, 300.0, 3000.0])
def test_small_and_large_scores(scale, dtype, monkeypatch):
    monkeypatch.setattr(module, "AT_ONCE", 160)  # a few pairs at a time
    x, y = make(scale, dtype)
    upstream = torch.randn(3, 5, 7)
    value, gradients = run(lambda *rows: pair_sums(*rows)[0], x, y, upstream)
    right, right_gradients = run(dense, x.double(), y.double(), upstream)
    assert value.dtype == torch.promote_types(dtype, torch.float32) and gradients[0].dtype == dtype
    eps = torch.finfo(value.dtype).eps
    torch.testing.assert_close(value.double(), right, rtol=4 * eps, atol=16 * eps)
    for one, two in zip(gradients, right_gradients, strict=True):
        slack = (32 + scale) * eps + (torch.finfo(dtype).eps if dtype in (torch.bfloat16, torch.float16) else 0.0)
        torch.testing.assert_close(one.double(), two, rtol=slack, atol=slack)


def test_a_product_alone_would_be_wrong():
    x, y = make(300.0)
    right = dense(x, y)
    assert float((by_product(x, y) - right).abs().max()) > 100
    assert float((pair_sums(x, y)[0] - right).abs().max()) < 1e-3


def test_padding_that_is_no_number():
    """Rows without an upstream gradient have no part in the others'."""
    x, y = make(100.0)
    upstream = torch.randn(3, 5, 7)
    upstream[:, 4:], upstream[1, :, 5:] = 0, 0
    right = run(lambda *rows: pair_sums(*rows)[0], x, y, upstream)
    x[:, 4:], y[1, 5:] = float("nan"), float("inf")
    value, gradients = run(lambda *rows: pair_sums(*rows)[0], x, y, upstream)
    torch.testing.assert_close(gradients, right[1], rtol=0, atol=0)
    torch.testing.assert_close(value[0, :4], right[0][0, :4], rtol=0, atol=0)


def test_nothing_and_everything():
    """Columns that cannot be, in some rows or in all."""
    x, y = make(1.0, torch.float64)
    x[:, :, ::2] = -torch.inf
    y[0, 0, 1::2] = -torch.inf
    torch.testing.assert_close(pair_sums(x, y)[0], dense(x, y), rtol=1e-14, atol=1e-14)
    assert bool(torch.isneginf(pair_sums(x, y)[0][0, :, 0]).all())


def test_autocast_has_no_part():
    x, y = make(1.0)
    upstream = torch.randn(3, 5, 7)
    right = run(lambda *rows: pair_sums(*rows)[0], x, y, upstream)
    with torch.autocast("cpu", torch.bfloat16):
        got = run(lambda *rows: pair_sums(*rows)[0], x, y, upstream)
    torch.testing.assert_close(got, right, rtol=0, atol=0)


@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_opcheck_and_gradcheck(scale):
    x, y = (rows.requires_grad_() for rows in make(scale, torch.float64, (2, 2, 3, 9)))
    torch.library.opcheck(pair_sums, (x, y))
    torch.library.opcheck(
        pair_sums_gradient, (x.detach(), y.detach(), pair_sums(x, y)[1].detach(), torch.randn(2, 2, 3).double())
    )
    assert torch.autograd.gradcheck(lambda *rows: pair_sums(*rows)[0], (x, y))
