"""`joint_loss` of joints whose parts have several names: what is shared stays shared, and training goes on."""

import pytest
import torch
from torch import nn

import samplewise
from tests.ops.test_joint_module import assert_same, by_utterance, run
from tests.problems import make

REDUCTIONS = pytest.mark.parametrize("reduction", ["none", "mean"])


class Shared(nn.Module):
    """One projection for both encodings, under two names; a scale and a count that both projections share, too."""

    def __init__(self):
        super().__init__()
        self.left = self.right = nn.Linear(6, 5)
        self.left.register_buffer("scale", torch.tensor(0.5))
        self.norm = nn.BatchNorm2d(1)
        self.also = self.norm
        self.gate = nn.Parameter(torch.ones(5))
        self.door = self.gate
        self.output = nn.Linear(5, 11)

    def forward(self, encoder_out, predictor_out):
        z = torch.tanh(self.left(encoder_out) + self.right(predictor_out) * self.right.scale) * self.gate + self.door
        return self.output(self.also(z.transpose(1, 3)[:, :1]).transpose(1, 3) + z)


def state(joint):
    """Every parameter and buffer under each of its names, and what it is."""
    named = (*joint.named_parameters(remove_duplicate=False), *joint.named_buffers(remove_duplicate=False))
    return {name: (id(x), type(x)) for name, x in named}


@REDUCTIONS
@pytest.mark.parametrize("training", [True, False])
def test_a_module_under_two_names(reduction, training):
    """Gradients of what is shared are sums over its uses; afterwards every name still has its own parameter or buffer."""
    problem = make((6, 4, 3), (3, 0, 2), dtype=torch.float64)
    results = []
    for loss in (samplewise.joint_loss, by_utterance):
        torch.manual_seed(0)
        joint = Shared().double().train(training)
        before = state(joint)
        results.append(run(loss, joint, problem, reduction=reduction))
        assert state(joint) == before and isinstance(joint.right.weight, nn.Parameter)
        results[-1][1].update((name, x.double()) for name, x in joint.named_buffers())
    assert_same(*results)


@REDUCTIONS
def test_training_goes_on(reduction):
    problem = make((6, 4), (3, 2), dtype=torch.float64)
    weights = []
    for loss in (samplewise.joint_loss, by_utterance):
        torch.manual_seed(0)
        joint = Shared().double()
        optimizer = torch.optim.SGD(joint.parameters(), 0.1)
        for _ in range(4):
            run(loss, joint, problem, reduction=reduction)
            optimizer.step()
        weights.append(joint.left.weight.detach())
    torch.testing.assert_close(*weights)


class Moving(nn.Module):
    """A running mean that is put in the place of the one before, on which the logits depend class by class."""

    def __init__(self):
        super().__init__()
        self.output = nn.Linear(6, 11)
        self.register_buffer("mean", torch.zeros(11))

    def forward(self, encoder_out, predictor_out):
        logits = self.output(torch.tanh(encoder_out + predictor_out))
        self.mean = 0.5 * self.mean + logits.detach().mean((0, 1, 2))
        return logits * self.mean


@REDUCTIONS
def test_buffers_that_are_replaced(reduction):
    """The second run of "none" goes through the buffers that the first one went through."""
    problem, results = make((6, 4, 3), (3, 0, 2), dtype=torch.float64), []
    for loss in (samplewise.joint_loss, by_utterance):
        torch.manual_seed(0)
        joint = Moving().double()
        results.append(run(loss, joint, problem, reduction=reduction))
        results[-1][1]["mean"] = joint.mean
    assert_same(*results)


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_inside_a_checkpoint(reduction):
    """Activation checkpointing, which lets saved tensors be read once, gives the gradients that there are without it."""
    problem = make((6, 4), (3, 2), dtype=torch.float64)
    joint = Shared().double().eval()

    def checkpointed(*inputs, **options):
        return torch.utils.checkpoint.checkpoint(lambda *x: samplewise.joint_loss(*x, **options), *inputs, use_reentrant=False)

    given = {"reduction": reduction, "up": torch.tensor([0.5, -2.0]).double() if reduction == "none" else None}
    assert_same(run(checkpointed, joint, problem, **given), run(by_utterance, joint, problem, **given))
