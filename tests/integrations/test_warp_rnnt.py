"""warp_rnnt's names, of whose CUDA code no numbers were recorded: against the reference, padded and compact."""

from __future__ import annotations

import inspect

import pytest
import torch

from samplewise import TransducerError
from samplewise.integrations.warp_rnnt import rnnt_loss
from samplewise.reference import reference_loss_from_logits
from tests.ops.test_logits import make, run
from tests.ops.test_packed import pack

NAMES = ("log_probs", "labels", "frames_lengths", "labels_lengths")


def problem_of(dtype=torch.float64):
    logits, *integers = make(blank=2, dtype=dtype)
    return logits.log_softmax(3), *integers


def compact(log_probs, labels, frames, lengths):
    flat = torch.cat([row[:u] for row, u in zip(labels, lengths.tolist(), strict=True)])
    return pack(log_probs, frames, lengths), flat, frames, lengths


def truth(log_probs, labels, frames, lengths, average_frames, reduction, emit):
    losses = reference_loss_from_logits(
        log_probs, labels, frames, lengths, blank=2, reduction="none", fused_log_softmax=False, fastemit_lambda=emit
    )
    losses = losses / frames if average_frames else losses
    return {"sum": losses.sum(), "mean": losses.mean()}.get(reduction, losses)


def test_signature():
    """The order and the defaults of 0.7.0."""
    parameters = inspect.signature(rnnt_loss).parameters
    assert tuple(parameters)[:4] == NAMES
    assert {name: p.default for name, p in list(parameters.items())[4:]} == {
        "average_frames": False, "reduction": None, "blank": 0, "gather": False, "fastemit_lambda": 0.0, "compact": False,
    }  # fmt: skip


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("reduction", [None, "none", "sum", "mean"])
@pytest.mark.parametrize("emit", [0.0, 0.3])
def test_against_the_reference(packed, average, reduction, emit):
    problem = problem_of()
    upstream = torch.linspace(-1, 2, 4).double() if reduction in (None, "none") else torch.tensor(0.7).double()
    right = run(truth, *problem, average, reduction, emit, upstream=upstream)
    options = {"average_frames": average, "reduction": reduction, "blank": 2, "fastemit_lambda": emit, "gather": packed}
    given = compact(*problem) if packed else problem
    loss, gradient = run(rnnt_loss, *given, **options, compact=packed, upstream=upstream)
    torch.testing.assert_close(loss, right[0], rtol=1e-12, atol=0)
    torch.testing.assert_close(gradient, pack(right[1], *problem[2:]) if packed else right[1], rtol=1e-10, atol=1e-13)


def test_what_it_refuses():
    """int64, lengths below T, float64, half precision, strides, and labels of (sum of lengths, 1)."""
    log_probs, labels, frames, lengths = problem_of(torch.float32)
    right = run(rnnt_loss, log_probs, labels.int(), frames.int(), lengths.int(), blank=2)
    long = torch.nn.functional.pad(log_probs, (0, 0, 0, 2, 0, 1)).transpose(1, 2).contiguous().transpose(1, 2)
    loss, _ = run(rnnt_loss, long, labels, frames, lengths, blank=2)
    assert torch.equal(loss, right[0]) and loss.dtype == torch.float32
    half, _ = run(rnnt_loss, log_probs.bfloat16(), labels, frames, lengths, blank=2)
    torch.testing.assert_close(half, right[0], rtol=0.02, atol=0)
    rows, flat, *_ = compact(log_probs, labels, frames, lengths)
    loss, _ = run(rnnt_loss, rows, flat[:, None], frames, lengths, blank=2, compact=True)
    torch.testing.assert_close(loss, right[0], rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"log_probs": torch.zeros(40, 11)}, ["compact is False", "(40, 11)", "(B, T, U+1, V)"]),
        ({"compact": True}, ["compact is True", "(sum_b T_b (U_b + 1), V)"]),
        ({"labels": torch.full((4, 6), 2)}, ["labels[0, 0] is 2", "blank"]),
        ({"frames_lengths": torch.tensor([7, 4, 9, 5])}, ["frames_lengths[2] is 9", "log_probs has 7 frames"]),
        ({"labels_lengths": torch.tensor([3, 0, 7, 6])}, ["labels_lengths[2] is 7", "labels holds 6"]),
        ({"labels_lengths": None}, ["labels_lengths", "None"]),
        ({"blank": -1}, ["blank is -1", "0..10"]),
        ({"blank": 11}, ["blank is 11"]),
        ({"reduction": "average"}, ["reduction", "average"]),
    ],
    ids="-".join,
)
def test_bad_inputs(changes, words):
    given = dict(zip(NAMES, problem_of(), strict=True))
    with pytest.raises(TransducerError) as caught:
        rnnt_loss(**{**given, "blank": 2, **changes})
    for word in words:
        assert word in str(caught.value), str(caught.value)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"labels": torch.zeros(9).long()}, ["labels", "(9,)", "add up to 11", "[3, 0, 2, 6]"]),
        ({"labels": torch.zeros(4, 6).long()}, ["labels", "(4, 6)"]),
        ({"labels_lengths": torch.tensor([3, 1, 1, 6])}, ["log_probs has", "frames_lengths[b] * (labels_lengths[b] + 1)"]),
        ({"labels_lengths": torch.tensor([3.0, 0, 2, 6])}, ["labels_lengths is torch.float32"]),
        ({"labels_lengths": torch.tensor([3, -1, 3, 6])}, ["labels_lengths are [3, -1, 3, 6]"]),
        ({"log_probs": torch.zeros(30, 11)}, ["log_probs has 30 rows"]),
    ],
    ids="-".join,
)
def test_bad_compact_inputs(changes, words):
    given = dict(zip(NAMES, compact(*problem_of()), strict=True))
    with pytest.raises(TransducerError) as caught:
        rnnt_loss(**{**given, "blank": 2, "compact": True, **changes})
    for word in words:
        assert word in str(caught.value), str(caught.value)
