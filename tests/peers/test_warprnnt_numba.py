"""The drop-in for warprnnt_numba against the library itself: `make test-peers` makes the environment."""

import pytest
import torch

theirs = pytest.importorskip("warprnnt_numba", reason="warprnnt-numba is not installed: `make test-peers`")
ours = pytest.importorskip("samplewise.integrations.warprnnt_numba")

ACTS = torch.randn(4, 12, 6, 9, generator=torch.Generator().manual_seed(1))
LABELS = torch.randint(0, 8, (4, 5), generator=torch.Generator().manual_seed(2)).int()
INTEGERS = (LABELS, torch.tensor([12, 5, 9, 1], dtype=torch.int32), torch.tensor([5, 0, 4, 2], dtype=torch.int32))


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize(
    "options", [{}, {"fastemit_lambda": 0.1}, {"clamp": 0.05}, {"fastemit_lambda": 0.1, "clamp": 0.02}], ids=str
)
def test_loss_and_gradient(options, reduction):
    found = []
    for library in (theirs, ours):
        leaf = ACTS.clone().requires_grad_()
        loss = library.RNNTLossNumba(blank=8, reduction=reduction, **options)(leaf, *INTEGERS)
        (loss * torch.arange(1.0, 1 + loss.numel())).sum().backward()
        found.append((loss.detach(), leaf.grad))
    (right, gradient), (got, other) = found
    assert got.shape == right.shape and got.dtype == right.dtype
    torch.testing.assert_close(got, right, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(other, gradient, rtol=1e-4, atol=3e-5 * gradient.abs().max().item())
