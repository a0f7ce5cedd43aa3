"""SpeechBrain's loss of relative lengths and its joint without the 4-D tensor, against the logits of a stand-in."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

import samplewise
from samplewise import TransducerError
from samplewise.integrations import speechbrain
from tests.integrations.stand_ins import Linear, TransducerJoint, agree, encodings, integers
from tests.ops.test_logits import make, run

D = 6
ACTIVATIONS = [nn.LeakyReLU, nn.GELU, nn.ReLU, nn.Tanh, nn.Softplus]


def shares(lengths, size):
    """Relative lengths as float32, as a data loader makes them."""
    return (lengths.double() / size).float()


def relative(encoder_out):
    """Targets, both relative lengths, and the lengths."""
    targets, frames, labels = integers(padding=0)
    return (targets, shares(frames, encoder_out.shape[1]), shares(labels, targets.shape[1])), (frames, labels)


def by_logits(joint, output, encoder_out, decoder_out, targets, frames, labels, **options):
    logits = output(joint(encoder_out[:, :, None], decoder_out[:, None]))
    return samplewise.rnnt_loss(logits, targets, frames, labels, blank=0, **options)


@pytest.mark.parametrize("nonlinearity", ACTIVATIONS)
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("kind", [Linear, nn.Linear])
def test_the_joint(nonlinearity, reduction, kind):
    """LeakyReLU is the default; Softplus goes by joint_loss."""
    inputs = encodings(D, D)
    joint, output = TransducerJoint(nonlinearity).double(), kind(D, 7, bias=False).double()
    given, lengths = relative(inputs[0])
    both = nn.ModuleList([joint, output])
    agree(
        lambda: speechbrain.fused_loss(joint, output, *inputs, *given, blank_index=0, reduction=reduction),
        lambda: by_logits(joint, output, *inputs, given[0], *lengths, reduction=reduction),
        both, *inputs,
    )  # fmt: skip
    joint.calls = 0
    module = speechbrain.FusedLoss(joint, output, blank_index=0, reduction=reduction)
    loss = speechbrain.fused_loss(joint, output, *inputs, *given, 0, reduction)
    assert torch.equal(module(*inputs, *given), loss)
    assert joint.calls == (6 if nonlinearity is nn.Softplus else 0)
    assert {id(p) for p in module.parameters()} == {id(p) for p in both.parameters()}


@pytest.mark.parametrize("network", [None, "linear"])
def test_a_joint_that_concatenates(network):
    inputs = encodings(D, D)
    network = nn.Linear(2 * D, 5) if network else None
    joint, output = TransducerJoint(nn.Tanh, "concat", network).double(), Linear(5 if network else 2 * D, 7).double()
    given, lengths = relative(inputs[0])
    agree(
        lambda: speechbrain.fused_loss(joint, output, *inputs, *given, blank_index=0),
        lambda: by_logits(joint, output, *inputs, given[0], *lengths),
        nn.ModuleList([joint, output]), *inputs,
    )  # fmt: skip


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_the_loss(reduction):
    logits, targets, frames, labels = make(blank=0, dtype=torch.float64, pad=(2, 0, 1))
    given = shares(frames, logits.shape[1]), shares(labels, targets.shape[1])
    right = run(samplewise.rnnt_loss, logits, targets, frames, labels, blank=0, reduction=reduction)
    for use_torchaudio in (True, False):
        got = run(
            speechbrain.transducer_loss, logits, targets.double() if use_torchaudio else targets.short(), *given, blank_index=0,
            reduction=reduction, use_torchaudio=use_torchaudio,
        )  # fmt: skip
        assert torch.equal(got[0], right[0]) and torch.equal(got[1], right[1])
    got = run(speechbrain.TransducerLoss(0, reduction), logits, targets, frames, labels)
    assert torch.equal(got[0], right[0]) and torch.equal(got[1], right[1])
    normalised = run(speechbrain.transducer_loss, logits.log_softmax(3), targets, *given, 0, reduction)
    torch.testing.assert_close(normalised[0], right[0], rtol=1e-12, atol=0)


def test_signatures():
    parameters = inspect.signature(speechbrain.transducer_loss).parameters
    names = ["logits", "targets", "input_lens", "target_lens", "blank_index", "reduction", "use_torchaudio"]
    assert list(parameters) == names and [parameters[name].default for name in names[5:]] == ["mean", True]
    parameters = inspect.signature(speechbrain.TransducerLoss).parameters
    assert {name: p.default for name, p in parameters.items()} == {"blank": 0, "reduction": "mean"}
    assert list(inspect.signature(speechbrain.TransducerLoss().forward).parameters) == ["logits", "labels", "T", "U"]


def test_lengths_are_rounded():
    """Every length of every size comes back from its share in float32."""
    for size in range(1, 300):
        lengths = torch.arange(1, size + 1)
        _, found, _ = speechbrain._absolute(size, torch.zeros(1, 1).long(), shares(lengths, size), torch.ones(1))
        assert torch.equal(found, lengths)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"input_lens": torch.tensor([6, 1, 4])}, ["input_lens is torch.int64", "relative"]),
        ({"target_lens": torch.tensor([3, 0, 2])}, ["target_lens is torch.int64", "relative"]),
        ({"input_lens": torch.tensor([6.0, 1, 4])}, ["round(input_lens * frames)[0] is 42", "7 frames"]),
        ({"input_lens": torch.tensor([1.0, 0.05, 0.5])}, ["round(input_lens * frames)[1] is 0"]),
        ({"target_lens": torch.tensor([1.0, 0, 2])}, ["round(target_lens * labels)[2] is 8", "4 labels"]),
        ({"targets": torch.full((3, 4), 9)}, ["targets[0, 0] is 9", "7 classes"]),
        ({"targets": torch.zeros(3).long()}, ["targets", "(B, U)", "(3,)"]),
        ({"input_lens": None}, ["input_lens", "None"]),
        ({"blank_index": 7}, ["blank_index is 7"]),
        ({"reduction": "batchmean"}, ["reduction", "batchmean"]),
    ],
    ids="-".join,
)
def test_bad_inputs(changes, words):
    inputs = encodings(D, D)
    joint, output = TransducerJoint().double(), Linear(D, 7).double()
    given = dict(zip(("targets", "input_lens", "target_lens"), relative(inputs[0])[0], strict=True))
    given = {**given, "blank_index": 0, **changes}
    logits = output(joint(inputs[0][:, :, None], inputs[1][:, None]))
    for call in (
        lambda: speechbrain.transducer_loss(logits, **given),
        lambda: speechbrain.fused_loss(joint, output, *inputs, **given),
    ):
        with pytest.raises(TransducerError) as caught:
            call()
        for word in words:
            assert word in str(caught.value), str(caught.value)


def test_bad_encodings_and_bad_lengths_of_the_module():
    joint, output = TransducerJoint().double(), Linear(D, 7).double()
    inputs = encodings(D, D)
    with pytest.raises(TransducerError, match=r"decoder_out must be .*\(3, 1, 6, 6\)"):
        speechbrain.fused_loss(joint, output, inputs[0], inputs[1][:, None], *relative(inputs[0])[0], 0)
    with pytest.raises(TransducerError, match=r"decoder_out has 5 features"):
        speechbrain.fused_loss(joint, output, inputs[0], inputs[1][..., :5], *relative(inputs[0])[0], 0)
    logits, targets, frames, labels = make(blank=0)
    with pytest.raises(TransducerError, match=r"^T\[0\] is 9, but logits has 7 frames"):
        speechbrain.TransducerLoss()(logits, targets, frames + 2, labels)
