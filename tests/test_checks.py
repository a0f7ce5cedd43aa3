"""What cannot be computed is refused, by an error that names the argument, the utterance and the numbers."""

import pytest
import torch

import samplewise
from samplewise import TransducerError, checks
from tests.problems import make

METHODS = ("batched", "samplewise", "tiled", "guided")


def changed(**changes):
    """A sound problem of 3 utterances, T = 7, U = 3, V = 11, D = 6, with some inputs exchanged."""
    return {**make().inputs, **changes}


def lengths(*values, dtype=torch.int64):
    return torch.tensor(values, dtype=dtype)


BAD = {
    "encoder_out has 2 axes": (changed(encoder_out=torch.zeros(7, 6)), ["encoder_out", "(B, T, D)", "(7, 6)"]),
    "predictor_out has 4 axes": (changed(predictor_out=torch.zeros(3, 4, 6, 1)), ["predictor_out", "(3, 4, 6, 1)"]),
    "weight has 1 axis": (changed(weight=torch.zeros(6)), ["weight", "(V, D)", "(6,)"]),
    "bias of another size": (changed(bias=torch.zeros(10)), ["bias", "(11,)", "(10,)"]),
    "predictor_out of 2 utterances": (changed(predictor_out=torch.zeros(2, 4, 6)), ["predictor_out", "2", "3"]),
    "predictor_out of other features": (changed(predictor_out=torch.zeros(3, 4, 5)), ["predictor_out", "5", "6"]),
    "weight of other features": (changed(weight=torch.zeros(11, 7)), ["weight", "7", "6"]),
    "no utterance": (
        {name: x if name in ("weight", "bias") else x[:0] for name, x in make().inputs.items()},
        ["0 utterances"],
    ),
    "no class": (changed(weight=torch.zeros(0, 6), bias=torch.zeros(0)), ["0 classes"]),
    "integer encodings": (changed(encoder_out=torch.zeros(3, 7, 6, dtype=torch.int64)), ["encoder_out", "int64"]),
    "complex weight": (changed(weight=torch.zeros(11, 6, dtype=torch.complex64)), ["weight", "complex64"]),
    "two dtypes": (changed(weight=torch.zeros(11, 6, dtype=torch.float64)), ["weight is torch.float64", "encoder_out"]),
    "dtype of the bias": (changed(bias=torch.zeros(11, dtype=torch.bfloat16)), ["bias is torch.bfloat16"]),
    "targets of 1 axis": (changed(targets=lengths(1, 2, 3)), ["targets", "(B, U)", "(3,)"]),
    "targets of 2 utterances": (changed(targets=torch.ones(2, 3, dtype=torch.int64)), ["targets", "2", "3"]),
    "float targets": (changed(targets=torch.ones(3, 3)), ["targets", "float32", "int32 or int64"]),
    "encoder_lengths of 2 axes": (changed(encoder_lengths=torch.ones(3, 1, dtype=torch.int64)), ["encoder_lengths", "(3, 1)"]),
    "encoder_lengths of 2 utterances": (changed(encoder_lengths=lengths(7, 4)), ["encoder_lengths", "2", "3"]),
    "float target_lengths": (changed(target_lengths=torch.ones(3)), ["target_lengths", "float32"]),
    "int16 lengths": (changed(encoder_lengths=lengths(7, 4, 1, dtype=torch.int16)), ["encoder_lengths", "int16"]),
    "more frames than there are": (changed(encoder_lengths=lengths(7, 8, 1)), ["encoder_lengths[1] is 8", "7 frames"]),
    "no frames": (changed(encoder_lengths=lengths(7, 4, 0)), ["encoder_lengths[2] is 0", "1..7"]),
    "negative frames": (changed(encoder_lengths=lengths(-1, 4, 1)), ["encoder_lengths[0] is -1"]),
    "more labels than targets holds": (changed(target_lengths=lengths(3, 4, 2)), ["target_lengths[1] is 4", "3 labels"]),
    "negative labels": (changed(target_lengths=lengths(3, 0, -1)), ["target_lengths[2] is -1"]),
    "predictor_out without the first row": (
        changed(predictor_out=torch.zeros(3, 3, 6)),
        ["target_lengths[0] is 3", "4 rows of predictor_out", "3"],
    ),
    "a label past the last class": (
        changed(targets=torch.tensor([[1, 2, 3], [1, 1, 1], [4, 11, 5]])),
        ["targets[2, 1] is 11", "11 classes"],
    ),
    "a negative label": (changed(targets=torch.tensor([[1, -2, 3], [1, 1, 1], [4, 5, 5]])), ["targets[0, 1] is -2"]),
    "a label that is the blank": (
        changed(targets=torch.tensor([[1, 2, 3], [1, 1, 1], [4, 0, 5]])),
        ["targets[2, 1] is 0", "blank"],
    ),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("reduction", ["none", "mean_volume"])
def test_bad_inputs(case, reduction):
    inputs, words = BAD[case]
    with pytest.raises(TransducerError) as caught:
        samplewise.transducer_loss(**inputs, reduction=reduction)
    for word in words:
        assert word in str(caught.value), f"{word!r} is not in {str(caught.value)!r}"


@pytest.mark.parametrize("blank", [11, -12])
def test_blank_out_of_range(blank):
    with pytest.raises(TransducerError, match=rf"blank is {blank}.*11 classes.*-11\.\.10"):
        samplewise.transducer_loss(**make().inputs, blank=blank)


@pytest.mark.parametrize("blank", [3, -8])
def test_label_equal_to_a_blank_that_is_not_zero(blank):
    inputs = changed(targets=torch.tensor([[1, 2, 4], [1, 1, 1], [4, 3, 5]]))
    with pytest.raises(TransducerError, match=r"targets\[2, 1\] is 3"):
        samplewise.transducer_loss(**inputs, blank=blank)


@pytest.mark.parametrize(
    "option, value",
    [
        ("method", "fast"),
        ("reduction", "median"),
        ("activation", "elu"),
        ("on_nonfinite", "ignore"),
        ("tolerance", -0.1),
        ("tolerance", 1.0),
        ("tolerance", float("nan")),
        ("memory_budget", 0),
        ("memory_budget", -5),
        ("memory_budget", "much"),
        ("memory_budget", "12 XB"),
        ("memory_budget", 1.5),
        ("memory_budget", True),
    ],
)
def test_bad_options(option, value):
    with pytest.raises(TransducerError, match=f"{option} is .*{value}"):
        samplewise.transducer_loss(**make().inputs, **{option: value})


def test_the_error_is_a_value_error():
    assert issubclass(TransducerError, ValueError)


@pytest.mark.parametrize("reduction", ["none", "sum"])
@pytest.mark.parametrize("method", METHODS)
def test_the_first_utterance_at_fault_is_named(method, reduction):
    inputs = changed(encoder_lengths=lengths(7, 9, 8))
    with pytest.raises(TransducerError, match=r"encoder_lengths\[1\] is 9"):
        samplewise.transducer_loss(**inputs, method=method, reduction=reduction)


def test_what_lies_beyond_the_lengths_is_not_checked():
    """Labels out of range and blanks in the padding of the targets are nobody's concern."""
    inputs = changed(targets=torch.tensor([[1, 2, 3], [-1, 0, 999], [4, 5, -(2**40)]]))
    assert torch.isfinite(samplewise.transducer_loss(**inputs))


@pytest.fixture
def warned_anew():
    checks._warn_exchanged.cache_clear()
    yield
    checks._warn_exchanged.cache_clear()


@pytest.mark.parametrize("padding, width", [(0, 12), (-1, 12), (99, 9), (5, 4)])
def test_exchanged_lengths_that_cannot_be(padding, width):
    """The padding would be read as labels, or a length is beyond its tensor: the error says what would fit."""
    problem = make((9, 7, 8), (4, 2, 3), vocab=20, pad=(3, width - 4, width - 4))
    used = torch.arange(width)[None] < problem.target_lengths[:, None]
    right = problem.inputs | {"targets": problem.targets.where(used, padding)}
    assert samplewise.transducer_loss(**right).isfinite()
    swapped = right | {"encoder_lengths": right["target_lengths"], "target_lengths": right["encoder_lengths"]}
    with pytest.raises(TransducerError, match="are encoder_lengths and target_lengths exchanged"):
        samplewise.transducer_loss(**swapped)


def test_exchanged_lengths_that_could_be(caplog, warned_anew):
    """Within range and without padding that shows it as an error, labels that end at the other lengths are a warning, once."""
    problem = make((4, 2, 3), (9, 7, 8), vocab=20, pad=(8, 0, 0))
    used = torch.arange(9)[None] < problem.target_lengths[:, None]
    right = problem.inputs | {"targets": problem.targets.where(used, 0)}
    swapped = right | {"encoder_lengths": right["target_lengths"], "target_lengths": right["encoder_lengths"]}
    samplewise.transducer_loss(**right)
    assert not caplog.records
    for _ in range(2):
        samplewise.transducer_loss(**swapped)
    assert ["seem to be exchanged" in record.message for record in caplog.records] == [True]
    checks._warn_exchanged.cache_clear()
    samplewise.transducer_loss(**right | {"encoder_lengths": right["target_lengths"]})
    assert len(caplog.records) == 1, "nothing is exchanged where both are the same"
    logits = torch.zeros(3, 12, 10, 20)
    samplewise.rnnt_loss(logits, right["targets"], right["target_lengths"], right["encoder_lengths"], blank=0)
    assert "logit_lengths and target_lengths seem to be exchanged" in caplog.records[-1].message


@pytest.mark.parametrize("name", ["transducer_loss", "joint_loss", "rnnt_loss", "TransducerLoss", "Joiner", "Joiner.loss"])
def test_lengths_by_keyword(name):
    """In any order, in every public loss: the same as by position."""
    problem = make((6, 4), (3, 2))
    head, joiner = torch.nn.Linear(6, 11), samplewise.Joiner(6, 6, 5, 11)
    encodings, logits = (problem.encoder_out, problem.predictor_out), torch.randn(2, 6, 4, 12)
    function, first, frames = {
        "transducer_loss": (samplewise.transducer_loss, (*encodings, problem.weight, None), "encoder_lengths"),
        "joint_loss": (samplewise.joint_loss, (Product(head), *encodings), "encoder_lengths"),
        "rnnt_loss": (samplewise.rnnt_loss, (logits,), "logit_lengths"),
        "TransducerLoss": (samplewise.TransducerLoss(), (*encodings, problem.weight, None), "encoder_lengths"),
        "Joiner": (joiner, encodings, "encoder_lengths"),
        "Joiner.loss": (joiner.loss, encodings, "encoder_lengths"),
    }[name]
    by_position = function(*first, problem.targets, problem.encoder_lengths, problem.target_lengths)
    by_keyword = function(
        *first, **{"target_lengths": problem.target_lengths, frames: problem.encoder_lengths, "targets": problem.targets}
    )
    assert torch.equal(by_position, by_keyword)


class Product(torch.nn.Module):
    def __init__(self, head):
        super().__init__()
        self.head = head

    def forward(self, encoder_out, predictor_out):
        return self.head(encoder_out * predictor_out)
