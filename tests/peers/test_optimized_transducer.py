"""The drop-in for optimized_transducer against the library itself: `make test-peers` makes the environment."""

import pytest
import torch

theirs = pytest.importorskip("optimized_transducer", reason="optimized-transducer is not installed: `make test-peers`")
ours = pytest.importorskip("samplewise.integrations.optimized_transducer")

FRAMES, LABELS = torch.tensor([12, 6, 9, 7], dtype=torch.int32), torch.tensor([5, 1, 4, 2], dtype=torch.int32)
TARGETS = torch.randint(1, 9, (4, 5), generator=torch.Generator().manual_seed(2)).int()
LOGITS = torch.randn(int((FRAMES * (LABELS + 1)).sum()), 9, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("one_sym_per_frame", [False, True])
@pytest.mark.parametrize("from_log_softmax", [False, True])
def test_loss_and_gradient(from_log_softmax, one_sym_per_frame, reduction):
    found = []
    for library in (theirs, ours):
        leaf = LOGITS.clone().requires_grad_()
        given = leaf.log_softmax(1) if from_log_softmax else leaf * 1.0  # theirs writes over it
        loss = library.transducer_loss(
            given, TARGETS, FRAMES, LABELS, blank=0, from_log_softmax=from_log_softmax, one_sym_per_frame=one_sym_per_frame,
            reduction=reduction,
        )  # fmt: skip
        loss.backward()
        found.append((loss.detach(), leaf.grad))
    (right, gradient), (got, other) = found
    assert got.dtype == right.dtype
    torch.testing.assert_close(got.reshape(()), right.reshape(()), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(other, gradient, rtol=1e-4, atol=3e-5 * gradient.abs().max().item())
