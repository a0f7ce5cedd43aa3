"""Which derivatives all three losses have: one or many backwards, Jacobians, gradcheck; what they have not is refused."""

import pytest
import torch
from torch import nn

import samplewise
from samplewise import TransducerError
from samplewise.reference import reference_loss, reference_loss_from_logits
from tests.problems import Joint, error, make

PROBLEM = make((4, 2), (2, 1), vocab=4, dim=3, dtype=torch.float64)
INTEGERS = (PROBLEM.targets, PROBLEM.encoder_lengths, PROBLEM.target_lengths)
HEAD = nn.Linear(3, 4).double()
with torch.no_grad():
    HEAD.weight.copy_(PROBLEM.weight)
    HEAD.bias.copy_(PROBLEM.bias)


JOINT = Joint(HEAD)
ENCODINGS = (PROBLEM.encoder_out, PROBLEM.predictor_out)
LOGITS = (torch.randn(2, 4, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64),)


def transducer(*x, **options):
    return samplewise.transducer_loss(*x, PROBLEM.weight, PROBLEM.bias, *INTEGERS, **options)


def joint(*x, **options):
    return samplewise.joint_loss(JOINT, *x, *INTEGERS, **options)


def given(*x, **options):
    return samplewise.rnnt_loss(*x, *INTEGERS, blank=0, **options)


def encodings_truth(*x, **options):
    return reference_loss(*x, PROBLEM.weight, PROBLEM.bias, *INTEGERS, **options)


def logits_truth(*x, **options):
    return reference_loss_from_logits(*x, *INTEGERS, **options)


LOSSES = {
    "transducer_loss": (transducer, encodings_truth, ENCODINGS),
    "joint_loss": (joint, encodings_truth, ENCODINGS),
    "rnnt_loss": (given, logits_truth, LOGITS),
}
EVERY_LOSS = pytest.mark.parametrize("name", LOSSES)
AGAIN = pytest.mark.parametrize(
    "name, reduction", [("transducer_loss", "none"), ("joint_loss", "none"), ("rnnt_loss", "none"), ("rnnt_loss", "mean")]
)


def leaves(inputs):
    return [x.clone().requires_grad_() for x in inputs]


@AGAIN
def test_gradcheck(name, reduction):
    loss, _, inputs = LOSSES[name]
    assert torch.autograd.gradcheck(lambda *x: loss(*x, reduction=reduction), leaves(inputs))


@AGAIN
def test_jacobian(name, reduction):
    loss, truth, inputs = LOSSES[name]
    got = torch.autograd.functional.jacobian(lambda *x: loss(*x, reduction=reduction), inputs)
    right = torch.autograd.functional.jacobian(lambda *x: truth(*x, reduction=reduction), inputs)
    assert all(error(one, other) < 1e-11 for one, other in zip(got, right, strict=True))


@AGAIN
def test_several_backwards(name, reduction):
    """Over one graph, each with weights of its own: the gradients are those of each alone."""
    loss, truth, inputs = LOSSES[name]
    mine, right = leaves(inputs), leaves(inputs)
    values = [f(*x, reduction=reduction) for f, x in ((loss, mine), (truth, right))]
    for weights in (torch.tensor([1.0, -2.0]), torch.tensor([0.5, 0.25]), torch.tensor([0.0, 3.0])):
        found = [
            torch.autograd.grad((value * weights).sum(), x, retain_graph=True)
            for value, x in zip(values, (mine, right), strict=True)
        ]
        assert all(error(one, other) < 1e-11 for one, other in zip(*found, strict=True))


@pytest.mark.parametrize("name", ["transducer_loss", "joint_loss"])
@pytest.mark.parametrize("kind", [TransducerError, ValueError, RuntimeError])
@pytest.mark.parametrize("retain", [True, False])
def test_a_second_backward_of_a_sum_is_refused(name, kind, retain):
    """Its gradients exist once, and were handed out; the error is of PyTorch's kind and of ours."""
    loss, _, inputs = LOSSES[name]
    mine = leaves(inputs)
    value = loss(*mine)
    value.backward(retain_graph=retain)
    first = mine[0].grad.clone()
    with pytest.raises(kind, match=r"already backpropagated.*retain_graph"):
        value.backward()
    assert torch.equal(mine[0].grad, first)


@EVERY_LOSS
@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize("kind", [TransducerError, RuntimeError])
def test_a_gradient_of_a_gradient_is_refused(name, reduction, kind):
    loss, _, inputs = LOSSES[name]
    mine = leaves(inputs)
    with pytest.raises(kind, match="double backward is not supported"):
        torch.autograd.grad(loss(*mine, reduction=reduction).sum(), mine, create_graph=True)


def under_vmap(loss, x):
    return torch.vmap(loss)(torch.stack((x, x + 0.1)))


def under_vmap_of_gradients(loss, x):
    batch = torch.stack((x, x + 0.1)).requires_grad_()
    return torch.autograd.grad(torch.vmap(loss)(batch).sum(), batch)


def under_forward_mode(loss, x):
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        return torch.autograd.forward_ad.unpack_dual(loss(dual)).tangent


TRANSFORMS = {
    "vmap": under_vmap,
    "gradients through vmap": under_vmap_of_gradients,
    "dual numbers": under_forward_mode,
    "jvp": lambda loss, x: torch.func.jvp(loss, (x,), (torch.ones_like(x),)),
    "jacfwd": lambda loss, x: torch.func.jacfwd(loss)(x),
    "jacrev": lambda loss, x: torch.func.jacrev(loss)(x),
    "grad": lambda loss, x: torch.func.grad(lambda y: loss(y).sum())(x),
    "forward-mode": lambda loss, x: torch.autograd.functional.jacobian(loss, x, strategy="forward-mode", vectorize=True),
}


@EVERY_LOSS
@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.filterwarnings("ignore:There is a performance drop", "ignore:.*torch.jit.script")  # PyTorch's own
def test_what_transforms_a_function_is_refused(name, reduction, transform):
    """Never a gradient that is missing, or zero: an error that names the argument."""
    loss, _, inputs = LOSSES[name]

    def of_one(x):
        return loss(x, *inputs[1:], reduction=reduction)

    with pytest.raises(TransducerError, match=r"(encoder_out|logits) .*(vmap|forward-mode|torch\.func)"):
        TRANSFORMS[transform](of_one, inputs[0])


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@EVERY_LOSS
def test_batches_of_gradients(name):
    """`is_grads_batched` gives every gradient, or says that it cannot."""
    loss, truth, inputs = LOSSES[name]
    for reduction in ("none", "mean"):
        weights = torch.tensor([[1.0, -2.0], [0.5, 0.25], [0.0, 3.0]]).double()
        weights = weights if reduction == "none" else weights[:, 0]
        found = []
        for f in (truth, loss):
            x = leaves(inputs)
            try:
                found.append(torch.autograd.grad(f(*x, reduction=reduction), x, weights, is_grads_batched=True))
            except TransducerError as refused:
                assert "is_grads_batched" in str(refused) and (name, reduction) != ("rnnt_loss", "none")
        assert len(found) == 1 or all(error(one, other) < 1e-11 for one, other in zip(*found, strict=True))
