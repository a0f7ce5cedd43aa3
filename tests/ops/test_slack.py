"""What slack is made of: none of its parts is forgotten, for each may be the one that counts."""

import math

import pytest
import torch

from samplewise.ops.bounds import Slack, Whole, choose, gather, product_error
from samplewise.ops.tiles import Tile
from tests.ops.test_bounds import call_of
from tests.problems import make

EPS = torch.finfo(torch.float32).eps
DIM = 16


def slack_of(weight, targets=(1, 2), bias=None, activation="tanh", dtype=torch.float32):
    """Slack, and what it is made for: one utterance, `targets` its labels, weight (V, 16)."""
    problem = make((5,), (len(targets),), vocab=len(weight), dim=DIM)
    bias = torch.zeros(len(weight)) if bias is None else bias
    problem = problem.replace(weight=weight, bias=bias, targets=torch.tensor([targets])).to(dtype)
    call = call_of(problem, activation)
    group, whole = call.group(0, 1), Whole.of(call)
    return Slack.of(call, group, whole), call, whole


def rows(*norms: float) -> torch.Tensor:
    """Rows of these norms."""
    return torch.tensor(norms)[:, None] * torch.ones(DIM) / math.sqrt(DIM)


def of_stretch(slack, whole, classes, weight) -> float:
    others = weight.sum(0) - weight[list(classes)].sum(0)
    rest = torch.tensor([float(len(weight) - len(classes))])
    stretches = torch.tensor([[0, 0, 5]])
    return float(slack.of_stretches(stretches, torch.tensor([classes]), others[None], rest))


@pytest.mark.parametrize("large", [0, 1, 3, 5])
def test_a_large_row_counts_wherever_it_is(large):
    """Blank and another class that bounds are made of (0, 3), a label (1), or one of those that a mean stands for (5)."""
    norms = [1.0] * 60
    norms[large] = 1000.0
    weight = rows(*norms)
    slack, _, whole = slack_of(weight)
    found = of_stretch(slack, whole, (0, 3), weight)
    score = (DIM + 16) * EPS * math.sqrt(DIM) * 1000.0  # the least that a score of such a row may be off by
    assert found >= 2 * score / (57 if large == 5 else 1)  # of 58 others one may be taken out
    assert found <= 5 * score, "and little more"


def test_a_bias_is_rounded_as_well():
    weight, bias = rows(*[1.0] * 6), torch.zeros(6)
    slack, _, whole = slack_of(weight)
    before = of_stretch(slack, whole, (0, 3), weight)
    bias[3] = 1e6
    slack, _, whole = slack_of(weight, bias=bias)
    assert of_stretch(slack, whole, (0, 3), weight) >= before + 2 * EPS * 1e6


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_half_precision_products_round_more(activation):
    weight = rows(*[1.0] * 6)
    for dtype in (torch.bfloat16, torch.float16):
        (single, _, whole), (half, call, _) = (slack_of(weight, activation=activation, dtype=d) for d in (torch.float32, dtype))
        assert product_error(call) >= torch.finfo(dtype).eps
        reach = math.sqrt(DIM) if activation == "tanh" else 1.0
        difference = of_stretch(half, whole, (0, 3), weight) - of_stretch(single, whole, (0, 3), weight)
        assert difference >= 2 * torch.finfo(dtype).eps * 0.9 * reach


def test_longer_encodings_make_scores_less_exact():
    """Where an activation has no bound, sums are as large as both encodings together, each utterance's own rows alone."""
    weight = rows(*[1.0] * 6)
    found = []
    for scale in (1.0, 100.0):
        problem = make((5,), (2,), vocab=6, dim=DIM, pad=(3, 2, 0)).replace(weight=weight, bias=torch.zeros(6))
        encoder_out, predictor_out = problem.encoder_out.clone() * scale, problem.predictor_out.clone()
        encoder_out[:, 5:] = predictor_out[:, 3:] = 1e9  # padding
        call = call_of(problem.replace(encoder_out=encoder_out, predictor_out=predictor_out), "relu")
        whole = Whole.of(call)
        found.append(of_stretch(Slack.of(call, call.group(0, 1), whole), whole, (0, 3), weight))
    assert 20 * found[0] < found[1] < 100 * found[0]


@pytest.mark.parametrize("masked", [None, 2, 4])
def test_the_others_are_all_classes_that_are_left(masked):
    """Their rows and biases, summed, and their number: those that are masked count neither here nor there."""
    weight, bias = torch.randn(6, DIM), torch.randn(6)
    if masked is not None:
        bias[masked] = -torch.inf
    slack, call, whole = slack_of(weight, bias=bias)
    classes = torch.tensor([[0, 2, 3]])
    left = [v for v in (1, 4, 5) if v != masked]
    found, found_bias, rest, _ = gather(call, whole, torch.tensor([[0, 0, 5]]), classes, slack)
    torch.testing.assert_close(found[0], torch.cat((weight[classes[0]], weight[left].sum(0, keepdim=True))))
    torch.testing.assert_close(found_bias[0], torch.cat((bias[classes[0]], bias[left].sum()[None])))
    assert rest.tolist() == [len(left)]


def test_the_classes_of_a_stretch_are_different_and_begin_with_blank():
    """Also where blank is the likeliest: a class that counted twice would make a denominator too large."""
    weight, bias = torch.randn(40, DIM), torch.zeros(40)
    bias[0] = 20.0
    _, call, _ = slack_of(weight, bias=bias)
    stretches = torch.tensor([[0, 0, 2], [0, 2, 5]])
    for _, classes, _ in choose(call, call.group(0, 1), stretches, Tile.of(call, 8, gradient=False), 14):
        assert classes[:, 0].tolist() == [0] * len(classes)
        assert all(len(set(row)) == 15 for row in classes.tolist())
