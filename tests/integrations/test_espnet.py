"""ESPnet2's losses and its joint without the 4-D tensor, against the logits of a stand-in."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

import samplewise
from samplewise import TransducerError
from samplewise.integrations import espnet
from samplewise.reference import reference_loss_from_logits
from samplewise.topology import multi_blank
from tests.integrations.stand_ins import LinJoint, Swish, agree, encodings, integers
from tests.ops.test_logits import make, run

ACTIVATIONS = [nn.Tanh(), nn.ReLU(), nn.LeakyReLU(), Swish(), nn.Identity(), nn.Hardtanh(), nn.SELU(), Swish(2.0)]


def by_logits(joint, encoder_out, decoder_out, *given, **options):
    return samplewise.rnnt_loss(joint(encoder_out[:, :, None], decoder_out[:, None]), *given, **options)


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_the_joint(activation, reduction):
    """Padding is the blank, as get_transducer_task_io leaves it, or ignore_id; int32 as it gives them."""
    joint, inputs = LinJoint(activation).double(), encodings()
    target, t_len, u_len = integers(padding=0)
    given = [x.int() for x in (target, t_len, u_len)]
    one = agree(
        lambda: espnet.fused_loss(joint, *inputs, *given, reduction=reduction, fastemit_lambda=0.2),
        lambda: by_logits(joint, *inputs, *given, blank=0, reduction=reduction, fastemit_lambda=0.2),
        joint, *inputs,
    )  # fmt: skip
    ignored = target.masked_fill(torch.arange(target.shape[1])[None] >= u_len[:, None], -1)
    assert torch.equal(one, espnet.fused_loss(joint, *inputs, ignored, t_len, u_len, reduction=reduction))


def test_several_blanks():
    """Big blanks before the blank, which is the third class; sigma is 0.05 unless it is said otherwise."""
    joint, inputs = LinJoint(nn.Tanh()).double(), encodings()
    targets, *lengths = integers(padding=2, blank=2)
    targets = torch.where((targets < 2) & (targets >= 0), 5, targets)
    topology = multi_blank((2, 4), sigma=0.05)
    assert topology.blanks(2) == [2, 1, 0]
    one = agree(
        lambda: espnet.fused_loss(joint, *inputs, targets, *lengths, blank_id=2, big_blank_durations=[2, 4]),
        lambda: by_logits(joint, *inputs, targets, *lengths, blank=2, topology=topology),
        joint, *inputs,
    )  # fmt: skip
    logits = joint(inputs[0][:, :, None], inputs[1][:, None])
    truth = reference_loss_from_logits(logits, targets, *lengths, blank=2, topology=topology)
    torch.testing.assert_close(one, truth.detach(), rtol=1e-12, atol=0)
    criterion = espnet.MultiblankRNNTLossNumba(2, [2, 4], sigma=0.05)
    torch.testing.assert_close(criterion(logits, targets, *lengths)[0], truth, rtol=1e-12, atol=0)


class Decoder(nn.Module):
    """It sees labels and puts out encodings."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.embed, self.device = nn.Embedding(classes, 4), None

    def set_device(self, device) -> None:
        self.device = device

    def forward(self, labels):
        self.seen = labels
        return self.embed(labels).cumsum(1)


class Model(nn.Module):
    """The parts of ESPnetASRModel that its transducer loss reads."""

    def __init__(self, criterion, blank_id: int, error_calculator=None) -> None:
        super().__init__()
        self.decoder, self.joint_network = Decoder(7), LinJoint(nn.Tanh())
        self.blank_id, self.ignore_id, self.criterion_transducer = blank_id, -1, criterion
        self.error_calculator_trans = error_calculator


@pytest.mark.parametrize("blank", [0, 2])
def test_the_model_of_one_line(blank):
    criterion = (
        espnet.MultiblankRNNTLossNumba(2, [2, 4], "sum", 0.2, -1.0, 0.1) if blank else espnet.RNNTLoss(fastemit_lambda=0.1)
    )
    model = Model(criterion, blank, lambda encoder_out, target: (0.25, 0.5)).double()
    encoder_out, _ = encodings()
    labels, t_len, u_len = integers(padding=-1, blank=blank)
    labels = torch.where((labels < blank) & (labels >= 0), 5, labels)
    loss, cer, wer = espnet.calc_transducer_loss(model, encoder_out, t_len, labels)
    assert cer is None and wer is None and model.decoder.device == encoder_out.device
    decoder_in = torch.cat((torch.full((3, 1), blank), labels.masked_fill(labels < 0, blank)), 1)
    assert torch.equal(model.decoder.seen, decoder_in)

    def by_criterion():
        logits = model.joint_network(encoder_out[:, :, None], model.decoder(decoder_in)[:, None])
        return criterion(logits, decoder_in[:, 1:], t_len, u_len)[0]

    agree(lambda: espnet.calc_transducer_loss(model, encoder_out, t_len, labels)[0], by_criterion, model, encoder_out)
    assert torch.isfinite(loss)
    model.eval()
    assert espnet.calc_transducer_loss(model, encoder_out, t_len, labels)[1:] == (0.25, 0.5)
    model.error_calculator_trans = None
    assert espnet.calc_transducer_loss(model, encoder_out, t_len, labels)[1:] == (None, None)


