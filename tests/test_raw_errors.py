"""What is easily given in the place of something else: an error that names the argument and says what it must be."""

import pytest
import torch
from torch import nn

import samplewise
from samplewise import TransducerError
from tests.problems import Joint, error, make, ours, truth

PROBLEM = make((6, 4), (3, 2), dtype=torch.float64)
HEAD = nn.Linear(6, 11).double()


class Joiner(nn.Module):
    """With the four arguments that torchaudio's has."""

    def forward(self, source_encodings, source_lengths, target_encodings, target_lengths):
        return source_encodings[:, :, None] + target_encodings[:, None], source_lengths, target_lengths


INTEGERS = {name: PROBLEM.inputs[name] for name in ("targets", "encoder_lengths", "target_lengths")}
LABELS = {name: INTEGERS[name] for name in ("targets", "target_lengths")}
ENCODINGS = {name: PROBLEM.inputs[name] for name in ("encoder_out", "predictor_out")}
GIVEN = {
    samplewise.transducer_loss: PROBLEM.inputs,
    samplewise.joint_loss: {"joint": Joint(HEAD), **ENCODINGS, **INTEGERS},
    samplewise.rnnt_loss: {
        "logits": torch.zeros(2, 6, 4, 11), "logit_lengths": INTEGERS["encoder_lengths"], "blank": 0, **LABELS,
    },
    samplewise.sample_vocabulary: {"vocab_size": 11, "size": 6, **LABELS},
    samplewise.TransducerLoss: {},
    samplewise.Joiner: {"encoder_dim": 6, "predictor_dim": 6, "joint_dim": 5, "vocab_size": 11},
}  # fmt: skip
LOSSES = (samplewise.transducer_loss, samplewise.joint_loss, samplewise.rnnt_loss)


def assert_refused(function, changes, *words):
    with pytest.raises(TransducerError) as caught:
        function(**{**GIVEN[function], **changes})
    for word in words:
        assert word in str(caught.value), str(caught.value)


@pytest.mark.parametrize(
    "value, what", [([3, 2], "a list"), (None, "None"), (3, "a int"), (torch.tensor([3.0, 2]), "torch.float32")]
)
@pytest.mark.parametrize("function", (*LOSSES, samplewise.sample_vocabulary), ids=lambda f: f.__name__)
def test_lengths_and_targets(function, value, what):
    for name in ("targets", "target_lengths", "encoder_lengths", "logit_lengths"):
        if name in GIVEN[function]:
            assert_refused(function, {name: value}, f"{name} is {what}")


@pytest.mark.parametrize("blank", [None, "0", 0.0, 11, -12])
@pytest.mark.parametrize("function", (*LOSSES, samplewise.sample_vocabulary), ids=lambda f: f.__name__)
def test_blank(function, blank):
    assert_refused(function, {"blank": blank}, f"blank is {blank!r}")


@pytest.mark.parametrize("function", (*LOSSES, samplewise.sample_vocabulary), ids=lambda f: f.__name__)
def test_no_utterances(function):
    tensors = {name: x for name, x in GIVEN[function].items() if isinstance(x, torch.Tensor)}
    none = {name: x[:0] for name, x in tensors.items() if name not in ("weight", "bias")}
    assert_refused(function, none, "(0, " if function is samplewise.rnnt_loss else "0 utterances")


@pytest.mark.parametrize("name", ["encoder_out", "predictor_out", "weight", "bias"])
def test_floats(name):
    for value, what in (([[1.0]], "a list"), (torch.eye(11, 6).to_sparse(), "sparse"), (torch.eye(3).to(torch.complex64), "")):
        assert_refused(samplewise.transducer_loss, {name: value}, name, what)


@pytest.mark.parametrize(
    "joint, words",
    [
        (lambda e, p: HEAD(e + p), ["joint is a function", "nn.Module", "forward(encoder_out, predictor_out)"]),
        (None, ["joint is None"]),
        (Joint, ["joint is the class Joint", "instance"]),
        (Joiner(), ["Joiner takes (source_encodings, source_lengths,", "joint(encoder_out, predictor_out)", "wrap it"]),
        (nn.Linear(6, 11), ["Linear takes (input"]),
    ],
    ids=["function", "None", "class", "torchaudio", "one argument"],
)
def test_joints(joint, words):
    assert_refused(samplewise.joint_loss, {"joint": joint}, *words)


@pytest.mark.parametrize("name, value", [("tolerance", "x"), ("tolerance", 1.0), ("tolerance", float("nan")),
                                         ("fastemit_lambda", None), ("fastemit_lambda", [1]), ("memory_budget", "x"),
                                         ("memory_budget", 0.5), ("blank", None)])  # fmt: skip
@pytest.mark.parametrize("function", [samplewise.transducer_loss, samplewise.TransducerLoss], ids=lambda f: f.__name__)
def test_options(function, name, value):
    assert_refused(function, {name: value}, f"{name} is {value!r}")


@pytest.mark.parametrize("clamp", [None, "x"])
def test_clamp(clamp):
    assert_refused(samplewise.rnnt_loss, {"clamp": clamp}, f"clamp is {clamp!r}")


@pytest.mark.parametrize("value", [None, "3", 2.5, 0, -1])
def test_sizes(value):
    for function, names in (
        (samplewise.sample_vocabulary, ("vocab_size", "size")),
        (samplewise.Joiner, ("encoder_dim", "predictor_dim", "joint_dim", "vocab_size")),
    ):
        for name in names:
            assert_refused(function, {name: value}, f"{name} is {value!r}")
    assert_refused(samplewise.sample_vocabulary, {"weights": [1.0] * 11}, "weights is a list")
    assert_refused(samplewise.sample_vocabulary, {"ctc_log_probs": [[1.0]]}, "ctc_log_probs is a list")


@pytest.mark.parametrize("budget", [2**63 - 1, 2**63, 2**70])
def test_budgets_beyond_any_memory(budget):
    """As good as no bound."""
    right, gradients = truth(PROBLEM)
    value, got = ours(PROBLEM, memory_budget=budget)
    assert error(value, right) < 1e-13 and all(error(got[name], gradients[name]) < 1e-11 for name in got)


def test_a_sample_beyond_any_vocabulary(caplog):
    vocabulary = samplewise.sample_vocabulary(**{**GIVEN[samplewise.sample_vocabulary], "size": 2**63})
    assert vocabulary.classes[0].tolist() == list(range(11)) and vocabulary.grown == 0 and not caplog.records
