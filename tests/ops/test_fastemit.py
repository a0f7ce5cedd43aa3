"""FastEmit (arXiv 2010.11148): label arcs weigh 1 + lambda in the gradients, and the loss keeps its value."""

import json

import pytest
import torch

import samplewise
from samplewise import TransducerError
from samplewise.reference import ACTIVATIONS, arcs, log_likelihood, reduce
from tests.ops.test_peers import FOLDER, INPUTS, MISSING, arrays
from tests.problems import error, make, ours, planted, run, truth, upstream

METHODS = ("auto", "batched", "samplewise", "tiled", "guided")


def regularised(
    encoder_out, predictor_out, weight, bias, targets, encoder_lengths, target_lengths, *, blank, reduction, amount
):  # fmt: skip
    """The truth in plain PyTorch."""
    z = ACTIVATIONS["tanh"](encoder_out[:, :, None] + predictor_out[:, None])
    logits = torch.nn.functional.linear(z, weight, bias)
    return reduce(by_utterance(logits, targets, encoder_lengths, target_lengths, blank, amount), target_lengths, reduction)


def by_utterance(logits, targets, logit_lengths, target_lengths, blank, amount):
    """Losses (B,) by the recursion, in which the gradient of a label's log-probability alone is 1 + amount times as large."""
    losses = []
    for b, (T, U) in enumerate(zip(logit_lengths.tolist(), target_lengths.tolist(), strict=True)):
        lp_blank, lp_label = arcs(logits[b, :T, : U + 1].double().log_softmax(2), targets[b, :U], blank)
        losses.append(-log_likelihood(lp_blank, (1 + amount) * lp_label - amount * lp_label.detach()))
    return torch.stack(losses)


@pytest.mark.parametrize("amount", [0.01, 1.5])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean", "mean_volume", "mean_target"])
@pytest.mark.parametrize("method", METHODS)
def test_gradients_and_the_loss_that_stays(method, reduction, amount):
    for problem in (make(dtype=torch.float64), planted((40, 9), (6, 0), 24, 8, dtype=torch.float64)):
        options = {"reduction": reduction, "upstream": upstream(problem) if reduction == "none" else None}
        value, gradients = ours(problem, method=method, fastemit_lambda=amount, tolerance=0.0, **options)
        _, right = run(regularised, problem, amount=amount, **options)
        exact, without = truth(problem, **options)
        assert error(value, exact) < 1e-12
        for name, gradient in gradients.items():
            assert error(gradient, right[name]) < 1e-11, name
            assert error(gradient, without[name]) > 1e-4, f"{name} is as without"


@pytest.mark.parametrize("dtype, bound", [(torch.float32, 1e-5), (torch.bfloat16, 0.05), (torch.float16, 0.01)], ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_no_dtype_runs_out_of_range(method, dtype, bound):
    problem = make((30, 12), (8, 3), 24, 8, scale=20.0, dtype=dtype)
    _, gradients = ours(problem, method=method, fastemit_lambda=50.0, reduction="sum")
    _, right = run(regularised, problem.to(torch.float64), amount=50.0, reduction="sum")
    assert all(error(gradient, right[name]) < bound for name, gradient in gradients.items())


@pytest.mark.parametrize("scope", ["utterance", "batch"])
def test_over_sampled_classes(scope):
    problem = make(vocab=30, dtype=torch.float64)
    drawn = samplewise.sample_vocabulary(
        problem.targets, problem.target_lengths, 30, 30, scope=scope, generator=torch.Generator().manual_seed(1)
    )
    _, whole = ours(problem, fastemit_lambda=0.3, reduction="sum")
    _, sampled = ours(problem, fastemit_lambda=0.3, reduction="sum", vocabulary=drawn)
    assert all(error(sampled[name], whole[name]) < 1e-12 for name in whole)


@pytest.mark.parametrize("amount", [-0.1, float("nan"), float("inf")])
def test_a_wrong_amount_is_named(amount):
    with pytest.raises(TransducerError, match=f"fastemit_lambda is {amount}; it must be a number from 0 on"):
        ours(make(), fastemit_lambda=amount)
    with pytest.raises(TransducerError, match="fastemit_lambda is"):
        samplewise.TransducerLoss(fastemit_lambda=amount)


def peers() -> list:
    found = []
    for peer in ("nemo_numba", "warprnnt_numba"):
        if (FOLDER / f"{peer}.json").exists():
            for case in json.loads((FOLDER / f"{peer}.json").read_text())["cases"]:
                options = {**case["args"], **case.get("init_args", {})}
                if options.get("fastemit_lambda", 0.0) > 0 and options.get("clamp", -1) <= 0 and "none" in case["reductions"]:
                    found.append(pytest.param(peer, case, options, id=f"{peer}-{case['id']}"))
    return found or [pytest.param(None, None, None, marks=pytest.mark.skip(reason=MISSING))]


@pytest.mark.parametrize("peer, case, options", peers())
def test_peers_mean_the_same_gradient(peer, case, options):
    """Of theirs the value is 1 + lambda times as large, too."""
    values, amount = arrays(peer), options["fastemit_lambda"]
    given = {INPUTS[name]: values[f"{case['id']}/inputs/{name}"] for name in case["arrays"]["inputs"]}
    logits = given.pop("logits").double().requires_grad_()
    losses = by_utterance(logits, **given, blank=options.get("blank", 0), amount=amount)
    group = {name: values[f"{case['id']}/none/{name}"] for name in case["arrays"]["none"]}
    losses.backward(group["upstream"].reshape(losses.shape).double())
    gradient = next(array for name, array in group.items() if name.startswith("grad_"))
    assert error(logits.grad, gradient) < 1e-5
    assert error((1 + amount) * losses, group["loss"].reshape(losses.shape)) < 1e-5
