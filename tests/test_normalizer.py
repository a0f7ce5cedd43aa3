"""Losses divided by a number that the caller gives, such as the labels of all parts of a batch."""

import pytest
import torch

import samplewise
from tests.problems import make

SHAPES = {"frames": (9, 4, 1, 13), "labels": (3, 0, 2, 7), "vocab": 11, "dim": 6, "dtype": torch.float64}


class Joint(torch.nn.Module):
    def __init__(self, weight, bias):
        super().__init__()
        self.weight, self.bias = torch.nn.Parameter(weight.detach()), torch.nn.Parameter(bias.detach())

    def forward(self, encoder_out, predictor_out):
        return torch.tanh(encoder_out + predictor_out) @ self.weight.T + self.bias


def losses_of(function, problem, **options):
    p = dict(problem.inputs)
    if function == "transducer_loss":
        return samplewise.transducer_loss(**p, **options)
    if function == "TransducerLoss":
        options = dict(options)
        normalizer = options.pop("normalizer", None)
        return samplewise.TransducerLoss(**options)(**p, normalizer=normalizer)
    integers = {name: p[name] for name in ("targets", "encoder_lengths", "target_lengths")}
    if function == "joint_loss":
        joint = Joint(p["weight"], p["bias"])
        return samplewise.joint_loss(joint, p["encoder_out"], p["predictor_out"], **integers, **options)
    logits = torch.tanh(p["encoder_out"][:, :, None] + p["predictor_out"][:, None]) @ p["weight"].T + p["bias"]
    integers["logit_lengths"] = integers.pop("encoder_lengths")
    return samplewise.rnnt_loss(logits, **integers, blank=0, **options)


FUNCTIONS = ("transducer_loss", "TransducerLoss", "joint_loss", "rnnt_loss")


@pytest.mark.parametrize("reduction", ["sum", "mean", "mean_volume", "mean_target"])
@pytest.mark.parametrize("normalizer", [7, 2.5, torch.tensor(31), torch.tensor([0.5])], ids=str)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_sum_over_the_number(function, normalizer, reduction):
    problem = make(**SHAPES)
    loss = losses_of(function, problem, reduction=reduction, normalizer=normalizer)
    right = losses_of(function, problem, reduction="none").sum() / float(normalizer)
    assert loss.dim() == 0
    assert loss.item() == pytest.approx(right.item(), rel=1e-12)


def test_two_parts_are_the_whole():
    """Gradients of parts that are divided by the labels of all add up to those of mean_volume: no part's own mean does."""
    problem = make(**SHAPES)
    p = problem.inputs
    count = int(p["target_lengths"].sum())
    grads = []
    for parts in ([slice(0, 4)], [slice(0, 1), slice(1, 4)]):
        weight = p["weight"].detach().clone().requires_grad_()
        for part in parts:
            own = {name: x if name in ("weight", "bias") else x[part] for name, x in p.items()}
            samplewise.transducer_loss(**{**own, "weight": weight}, normalizer=count).backward()
        grads.append(weight.grad)
    weight = p["weight"].detach().clone().requires_grad_()
    samplewise.transducer_loss(**{**p, "weight": weight}, reduction="mean_volume").backward()
    torch.testing.assert_close(grads[0], weight.grad)
    torch.testing.assert_close(grads[1], weight.grad)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(
    "options, message",
    [
        ({"normalizer": 0}, "normalizer is 0; it must be a positive number"),
        ({"normalizer": float("nan")}, "normalizer is nan; it must be a positive number"),
        ({"normalizer": "many"}, "normalizer is 'many'; it must be a number"),
        ({"normalizer": torch.tensor([1.0, 2.0])}, r"normalizer has shape \(2,\); it must be one number"),
        ({"normalizer": 4, "reduction": "none"}, "normalizer is 4, but reduction is 'none'"),
    ],
)
def test_what_is_no_normalizer(function, options, message):
    with pytest.raises(samplewise.TransducerError, match=message):
        losses_of(function, make(**SHAPES), **options)


def test_it_compiles():
    problem = make(**SHAPES)

    def loss(**inputs):
        return samplewise.transducer_loss(**inputs, normalizer=3)

    torch.testing.assert_close(
        torch.compile(loss, fullgraph=True, backend="aot_eager")(**problem.inputs), loss(**problem.inputs)
    )
