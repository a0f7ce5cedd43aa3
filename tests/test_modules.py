"""The nn.Module twins: what they compute is what the functions compute."""

import pytest
import torch

import samplewise
from samplewise import Joiner, TransducerError, TransducerLoss, transducer_loss
from samplewise.checks import ACTIVATION_NAMES, ACTIVATIONS, check_activation
from samplewise.kernels.activations import TABLE
from samplewise.reference import reference_loss
from tests.problems import make

ENCODINGS = torch.randn(2, 9, 8), torch.randn(2, 5, 7)
INTEGERS = (torch.tensor([[5, 8, 1, 7], [3, 3, 0, 0]]), torch.tensor([9, 6]), torch.tensor([4, 2]))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"reduction": "none", "blank": -1, "activation": "relu"},
        {"reduction": "sum", "method": "samplewise", "memory_budget": "1GiB", "on_nonfinite": "zero"},
        {"reduction": "mean_target", "method": "tiled", "tolerance": 0.1},
    ],
    ids=str,
)
def test_transducer_loss(options):
    problem = make((6, 4), (3, 2), blank=options.get("blank", 0))
    module = TransducerLoss(**options)
    assert torch.equal(module(*problem.inputs.values()), samplewise.transducer_loss(**problem.inputs, **options))
    assert all(f"{name}={value!r}" in repr(module) for name, value in options.items())
    assert not list(module.parameters())


@pytest.mark.parametrize("option", ["reduction", "method", "activation", "on_nonfinite"])
def test_a_wrong_option_is_refused_at_once(option):
    with pytest.raises(TransducerError, match=f"{option} is 'x'"):
        TransducerLoss(**{option: "x"})


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_joiner(activation):
    """Its loss is that of its logits, and both reach the same parameters."""
    joiner = Joiner(8, 7, 6, 11, activation=activation).double()
    encoder_out, predictor_out = (x.double() for x in ENCODINGS)
    logits = joiner(encoder_out, predictor_out)
    assert logits.shape == (2, 9, 5, 11)
    right = samplewise.rnnt_loss(logits, *INTEGERS, blank=0, reduction="sum")
    expected = torch.autograd.grad(right, list(joiner.parameters()))
    for loss in (joiner(encoder_out, predictor_out, *INTEGERS, reduction="sum"),
                 joiner.loss(encoder_out, predictor_out, *INTEGERS, reduction="sum", method="samplewise")):  # fmt: skip
        torch.testing.assert_close(loss, right)
        for got, gradient in zip(torch.autograd.grad(loss, list(joiner.parameters())), expected, strict=True):
            torch.testing.assert_close(got, gradient)


def test_joiner_in_decoding():
    """One step of a search: encodings of any shapes that broadcast."""
    joiner = Joiner(8, 7, 6, 11)
    encoder_out, predictor_out = ENCODINGS
    whole = joiner(encoder_out, predictor_out)
    step = joiner(encoder_out[:, 3:4, None], predictor_out[:, None, 2:3])
    torch.testing.assert_close(step[:, 0, 0], whole[:, 3, 2])


def test_joiner_refuses_half_a_loss():
    joiner = Joiner(8, 7, 6, 11)
    with pytest.raises(TransducerError, match="target_lengths"):
        joiner(*ENCODINGS, INTEGERS[0])
    with pytest.raises(TransducerError, match="activation is 'elu'"):
        Joiner(8, 7, 6, 11, activation="elu")


def test_joiner_options_reach_the_loss():
    joiner = Joiner(8, 7, 6, 11)
    targets = torch.tensor([[5, 8, 1, 7], [3, 3, 0, 0]])
    with pytest.raises(TransducerError, match=r"targets\[0, 0\] is 5, but that is the blank"):
        joiner(*ENCODINGS, targets, *INTEGERS[1:], blank=5)
    assert joiner(*ENCODINGS, *INTEGERS, reduction="none").shape == (2,)


def test_joiner_saves_and_loads():
    one, two = Joiner(8, 7, 6, 11), Joiner(8, 7, 6, 11)
    assert not torch.equal(one(*ENCODINGS), two(*ENCODINGS))
    two.load_state_dict(one.state_dict())
    assert torch.equal(one(*ENCODINGS), two(*ENCODINGS))


@pytest.mark.parametrize("alias, name", [("swish", "silu"), ("linear", "identity"), ("gelu_python", "gelu")])
def test_other_names_of_an_activation(alias, name):
    """The loss, both modules and the logits take them for what transformers means by them."""
    problem = make((6, 4), (2, 3), vocab=9)
    inputs = tuple(problem.inputs.values())[:7]
    right = reference_loss(*inputs, activation=name)
    torch.testing.assert_close(transducer_loss(*inputs, activation=alias).double(), right, rtol=1e-5, atol=0)
    torch.testing.assert_close(TransducerLoss(activation=alias)(*inputs).double(), right, rtol=1e-5, atol=0)
    joiner, plain = Joiner(8, 7, 6, 11, activation=alias), Joiner(8, 7, 6, 11, activation=name)
    plain.load_state_dict(joiner.state_dict())
    rows = torch.randn(1, 5, 8), torch.randn(1, 3, 7)
    assert torch.equal(joiner(*rows), plain(*rows))


def test_names_that_transformers_has():
    """Every name that both know means the same, however large the argument."""
    theirs = pytest.importorskip("transformers.activations", reason="transformers is not installed").ACT2FN
    common = [name for name in ACTIVATION_NAMES if name in theirs]
    assert {"tanh", "gelu", "leaky_relu", "swish", "linear", "gelu_python"} <= set(common)
    x = torch.linspace(-30, 30, 6001, dtype=torch.float64)
    for name in common:
        torch.testing.assert_close(TABLE[check_activation(name)].function(x), theirs[name](x), rtol=1e-14, atol=1e-14, msg=name)
