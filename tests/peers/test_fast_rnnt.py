"""The drop-in for fast_rnnt against the library itself: `make test-peers` makes the environment."""

import pytest
import torch

theirs = pytest.importorskip("fast_rnnt", reason="fast-rnnt is not installed: `make test-peers`")
ours = pytest.importorskip("samplewise.integrations.fast_rnnt")

B, T, S, C = 3, 14, 5, 9
SYMBOLS = torch.randint(1, C, (B, S), generator=torch.Generator().manual_seed(2))
BOUNDARY = torch.tensor([[0, 0, 5, 14], [0, 0, 2, 8], [0, 0, 4, 11]])
TYPES = ["regular", "modified", "constrained"]
KINDS = pytest.mark.parametrize("rnnt_type, delay_penalty, reduction", [
    ("regular", 0.0, "none"), ("regular", 0.1, "mean"), ("modified", 0.0, "sum"), ("constrained", 0.1, "none"),
])  # fmt: skip


def random(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + shape[1])).double().requires_grad_()


def compare(run, leaves, slack=1e-6):
    """Both libraries' losses, and gradients by the leaves."""
    found = []
    for library in (theirs, ours):
        for leaf in leaves:
            leaf.grad = None
        loss = run(library)
        (loss * torch.arange(1.0, 1 + loss.numel()).reshape(loss.shape)).sum().backward()
        found.append([loss.detach(), *(leaf.grad for leaf in leaves)])
    for right, got in zip(*found, strict=True):
        torch.testing.assert_close(got, right, rtol=slack, atol=slack)


@KINDS
def test_of_logits(rnnt_type, delay_penalty, reduction):
    logits = random(B, T, S + 1, C)
    compare(lambda library: library.rnnt_loss(
        logits, SYMBOLS, 0, boundary=BOUNDARY, rnnt_type=rnnt_type, delay_penalty=delay_penalty, reduction=reduction
    ), [logits])  # fmt: skip


@KINDS
@pytest.mark.parametrize("smoothed", [False, True])
def test_simple_and_smoothed(smoothed, rnnt_type, delay_penalty, reduction):
    lm, am = random(B, S + 1, C), random(B, T, C)
    scales = {"lm_only_scale": 0.25, "am_only_scale": 0.1} if smoothed else {}
    compare(lambda library: getattr(library, "rnnt_loss_smoothed" if smoothed else "rnnt_loss_simple")(
        lm, am, SYMBOLS, 0, boundary=BOUNDARY, rnnt_type=rnnt_type, delay_penalty=delay_penalty, reduction=reduction, **scales
    ), [lm, am])  # fmt: skip


@pytest.mark.parametrize("rnnt_type", TYPES)
def test_pruned(rnnt_type):
    lm, am = random(B, S + 1, C), random(B, T, C)
    ranges = []
    for library in (theirs, ours):
        _, grads = library.rnnt_loss_simple(
            lm, am, SYMBOLS, 0, boundary=BOUNDARY, rnnt_type=rnnt_type, reduction="sum", return_grad=True
        )
        ranges.append(library.get_rnnt_prune_ranges(*(x.detach().clone() for x in grads), BOUNDARY, 3))
    assert ranges[0].equal(ranges[1])

    def run(library):
        pruned = library.do_rnnt_pruning(am, lm, ranges[0])
        logits = torch.tanh(pruned[0] + pruned[1])
        return library.rnnt_loss_pruned(logits, SYMBOLS, ranges[0], 0, boundary=BOUNDARY, rnnt_type=rnnt_type, reduction="sum")

    compare(run, [lm, am])
