"""FastEmit (arXiv 2010.11148): label arcs weigh 1 + lambda in the gradients, and the loss keeps its value."""

import pytest
import torch

import samplewise
from samplewise import TransducerError
from samplewise.planning.methods import NAMES as METHODS
from samplewise.reference import reference_loss_from_logits
from tests.ops.test_peers import arrays, group_of, inputs_of, options_of, recorded
from tests.problems import error, make, ours, planted, truth, upstream


@pytest.mark.parametrize("amount", [0.01, 1.5])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean", "mean_volume", "mean_target"])
@pytest.mark.parametrize("method", METHODS)
def test_gradients_and_the_loss_that_stays(method, reduction, amount):
    for problem in (make(dtype=torch.float64), planted((40, 9), (6, 0), 24, 8, dtype=torch.float64)):
        options = {"reduction": reduction, "upstream": upstream(problem) if reduction == "none" else None}
        value, gradients = ours(problem, method=method, fastemit_lambda=amount, tolerance=0.0, **options)
        _, right = truth(problem, fastemit_lambda=amount, **options)
        exact, without = truth(problem, **options)
        assert error(value, exact) < 1e-12
        for name, gradient in gradients.items():
            assert error(gradient, right[name]) < 1e-11, name
            assert error(gradient, without[name]) > 1e-4, f"{name} is as without"


@pytest.mark.parametrize("amount", [0.0, 1.5])
def test_where_guided_leaves_nodes_out(amount):
    """On a problem that is large enough for it to be guided to the end; small ones turn to "tiled"."""
    problem = planted((200, 180), (30, 25), 600, 32, sharpness=12.0)
    with samplewise.observe() as seen:
        _, gradients = ours(problem, method="guided", fastemit_lambda=amount, reduction="sum")
    assert [group.method for group in seen.groups] == ["guided"]
    _, right = truth(problem, fastemit_lambda=amount, reduction="sum")
    assert all(error(gradient, right[name]) < 1e-4 for name, gradient in gradients.items())


@pytest.mark.parametrize("dtype, bound", [(torch.float32, 1e-5), (torch.bfloat16, 0.05), (torch.float16, 0.01)], ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_no_dtype_runs_out_of_range(method, dtype, bound):
    problem = make((30, 12), (8, 3), 24, 8, scale=20.0, dtype=dtype)
    _, gradients = ours(problem, method=method, fastemit_lambda=50.0, reduction="sum")
    _, right = truth(problem, fastemit_lambda=50.0, reduction="sum")
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


def of_joint(problem, reduction, amount):
    """`joint_loss` of the joint that a problem's weight and bias make, and its gradients."""
    joint = torch.nn.Linear(problem.weight.shape[1], len(problem.weight)).double()
    joint.weight.data, joint.bias.data = problem.weight.clone(), problem.bias.clone()

    class Joint(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.head = joint

        def forward(self, encoder_out, predictor_out):
            return self.head(torch.tanh(encoder_out + predictor_out))

    def loss(encoder_out, predictor_out, weight, bias, *integers, blank=0):
        return samplewise.joint_loss(
            Joint(), encoder_out, predictor_out, *integers, blank=blank, reduction=reduction, fastemit_lambda=amount
        )

    leaves = [problem.encoder_out.clone().requires_grad_(), problem.predictor_out.clone().requires_grad_()]
    value = loss(*leaves, None, None, problem.targets, problem.encoder_lengths, problem.target_lengths, blank=problem.blank)
    return value, leaves, joint


@pytest.mark.parametrize("amount", [0.01, 1.5])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean_volume"])
def test_in_joint_loss(reduction, amount):
    problem = make(dtype=torch.float64)
    value, leaves, joint = of_joint(problem, reduction, amount)
    up = upstream(problem) if reduction == "none" else torch.tensor(0.7).double()
    value.backward(up)
    exact, right = truth(problem, fastemit_lambda=amount, reduction=reduction, upstream=up)
    assert error(value, exact) < 1e-12
    got = (*(x.grad for x in leaves), joint.weight.grad, joint.bias.grad)
    assert all(error(one, right[name]) < 1e-11 for one, name in zip(got, right, strict=True))


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize("amount", [0.01, 1.5])
def test_in_rnnt_loss(amount, reduction, fused):
    problem = make(dtype=torch.float64)
    integers = (problem.targets, problem.encoder_lengths, problem.target_lengths)
    sums = problem.encoder_out[:, :, None] + problem.predictor_out[:, None]
    logits = torch.tanh(sums) @ problem.weight.T
    options = {"reduction": reduction, "fastemit_lambda": amount, "fused_log_softmax": fused, "blank": problem.blank}
    up, found = upstream(problem) if reduction == "none" else torch.tensor(-0.7).double(), []
    for loss in (samplewise.rnnt_loss, reference_loss_from_logits):
        x = (logits if fused else logits.log_softmax(3)).clone().requires_grad_()
        value = loss(x, *integers, **options)
        value.backward(up)
        found.append((value.detach(), x.grad))
    assert all(error(got, right) < 1e-12 for got, right in zip(*found, strict=True))


def test_the_clamp_comes_after():
    """As in rnnt_loss without it, every element of the gradient is bounded."""
    problem = make(dtype=torch.float64)
    logits = torch.randn(len(problem.targets), *problem.encoder_out.shape[1:2], problem.predictor_out.shape[1], 11)
    found = []
    for clamp in (-1.0, 0.1):
        x = logits.double().requires_grad_()
        samplewise.rnnt_loss(
            x, problem.targets, problem.encoder_lengths, problem.target_lengths, 0, clamp, "sum", fastemit_lambda=2.0
        ).backward()
        found.append(x.grad)
    assert found[0].abs().max() > 0.1 and torch.equal(found[0].clamp(-0.1, 0.1), found[1])


@pytest.mark.parametrize("amount", [-0.1, float("nan"), float("inf")])
def test_a_wrong_amount_is_named(amount):
    with pytest.raises(TransducerError, match=f"fastemit_lambda is {amount}; it must be a number from 0 on"):
        ours(make(), fastemit_lambda=amount)
    with pytest.raises(TransducerError, match="fastemit_lambda is"):
        samplewise.TransducerLoss(fastemit_lambda=amount)


def regularised(peer: str, case: dict) -> bool:
    options = options_of(case)
    return options.get("fastemit_lambda", 0.0) > 0 and options.get("clamp", -1) <= 0 and "none" in case["reductions"]


@pytest.mark.parametrize("peer, case", recorded(("nemo_numba", "warprnnt_numba"), regularised))
def test_peers_mean_the_same_gradient(peer, case):
    """Of theirs the value is 1 + lambda times as large, too."""
    values, options = arrays(peer), options_of(case)
    amount, given = options["fastemit_lambda"], inputs_of(case, values)
    logits = given.pop("logits").double().requires_grad_()
    settings = {"blank": options.get("blank", 0), "reduction": "none", "fastemit_lambda": amount}
    losses = reference_loss_from_logits(logits, **given, **settings)
    group = group_of(case, values, "none")
    losses.backward(group["upstream"].reshape(losses.shape).double())
    gradient = next(array for name, array in group.items() if name.startswith("grad_"))
    assert error(logits.grad, gradient) < 1e-5
    assert error((1 + amount) * losses, group["loss"].reshape(losses.shape)) < 1e-5