def test_the_model_and_empty_transcripts():
    model, (encoder_out, _) = Model(espnet.RNNTLoss(), 0).double(), encodings()
    for labels in (torch.full((3, 2), -1), torch.zeros(3, 0, dtype=torch.int64)):
        loss, *_ = espnet.calc_transducer_loss(model, encoder_out, integers(0)[1], labels)
        loss.backward()
        assert torch.isfinite(loss)
    with pytest.raises(TransducerError, match=r"labels\[1, 0\] is -1"):
        espnet.calc_transducer_loss(model, encoder_out, integers(0)[1], torch.tensor([[1, 2], [-1, 2], [3, -1]]))


def test_losses():
    """Shapes of the peers: (1,) where losses are added up. The value of FastEmit differs."""
    problem = make(blank=0, dtype=torch.float64)
    plain = run(samplewise.rnnt_loss, *problem, blank=0, fastemit_lambda=0.5)
    loss, gradient = run(espnet.RNNTLoss(fastemit_lambda=0.5), *problem)
    assert loss.shape == (1,) and torch.equal(loss[0], plain[0]) and torch.equal(gradient, plain[1])
    assert espnet.RNNTLoss(reduction="none")(*problem).shape == (4,)
    assert [(n, p.default) for n, p in inspect.signature(espnet.MultiblankRNNTLossNumba).parameters.items()][2:] == [
        ("reduction", "mean"), ("fastemit_lambda", 0.0), ("clamp", -1), ("sigma", 0.0),
    ]  # fmt: skip
    options = {"blank": 5, "topology": multi_blank((2,)), "fastemit_lambda": 0.5}
    problem = make(vocab=6, dtype=torch.float64)
    problem = (problem[0], problem[1].clamp(max=3), *problem[2:])
    plain = run(samplewise.rnnt_loss, *problem, **options)
    loss, gradient = run(espnet.MultiblankRNNTLossNumba(5, [2], fastemit_lambda=0.5), *problem)
    torch.testing.assert_close(loss[0], plain[0] * 1.5, rtol=1e-14, atol=0)
    assert torch.equal(gradient, plain[1])


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"target": torch.full((3, 4), 7)}, ["target[0, 0] is 7", "7 classes"]),
        ({"target": torch.full((3, 4), -1)}, ["target[0, 0] is -1"]),
        ({"t_len": torch.tensor([6, 8, 4])}, ["t_len[1] is 8", "encoder_out has 7 frames"]),
        ({"u_len": torch.tensor([3, 0, 5])}, ["u_len[2] is 5", "target holds 4 labels"]),
        ({"decoder_out": torch.zeros(3, 2, 4).double()}, ["u_len[0] is 3", "decoder_out", "2"]),
        ({"decoder_out": torch.zeros(2, 4, 4).double()}, ["decoder_out has 2 utterances", "3"]),
        ({"blank_id": 7}, ["blank_id is 7", "7 classes"]),
        ({"reduction": "average"}, ["reduction", "average"]),
        ({"big_blank_durations": [1]}, ["durations is [1]"]),
    ],
    ids="-".join,
)
@pytest.mark.parametrize("activation", [nn.Tanh(), nn.Hardtanh()], ids=str)
def test_bad_inputs(activation, changes, words):
    joint, (encoder_out, decoder_out) = LinJoint(activation).double(), encodings()
    given = dict(zip(("target", "t_len", "u_len"), integers(0), strict=True))
    with pytest.raises(TransducerError) as caught:
        espnet.fused_loss(joint, **{"encoder_out": encoder_out, "decoder_out": decoder_out, **given, **changes})
    for word in words:
        assert word in str(caught.value), str(caught.value)
