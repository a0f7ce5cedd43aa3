"""`transducer_loss`: every method, reduction, dtype and activation against the truth, every subset of gradients, and every
reduction as its formula says."""

import itertools

import pytest
import torch

import samplewise
from samplewise.checks import ACTIVATIONS
from samplewise.reference import arcs, enumerated_loss, reference_loss
from tests.problems import FLOATS, assert_as_good_as_plain, error, make, ours, planted, truth, upstream

METHODS = ("batched", "samplewise", "tiled", "guided", "auto")
REDUCTIONS = ("none", "sum", "mean", "mean_volume", "mean_target")
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
SHAPES = {"frames": (9, 4, 1, 13), "labels": (3, 0, 2, 7), "vocab": 11, "dim": 6}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("method", METHODS)
def test_against_the_truth(method, reduction, activation, dtype):
    options = {"activation": activation, "reduction": reduction}
    assert_as_good_as_plain(make, {**SHAPES, "dtype": dtype}, options, method=method, tolerance=0.0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("maker", [make, planted])
@pytest.mark.parametrize("method", METHODS)
def test_default_tolerance(method, maker, dtype):
    """What the default leaves out must drown in what the dtype rounds away."""
    shapes = {"frames": (60, 40, 90), "labels": (12, 7, 20), "vocab": 200, "dim": 32, "dtype": dtype}
    assert_as_good_as_plain(maker, shapes, {"activation": "tanh", "reduction": "none"}, method=method)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("frames, labels", [(1, 0), (1, 3), (3, 0), (3, 2), (2, 4)])
def test_against_all_paths(method, frames, labels):
    problem = make((frames,), (labels,), vocab=5, dim=4, blank=2, dtype=torch.float64)
    p = problem.inputs
    logits = torch.tanh(p["encoder_out"][0, :, None] + p["predictor_out"][0, None]) @ p["weight"].T + p["bias"]
    right = enumerated_loss(*arcs(logits.log_softmax(2), p["targets"][0], 2))
    loss = samplewise.transducer_loss(**p, blank=2, method=method)
    assert loss.item() == pytest.approx(right.item(), rel=1e-12)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("reduction", ["none", "sum"])
@pytest.mark.parametrize("wanted", [w for n in range(5) for w in itertools.combinations(FLOATS, n)], ids="+".join)
def test_gradients_only_where_asked(wanted, reduction, method):
    problem = make(**SHAPES, dtype=torch.float64)
    options = {"reduction": reduction, "upstream": upstream(problem) if reduction == "none" else None}
    value, gradients = ours(problem, wanted=wanted, method=method, **options)
    right, right_gradients = truth(problem, wanted=FLOATS, **options)
    assert error(value, right) < 1e-12
    assert value.requires_grad is False
    assert set(gradients) == set(wanted)
    for name, gradient in gradients.items():
        assert error(gradient, right_gradients[name]) < 1e-12, name


@pytest.mark.parametrize("method", METHODS)
def test_no_gradient_no_graph(method):
    problem = make(**SHAPES)
    weight = problem.weight.clone().requires_grad_()
    with torch.no_grad():
        loss = samplewise.transducer_loss(**{**problem.inputs, "weight": weight}, method=method)
    assert not loss.requires_grad
    assert samplewise.transducer_loss(**{**problem.inputs, "weight": weight}, method=method).requires_grad


@pytest.mark.parametrize("method", METHODS)
def test_without_bias(method):
    problem = make(**SHAPES, bias=False, dtype=torch.float64)
    value, gradients = ours(problem, method=method, reduction="sum")
    right, right_gradients = truth(problem, reduction="sum")
    assert error(value, right) < 1e-12
    assert set(gradients) == {"encoder_out", "predictor_out", "weight"}
    for name in gradients:
        assert error(gradients[name], right_gradients[name]) < 1e-12


@pytest.mark.parametrize("method", METHODS)
def test_reductions_follow_their_formulas(method):
    problem = make((5, 3, 4), (2, 0, 3), dtype=torch.float64)
    loss = {r: samplewise.transducer_loss(**problem.inputs, method=method, reduction=r) for r in REDUCTIONS}
    assert loss["none"].shape == (3,)
    a, b, c = loss["none"].tolist()
    for reduction, right in {
        "sum": a + b + c,
        "mean": (a + b + c) / 3,
        "mean_volume": (a + b + c) / (2 + 0 + 3),
        "mean_target": (a / 2 + b / 1 + c / 3) / 3,
    }.items():
        assert loss[reduction].shape == ()
        assert loss[reduction].item() == pytest.approx(right, rel=1e-13), reduction


def test_mean_is_the_default():
    problem = make(**SHAPES)
    mean = samplewise.transducer_loss(**problem.inputs, reduction="mean")
    assert torch.equal(samplewise.transducer_loss(**problem.inputs), mean)


@pytest.mark.parametrize("dtype, expected", [(torch.float64, torch.float64), (torch.bfloat16, torch.float32)], ids=str)
@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_dtype_of_the_loss(dtype, expected, reduction):
    assert samplewise.transducer_loss(**make(dtype=dtype).inputs, reduction=reduction).dtype == expected


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_upstream_of_each_utterance(method, reduction):
    """Weights of the losses, one after the other: what one utterance's weight does reaches no other utterance."""
    problem = make(**SHAPES, dtype=torch.float64)
    for b in range(problem.batch):
        alone = torch.zeros(problem.batch, dtype=torch.float64)
        alone[b] = -1.5  # negative upstream gradients occur too
        _, gradients = ours(problem, method=method, reduction="none", upstream=alone)
        _, right = truth(problem, reduction="none", upstream=alone)
        others = torch.arange(problem.batch) != b
        assert (gradients["encoder_out"][others] == 0).all() and (gradients["predictor_out"][others] == 0).all()
        for name in gradients:
            assert error(gradients[name], right[name]) < 1e-12


@pytest.mark.parametrize("method", METHODS)
def test_arithmetic_on_the_losses(method):
    """The losses are ordinary tensors: whatever is computed from them has the right gradient."""
    problem = make(**SHAPES, dtype=torch.float64)
    results = []
    for loss in (lambda **x: samplewise.transducer_loss(**x, method=method, reduction="none"), reference_none):
        weight = problem.weight.clone().requires_grad_()
        losses = loss(**{**problem.inputs, "weight": weight})
        (losses[1:] ** 2).sum().div(losses[0]).backward()
        results.append(weight.grad)
    assert error(*results) < 1e-12


def reference_none(**inputs):
    return reference_loss(**inputs, reduction="none")


def test_threads_change_nothing_but_rounding():
    problem = make((30, 20, 25), (6, 9, 0), vocab=40, dim=16)
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(ours(problem, reduction="none"))
    for value, gradients in results[1:]:
        torch.testing.assert_close(value, results[0][0])
        torch.testing.assert_close(gradients, results[0][1], rtol=1e-5, atol=1e-5)
