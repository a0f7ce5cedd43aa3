"""Random shapes, options and inputs against the truth. HYPOTHESIS_PROFILE=fuzz looks for new ones."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

import samplewise
from samplewise import TransducerError
from samplewise.checks import ACTIVATIONS
from samplewise.reference import reference_loss_from_logits
from tests.problems import FLOATS, make, ours, truth, upstream

SIZES = st.lists(st.tuples(st.integers(1, 12), st.integers(0, 8)), min_size=1, max_size=5)
REDUCTIONS = ("none", "sum", "mean", "mean_volume", "mean_target")


@st.composite
def problems(draw):
    """A problem of random sizes, blank, padding, integer types and magnitudes."""
    sizes = draw(SIZES)
    frames, labels = [t for t, _ in sizes], [u for _, u in sizes]
    vocab = draw(st.integers(2, 40))
    return make(
        frames, labels, vocab, draw(st.integers(1, 17)), blank=draw(st.integers(-vocab, vocab - 1)), dtype=torch.float64,
        seed=draw(st.integers(0, 10**6)), scale=draw(st.sampled_from([0.01, 1.0, 5.0, 40.0])), bias=draw(st.booleans()),
        pad=draw(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 2))),
        integers=draw(st.sampled_from([torch.int32, torch.int64])),
    )  # fmt: skip


@given(
    problems(),
    st.sampled_from(["batched", "samplewise", "tiled", "guided", "auto"]),
    st.sampled_from(REDUCTIONS),
    st.sampled_from(ACTIVATIONS),
    st.lists(st.sampled_from(FLOATS), unique=True).map(tuple),
    st.sampled_from([None, "3 MiB", "100MB"]),
)
def test_transducer_loss(problem, method, reduction, activation, wanted, budget):
    options = {"reduction": reduction, "activation": activation, "wanted": wanted}
    options["upstream"] = upstream(problem) if reduction == "none" else torch.tensor(1.7)
    value, gradients = ours(problem, method=method, memory_budget=budget, **options)
    right, right_gradients = truth(problem, **options)
    assert_near(value, right)
    assert gradients.keys() == right_gradients.keys()
    for name in gradients:
        # where only rounding is left of a gradient, its size is that of what cancelled: the upstream gradient
        assert_near(gradients[name], right_gradients[name], 1e-10)


def assert_near(got, right, tolerance=1e-11):
    """To so many digits of the largest number or, if all are small, so many digits after the point."""
    assert (got - right).abs().max().item() <= tolerance * max(1.0, right.abs().max().item())


@given(
    SIZES, st.integers(2, 20), st.booleans(), st.sampled_from(REDUCTIONS), st.sampled_from([-1, 0.05, 2.0]),
    st.integers(0, 10**6), st.sampled_from([0.1, 2.0, 30.0]),
)  # fmt: skip
def test_rnnt_loss(sizes, vocab, fused, reduction, clamp, seed, scale):
    frames, labels = [t for t, _ in sizes], [u for _, u in sizes]
    problem = make(frames, labels, vocab, 3, blank=-1, dtype=torch.float64, seed=seed)
    integers = (problem.targets, problem.encoder_lengths, problem.target_lengths)
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(frames), max(frames), max(labels) + 1, vocab, generator=g, dtype=torch.float64) * scale
    logits = logits if fused else logits.log_softmax(3)
    one, two = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    loss = samplewise.rnnt_loss(one, *integers, clamp=clamp, reduction=reduction, fused_log_softmax=fused)
    right = reference_loss_from_logits(two, *integers, blank=-1, reduction=reduction, fused_log_softmax=fused)
    assert_near(loss, right)
    loss.sum().backward()
    if clamp > 0:  # the truth has no clamp: it bounds the gradient of each loss, before the reduction's weight
        each = reference_loss_from_logits(two, *integers, blank=-1, reduction="none", fused_log_softmax=fused).sum()
        gradient = torch.autograd.grad(each, two)[0].clamp(-clamp, clamp)
        lengths = torch.tensor(labels).double()
        count = len(labels)
        weight = {"none": 1.0, "sum": 1.0, "mean": 1 / count, "mean_volume": 1 / lengths.sum().clamp(min=1)}.get(reduction)
        weight = (1 / count / lengths.clamp(min=1))[:, None, None, None] if weight is None else weight
        expected = gradient * weight
    else:
        expected = torch.autograd.grad(right.sum(), two)[0]
    assert_near(one.grad, expected, 1e-10)


@given(problems(), st.integers(0, 4), st.sampled_from(["targets", "encoder_lengths", "target_lengths"]), st.integers(-3, 60))
def test_a_wrong_number_is_an_error_or_right(problem, where, name, value):
    """One integer replaced by any other: either the truth agrees, or an error names the argument. Never a wrong value."""
    where %= problem.batch
    changed = problem.inputs[name].clone()
    changed.view(problem.batch, -1)[where, :1] = value
    broken = problem.replace(**{name: changed})
    sound = (
        (1 <= int(broken.encoder_lengths[where]) <= problem.encoder_out.shape[1])
        and (0 <= int(broken.target_lengths[where]) < problem.predictor_out.shape[1])
        and (int(broken.target_lengths[where]) <= problem.targets.shape[1])
    )
    labels = broken.targets[where, : max(0, int(broken.target_lengths[where]))] if sound else None
    vocab, blank = problem.weight.shape[0], problem.blank % problem.weight.shape[0]
    if labels is not None and ((labels >= 0) & (labels < vocab) & (labels != blank)).all():
        right = truth(broken, reduction="none", wanted=())[0]
        assert_near(ours(broken, reduction="none", wanted=())[0], right)
    else:
        with pytest.raises(TransducerError, match=r"(targets|encoder_lengths|target_lengths)\["):
            ours(broken, reduction="none", wanted=())
