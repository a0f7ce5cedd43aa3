"""WeNet's joint without the 4-D tensor, softmax and hybrid, against the logits of a stand-in."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import samplewise
from samplewise import TransducerError
from samplewise.integrations import torchaudio, wenet
from tests.integrations.stand_ins import Swish, WenetJoint, agree, encodings, integers


def by_logits(joint, encoder_out, predictor_out, *given, **options):
    return samplewise.rnnt_loss(joint(encoder_out, predictor_out), *given, **options)


@pytest.mark.parametrize("activation", [nn.Tanh(), nn.ReLU(), nn.SiLU(), Swish(), nn.GELU(), nn.Hardtanh()], ids=str)
@pytest.mark.parametrize("before, after", [(True, False), (True, True), (False, True), (False, False)])
def test_the_joint(activation, before, after):
    """With every combination of linear layers before and after the sum, and a blank in the middle."""
    joint = WenetJoint(activation, before=before, after=after).double()
    inputs = encodings() if before else encodings(6, 6)
    given = integers(padding=-1, blank=3)
    for reduction in ("none", "mean"):
        agree(
            lambda reduction=reduction: wenet.fused_loss(joint, *inputs, *given, blank=3, reduction=reduction),
            lambda reduction=reduction: by_logits(joint, *inputs, *given, blank=3, reduction=reduction),
            joint, *inputs,
        )  # fmt: skip
    joint.calls = 0
    wenet.fused_loss(joint, *inputs, *given, blank=3)
    assert joint.calls == (3 if isinstance(activation, nn.Hardtanh) else 0)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("kind", ["tanh", "relu", "bias", "dropout"])
def test_a_hybrid_joint(after, kind):
    """Two heads, the blank first; where these have not the same activation, by joint_loss."""
    joint = WenetJoint(nn.Tanh(), after=after, hat=True, of_tokens=nn.ReLU() if kind == "relu" else None).double().eval()
    if kind == "bias":
        joint.token_pred[2].bias = None
    if kind == "dropout":
        joint.blank_pred[1].p = 0.3  # not in use in evaluation
    inputs, given = encodings(), integers(padding=-1)
    agree(
        lambda: wenet.fused_loss(joint, *inputs, *given, reduction="none"),
        lambda: by_logits(joint, *inputs, *given, blank=0, reduction="none"),
        joint, *inputs,
    )  # fmt: skip
    joint.calls = 0
    wenet.fused_loss(joint, *inputs, *given)
    assert joint.calls == (0 if kind == "tanh" else 3)


def test_dropout_of_a_hybrid_joint():
    """In training alone; mean and spread of the loss are those of the joint's own masks."""
    joint = WenetJoint(nn.Tanh(), hat=True, dropout=0.3).double()
    joint.token_pred[2].weight.data.mul_(6)  # so that what dropout does shows
    inputs, given = encodings(), integers(padding=-1)
    torch.manual_seed(0)
    ours, theirs = [], []
    with torch.no_grad():
        for _ in range(200):
            ours.append(wenet.fused_loss(joint, *inputs, *given))
            theirs.append(by_logits(joint, *inputs, *given, blank=0))
    ours, theirs = torch.stack(ours), torch.stack(theirs)
    assert ours.std() > 0 and joint.calls == 200
    scale = (ours.var() / 200 + theirs.var() / 200).sqrt()
    assert (ours.mean() - theirs.mean()).abs() < 4 * scale and 0.75 < ours.std() / theirs.std() < 1.33
    joint.eval()
    assert wenet.fused_loss(joint, *inputs, *given) == wenet.fused_loss(joint, *inputs, *given)


class Predictor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)

    def forward(self, labels):
        self.seen = labels
        return self.embed(labels).cumsum(1)


class Model(nn.Module):
    """The parts of WeNet's Transducer that its loss reads."""

    def __init__(self, blank: int) -> None:
        super().__init__()
        self.predictor, self.joint, self.blank, self.ignore_id = Predictor(), WenetJoint(nn.Tanh()), blank, -1
        self.simple_lm_proj = self.simple_am_proj = None


@pytest.mark.parametrize("blank", [0, 6])
def test_the_model_of_one_line(blank):
    model, (encoder_out, _) = Model(blank).double(), encodings()
    text, frames, lengths = integers(padding=-1, blank=blank)
    mask = torch.arange(encoder_out.shape[1])[None, None] < frames[:, None, None]
    start = torch.cat((torch.full((3, 1), blank), text.masked_fill(text < 0, blank)), 1)

    def by_torchaudio():
        logits = model.joint(encoder_out, model.predictor(start))
        return torchaudio.rnnt_loss(logits, text.clamp(min=0).int(), frames.int(), lengths.int(), blank=blank)

    agree(lambda: wenet.compute_loss(model, encoder_out, frames, mask, text, lengths), by_torchaudio, model, encoder_out)
    assert torch.equal(model.predictor.seen, start) and wenet.rnnt_loss is torchaudio.rnnt_loss
    model.simple_am_proj = nn.Linear(5, 7)
    with pytest.raises(TransducerError, match="enable_k2"):
        wenet.compute_loss(model, encoder_out, frames, mask, text, lengths, steps=5)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"text": torch.full((3, 4), 7)}, ["text[0, 0] is 7", "7 classes"]),
        ({"text": torch.full((3, 4), -1)}, ["text[0, 0] is -1"]),
        ({"text": torch.zeros(3, 4).long()}, ["text[0, 0] is 0", "blank"]),
        ({"encoder_out_lens": torch.tensor([6, 8, 4])}, ["encoder_out_lens[1] is 8", "encoder_out has 7 frames"]),
        ({"text_lengths": torch.tensor([3, 0, 5])}, ["text_lengths[2] is 5", "text holds 4 labels"]),
        ({"predictor_out": torch.zeros(3, 2, 4).double()}, ["text_lengths[0] is 3", "predictor_out", "2"]),
        ({"blank": 7}, ["blank is 7"]),
        ({"reduction": "average"}, ["reduction", "average"]),
    ],
    ids="-".join,
)
@pytest.mark.parametrize("activation", [nn.Tanh(), nn.Hardtanh()], ids=str)
def test_bad_inputs(activation, changes, words):
    joint, (encoder_out, predictor_out) = WenetJoint(activation).double(), encodings()
    given = dict(zip(("text", "encoder_out_lens", "text_lengths"), integers(-1), strict=True))
    with pytest.raises(TransducerError) as caught:
        wenet.fused_loss(joint, **{"encoder_out": encoder_out, "predictor_out": predictor_out, **given, **changes})
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_what_a_hybrid_joint_says_itself():
    joint, inputs, given = WenetJoint(nn.Tanh(), hat=True).double(), encodings(), integers(-1)
    with pytest.raises(TransducerError, match=r"blank is 6, but the joint has hat_joint"):
        wenet.fused_loss(joint, *inputs, *given, blank=6)
    for option in ({"topology": "regular"}, {"dropout": 0.2}):
        with pytest.raises(TransducerError, match="it has hat_joint"):
            wenet.fused_loss(joint, *inputs, *given, **option)
