"""The guided method is exact, whatever its guide believes."""

import pytest
import torch

import samplewise
from tests.problems import Problem, assert_as_good_as_plain, assert_close, error, make, ours, planted, truth

SHAPES = {"frames": (60, 90, 40), "labels": (12, 20, 0), "vocab": 300, "dim": 16}


@pytest.mark.parametrize("maker", [make, planted])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_against_the_truth(maker, seed, dtype):
    shapes, slack = {**SHAPES, "seed": seed, "dtype": dtype}, 4e-7  # what the default tolerance of float32 lets go
    assert_as_good_as_plain(maker, shapes, {"reduction": "none"}, method="guided", slack=slack)


def two_places(seed, frames=600, vocab=1000, leaking=60, leak=0.2) -> Problem:
    """One label that fits equally well near the start and near the end, and a share of the probability that goes to some
    classes before it and to others after it. A guide that errs about these shares sees one of the two alignments alone."""
    g = torch.Generator().manual_seed(seed)
    blank, label = 0, 1
    encoder_out, predictor_out = torch.zeros(1, frames, 4), torch.zeros(1, 2, 4)
    encoder_out[0, :, 0] = 1.0
    encoder_out[0, [5, frames - 6], 1] = 1.0  # where the label fits
    predictor_out[0, 0, 2] = predictor_out[0, 1, 3] = 1.0  # before and after it
    weight, bias = torch.zeros(vocab, 4), torch.full((vocab,), -30.0)
    bias[blank] = 0.0
    weight[label, 1] = 27.7
    each = 30.0 + torch.log(torch.tensor(leak / (1 - leak) / leaking))
    for column in (2, 3):
        weight[2 + torch.randperm(vocab - 2, generator=g)[:leaking], column] = each
    lengths = torch.tensor([frames]), torch.tensor([1])
    return Problem(encoder_out, predictor_out, weight, bias, torch.tensor([[label]]), *lengths)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_two_alignments_that_never_meet(seed, reduction):
    problem = two_places(seed)
    value, gradients = ours(problem, method="guided", activation="identity", reduction=reduction)
    right, right_gradients = truth(problem, activation="identity", reduction=reduction)
    assert_close("loss", value, right, 1e-5)
    for name in gradients:
        assert_close(name, gradients[name], right_gradients[name], 2e-4)


def label_that_leaks(seed, frames=600, vocab=1000, labels=30, leaking=60) -> Problem:
    """The third of 30 labels fits equally well near the start and near the end. Before it, a fifth of the probability goes to
    the label that is the twentieth, after it to classes that are no labels. The others fit one frame each."""
    g = torch.Generator().manual_seed(seed)
    targets = 1 + torch.arange(labels)
    encoder_out, predictor_out = torch.zeros(1, frames, labels + 4), torch.zeros(1, labels + 1, labels + 4)
    weight, bias = torch.zeros(vocab, labels + 4), torch.full((vocab,), -30.0)
    bias[0], fits = 0.0, 27.7
    at = torch.cat((torch.tensor([1, 2, 5]), torch.arange(frames - labels + 3, frames)))
    for u in range(labels):
        encoder_out[0, at[u], u] = 1.0
        weight[targets[u], u] = fits if u == 2 else 45.0
    encoder_out[0, frames - labels, 2] = 1.0
    predictor_out[0, 2, labels] = predictor_out[0, 3, labels + 1] = 1.0
    share = torch.log(torch.tensor(0.25))
    weight[targets[19], labels] = 30.0 + share
    others = 1 + labels + torch.randperm(vocab - 1 - labels, generator=g)[:leaking]
    weight[others, labels + 1] = 30.0 + share - torch.log(torch.tensor(float(leaking)))
    return Problem(encoder_out, predictor_out, weight, bias, targets[None], torch.tensor([frames]), torch.tensor([labels]))


@pytest.mark.parametrize("seed", range(4))
def test_a_label_that_leaks_before_its_time(seed):
    """A stretch sees that a label of its utterance is likely after some label, although it is not the next one there."""
    problem = label_that_leaks(seed)
    value, gradients = ours(problem, method="guided", activation="identity")
    right, right_gradients = truth(problem, activation="identity")
    before, after = right_gradients["predictor_out"][0, 2, 30], right_gradients["predictor_out"][0, 3, 31]
    assert 0.5 < before.item() / after.item() < 2, "the two alignments do not share the posterior"
    assert_close("loss", value, right, 1e-5)
    for name in gradients:
        assert_close(name, gradients[name], right_gradients[name], 2e-4)


def test_two_alignments_share_the_posterior():
    """The problem is what it says: half of the occupancy between the two places belongs to either alignment."""
    _, gradients = truth(two_places(0), activation="identity", reduction="sum")
    before, after = gradients["predictor_out"][0, :, 2:].diagonal()
    assert abs(before.item() / after.item() - 1) < 0.05


@pytest.mark.parametrize("tolerance", [None, 1e-4, 0.0])
def test_tolerance(tolerance):
    problem = planted(**SHAPES, dtype=torch.float64)
    value, gradients = ours(problem, method="guided", tolerance=tolerance)
    right, right_gradients = truth(problem)
    bound = 1e-11 if tolerance is None else 1e-11 + 3 * tolerance
    assert error(value, right) <= max(1e-12, (tolerance or 0) * 3)
    for name in gradients:
        assert_close(name, gradients[name], right_gradients[name], bound)


def test_a_guide_saves_work_where_it_can():
    """On a confident model few nodes need their exact emissions: an always full band would show."""
    with samplewise.observe() as seen:
        ours(planted((200, 180), (30, 25), 600, 32, sharpness=12.0), method="guided")
    assert seen.groups and max(group.exact_share for group in seen.groups) < 0.5


def test_few_classes():
    """Fewer classes than a guide would draw: it takes all, and is exact at once."""
    assert_as_good_as_plain(make, {**SHAPES, "vocab": 9}, {"reduction": "none"}, method="guided")


def test_guide_is_reproducible():
    problem = make(**SHAPES)
    state = torch.get_rng_state()
    first, second = ours(problem, method="guided"), ours(problem, method="guided")
    assert torch.equal(first[0], second[0]) and torch.equal(first[1]["weight"], second[1]["weight"])
    assert torch.equal(torch.get_rng_state(), state), "the guide drew from the user's random numbers"
