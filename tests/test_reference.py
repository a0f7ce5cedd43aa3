"""The truth of the truth: the recursion against all paths one by one, and against what probabilities must be."""

import itertools
import math

import pytest
import torch

from samplewise.reference import arcs, enumerated_loss, log_likelihood, reference_loss, reference_loss_from_logits
from tests.problems import make


@pytest.mark.parametrize("frames", [1, 2, 4, 6])
@pytest.mark.parametrize("labels", [0, 1, 3, 5])
def test_recursion_is_the_sum_over_all_paths(frames, labels):
    log_probs = torch.randn(frames, labels + 1, 5, dtype=torch.float64).mul(2).log_softmax(2).requires_grad_()
    targets = torch.randint(1, 5, (labels,))
    by_recursion = -log_likelihood(*arcs(log_probs, targets, 0))
    by_paths = enumerated_loss(*arcs(log_probs, targets, 0))
    torch.testing.assert_close(by_recursion, by_paths, rtol=1e-13, atol=1e-13)
    gradients = [torch.autograd.grad(loss, log_probs)[0] for loss in (by_recursion, by_paths)]
    torch.testing.assert_close(*gradients, rtol=1e-11, atol=1e-13)


def test_number_of_paths():
    """With every arc of probability 1 the likelihood counts paths: U labels among the first T - 1 + U steps."""
    for frames, labels in itertools.product((1, 3, 5), (0, 2, 4)):
        loss = enumerated_loss(torch.zeros(frames, labels + 1), torch.zeros(frames, labels))
        assert math.exp(-loss) == pytest.approx(math.comb(frames - 1 + labels, labels), rel=1e-5)


def test_label_strings_have_at_most_probability_one():
    """Every string of up to 9 labels, under one joint network: probabilities sum to at most 1, and nearly to it."""
    problem = make((2,), (9,), vocab=3, dim=4, dtype=torch.float64)
    bias = problem.bias + torch.tensor([2.0, 0.0, 0.0])  # blank is likely, so that long strings are not
    total = 0.0
    for length in range(10):
        strings = torch.tensor(list(itertools.product((1, 2), repeat=length)), dtype=torch.int64).view(2**length, length)
        losses = reference_loss(
            problem.encoder_out.expand(2**length, -1, -1), problem.predictor_out[:, : length + 1].expand(2**length, -1, -1),
            problem.weight, bias, strings, torch.full((2**length,), 2), torch.full((2**length,), length), reduction="none",
        )  # fmt: skip
        total += losses.neg().exp().sum().item()
    assert 0.9 < total <= 1.0


def test_reductions_by_hand():
    problem = make((5, 3, 4), (2, 0, 3), dtype=torch.float64)
    losses = reference_loss(**problem.inputs, reduction="none")
    assert losses.shape == (3,)
    a, b, c = losses.tolist()
    for reduction, right in {
        "sum": a + b + c,
        "mean": (a + b + c) / 3,
        "mean_volume": (a + b + c) / 5,
        "mean_target": (a / 2 + b / 1 + c / 3) / 3,
    }.items():
        assert reference_loss(**problem.inputs, reduction=reduction).item() == pytest.approx(right, rel=1e-14)


def test_from_log_probabilities():
    logits = torch.randn(1, 4, 3, 5, dtype=torch.float64)
    sizes = torch.tensor([[1, 2]]), torch.tensor([4]), torch.tensor([2])
    normalised = reference_loss_from_logits(logits.log_softmax(3), *sizes, fused_log_softmax=False)
    torch.testing.assert_close(reference_loss_from_logits(logits, *sizes), normalised)


def test_gradient_of_the_reference():
    problem = make((3, 2), (2, 1), vocab=4, dim=3, dtype=torch.float64)
    floats = [x.requires_grad_() for x in (problem.encoder_out, problem.predictor_out, problem.weight, problem.bias)]
    integers = (problem.targets, problem.encoder_lengths, problem.target_lengths)
    assert torch.autograd.gradcheck(lambda *x: reference_loss(*x, *integers, reduction="none"), floats)
