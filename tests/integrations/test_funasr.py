"""FunASR's joint without the 4-D tensor: against warp_rnnt's loss of its log_softmax, as FunASR calls that."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from samplewise import TransducerError
from samplewise.integrations import funasr, warp_rnnt
from tests.integrations.stand_ins import LinJoint, Swish, agree, encodings, integers


def criterion(joint, encoder_out, decoder_out, target, t_len, u_len, blank, emit):
    """The two lines of its model."""
    log_probs = torch.log_softmax(joint(encoder_out.unsqueeze(2), decoder_out.unsqueeze(1)), dim=-1)
    return warp_rnnt.rnnt_loss(
        log_probs, target, t_len, u_len, reduction="mean", blank=blank, fastemit_lambda=emit, gather=True
    )


@pytest.mark.parametrize("activation", [nn.Tanh(), nn.ReLU(), Swish(), nn.SELU()], ids=str)
@pytest.mark.parametrize("blank", [0, 4])
@pytest.mark.parametrize("emit", [0.0, 0.01])
def test_the_joint(activation, blank, emit):
    joint, inputs = LinJoint(activation).double(), encodings()
    given = [x.int() for x in integers(padding=blank, blank=blank)]
    agree(
        lambda: funasr.fused_loss(joint, *inputs, *given, blank_id=blank, fastemit_lambda=emit),
        lambda: criterion(joint, *inputs, *given, blank, emit),
        joint, *inputs,
    )  # fmt: skip
    joint.calls = 0
    assert funasr.fused_loss(joint, *inputs, *given, blank_id=blank, reduction="none").shape == (3,)
    assert joint.calls == (3 if isinstance(activation, nn.SELU) else 0)


def test_its_loss_is_warp_rnnts():
    assert funasr.rnnt_loss is warp_rnnt.rnnt_loss


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"target": torch.full((3, 4), 7)}, ["target[0, 0] is 7", "7 classes"]),
        ({"t_len": torch.tensor([6, 8, 4])}, ["t_len[1] is 8", "encoder_out has 7 frames"]),
        ({"u_len": torch.tensor([3, 0, 5])}, ["u_len[2] is 5", "target holds 4 labels"]),
        ({"decoder_out": torch.zeros(3, 2, 4).double()}, ["u_len[0] is 3", "decoder_out", "2"]),
        ({"blank_id": 7}, ["blank_id is 7"]),
        ({"reduction": "average"}, ["reduction", "average"]),
    ],
    ids="-".join,
)
@pytest.mark.parametrize("activation", [nn.Tanh(), nn.SELU()], ids=str)
def test_bad_inputs(activation, changes, words):
    joint, (encoder_out, decoder_out) = LinJoint(activation).double(), encodings()
    given = dict(zip(("target", "t_len", "u_len"), integers(0), strict=True))
    with pytest.raises(TransducerError) as caught:
        funasr.fused_loss(joint, **{"encoder_out": encoder_out, "decoder_out": decoder_out, **given, **changes})
    for word in words:
        assert word in str(caught.value), str(caught.value)
