"""torchaudio's names: its recorded numbers, and what it refuses."""

from __future__ import annotations

import inspect

import pytest
import torch

import samplewise
from samplewise import TransducerError
from samplewise.integrations import torchaudio
from tests.integrations import recorded
from tests.ops.test_logits import make, run
from tests.ops.test_peers import recorded as cases


@pytest.mark.parametrize("peer, case", cases(("torchaudio",), lambda peer, case: True))
def test_recorded_numbers(peer, case):
    assert case["agreement"]["flag"] == "ok"
    recorded.check(torchaudio, peer, case, "logits")


@pytest.mark.parametrize("fused", [True, False])
def test_the_module_is_the_function(fused):
    logits, *integers = make()
    options = {"blank": 3, "clamp": 0.05, "reduction": "sum", "fused_log_softmax": fused}
    logits = logits if fused else logits.log_softmax(3)
    integers[0] = integers[0].masked_fill(integers[0] == 3, 4)
    one = run(torchaudio.RNNTLoss(**options), logits, *integers)
    two = run(torchaudio.rnnt_loss, logits, *integers, **options)
    three = run(samplewise.rnnt_loss, logits, *integers, **options)
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(one, three, strict=True))
    assert not torch.equal(one[1], run(torchaudio.RNNTLoss(**{**options, "clamp": -1}), logits, *integers)[1])


def test_signatures():
    names = ["logits", "targets", "logit_lengths", "target_lengths", "blank", "clamp", "reduction", "fused_log_softmax"]
    parameters = inspect.signature(torchaudio.rnnt_loss).parameters
    assert list(parameters) == names and [parameters[name].default for name in names[4:]] == [-1, -1, "mean", True]
    parameters = inspect.signature(torchaudio.RNNTLoss).parameters
    assert list(parameters) == names[4:] and [p.default for p in parameters.values()] == [-1, -1, "mean", True]


@pytest.mark.parametrize("integers", [torch.int32, torch.int64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_what_torchaudio_refuses(dtype, integers):
    """int64, lengths all below T, wide targets, bfloat16, float64, strides: the numbers are those of what it takes."""
    logits, targets, frames, labels = make(dtype=dtype)
    right = run(torchaudio.rnnt_loss, logits.float(), targets.int(), frames.int(), labels.int())
    long = torch.nn.functional.pad(logits, (0, 0, 0, 1, 0, 3), value=float("nan"))
    strided = long.transpose(1, 2).contiguous().transpose(1, 2)
    wide = torch.nn.functional.pad(targets, (0, 4), value=-1)
    assert not strided.is_contiguous() and int(frames.max()) < strided.shape[1]
    loss, gradient = run(torchaudio.rnnt_loss, strided, wide.to(integers), frames.to(integers), labels.to(integers))
    slack = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(loss.double(), right[0].double(), rtol=max(slack, 1e-5), atol=0)
    inside = gradient[:, : logits.shape[1], : logits.shape[2]]
    torch.testing.assert_close(inside.double(), right[1].double(), rtol=max(slack, 1e-3), atol=max(slack, 1e-5))
    assert loss.dtype == torch.promote_types(dtype, torch.float32) and gradient.dtype == dtype
    assert (gradient[:, logits.shape[1] :] == 0).all() and (gradient[:, :, logits.shape[2] :] == 0).all()


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"reduction": "mean_volume"}, ["reduction is 'mean_volume'", "'none', 'mean', 'sum'"]),
        ({"logit_lengths": torch.tensor([7, 0, 1, 5])}, ["logit_lengths[1] is 0", "7 frames"]),
        ({"target_lengths": torch.tensor([3, 0, 2, 7])}, ["target_lengths[3] is 7", "6 labels"]),
        ({"targets": torch.full((4, 6), 10)}, ["targets[0, 0] is 10", "blank"]),
        ({"blank": 11}, ["blank is 11", "11 classes"]),
    ],
    ids="-".join,
)
def test_bad_inputs(changes, words):
    given = dict(zip(("logits", "targets", "logit_lengths", "target_lengths"), make(), strict=True))
    with pytest.raises(TransducerError) as caught:
        torchaudio.rnnt_loss(**{**given, **changes})
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_a_module_of_a_wrong_reduction_is_not_made():
    with pytest.raises(TransducerError, match="reduction is 'batchmean'"):
        torchaudio.RNNTLoss(reduction="batchmean")


def test_compile():
    torch._dynamo.reset()
    logits, *integers = make()
    compiled = torch.compile(torchaudio.RNNTLoss(), fullgraph=True, backend="aot_eager")
    for got, right in zip(run(compiled, logits, *integers), run(torchaudio.RNNTLoss(), logits, *integers), strict=True):
        torch.testing.assert_close(got, right)
