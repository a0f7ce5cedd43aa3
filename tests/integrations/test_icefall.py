"""`joiner_loss`: the exact loss of an icefall Joiner, against k2's loss of all of its logits."""

from __future__ import annotations

import math
import runpy
from pathlib import Path

import pytest
import torch
from torch import nn

from samplewise import TransducerError
from samplewise.integrations import k2
from samplewise.integrations.icefall import joiner_loss
from samplewise.integrations.k2_arguments import REDUCTIONS, RNNT_TYPES

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


class Joiner(nn.Module):
    """What icefall's is."""

    def __init__(self, output_linear=None):
        super().__init__()
        self.encoder_proj, self.decoder_proj = nn.Linear(6, 8), nn.Linear(5, 8)
        self.output_linear = nn.Linear(8, 11) if output_linear is None else output_linear

    def forward(self, encoder_out, decoder_out, project_input=True):
        if project_input:
            encoder_out, decoder_out = self.encoder_proj(encoder_out), self.decoder_proj(decoder_out)
        return self.output_linear(torch.tanh(encoder_out + decoder_out))


class ScaledLinear(nn.Linear):
    """icefall's layer of 2022: what it computes with is its weight times exp(weight_scale)."""

    def __init__(self):
        super().__init__(8, 11)
        self.weight_scale, self.bias_scale = nn.Parameter(torch.tensor(0.3)), nn.Parameter(torch.tensor(-0.2))

    def get_weight(self):
        return self.weight * self.weight_scale.exp()

    def get_bias(self):
        return self.bias * self.bias_scale.exp()

    def forward(self, x):
        return nn.functional.linear(x, self.get_weight(), self.get_bias())


class LoRA(nn.Linear):
    def forward(self, x):
        return super().forward(x) + x.sum()


def make(joiner, B=3, T=9, S=4):
    joiner = joiner.double()
    encoder_out, decoder_out = torch.randn(B, T, 6), torch.randn(B, S + 1, 5)
    symbols, boundary = torch.randint(1, 11, (B, S)), torch.tensor([[0, 0, 4, 9], [0, 0, 0, 5], [0, 0, 3, 7]])
    return joiner, encoder_out.double(), decoder_out.double(), symbols, boundary


def compare(joiner, encoder_out, decoder_out, symbols, boundary, hat=False, project_input=True, **options):
    """Values and the gradients of everything."""
    leaves = [encoder_out.requires_grad_(), decoder_out.requires_grad_(), *joiner.parameters()]
    if not project_input:
        encoder_out, decoder_out = joiner.encoder_proj(encoder_out), joiner.decoder_proj(decoder_out)
    got = joiner_loss(
        joiner, encoder_out, decoder_out, symbols, 0, boundary, use_hat_loss=hat, project_input=project_input, **options
    )
    logits = joiner(encoder_out[:, :, None], decoder_out[:, None], project_input)
    if hat:
        ranges = torch.arange(logits.shape[2]).expand(logits.shape[:3])
        right = k2.rnnt_loss_pruned(logits, symbols, ranges, 0, boundary, use_hat_loss=True, **options)
    else:
        right = k2.rnnt_loss(logits, symbols, 0, boundary, **options)
    torch.testing.assert_close(got, right, rtol=1e-12, atol=0)
    upstream = torch.linspace(0.5, 2, max(1, got.numel()), dtype=got.dtype).view(got.shape)
    for one, two in zip(*(torch.autograd.grad(x, leaves, upstream, retain_graph=True) for x in (got, right)), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("rnnt_type", RNNT_TYPES)
def test_it_is_k2s_loss_of_all_logits(rnnt_type, reduction):
    compare(*make(Joiner()), rnnt_type=rnnt_type, reduction=reduction, delay_penalty=0.1)


@pytest.mark.parametrize("joiner", [Joiner(ScaledLinear()), Joiner(nn.Linear(8, 11, bias=False))])
def test_output_layers(joiner):
    compare(*make(joiner))


def test_hat_and_projected_inputs():
    compare(*make(Joiner()), hat=True, reduction="sum")
    compare(*make(Joiner()), project_input=False)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("delay_penalty", [0.0, 0.2])
def test_begins(delay_penalty, reduction):
    joiner, encoder_out, decoder_out, symbols, _ = make(Joiner())
    boundary = torch.tensor([[1, 2, 4, 9], [0, 3, 3, 7], [2, 0, 2, 5]])
    symbols[0, 0] = symbols[2, 3] = -1  # nobody's
    compare(joiner, encoder_out, decoder_out, symbols, boundary, delay_penalty=delay_penalty, reduction=reduction)


def test_options_of_transducer_loss():
    joiner, encoder_out, decoder_out, symbols, boundary = make(Joiner())
    given = (joiner, encoder_out, decoder_out, symbols)
    total = joiner_loss(*given, 0, boundary, reduction="sum")
    torch.testing.assert_close(joiner_loss(*given, 0, boundary, normalizer=7, method="tiled"), total / 7, rtol=1e-12, atol=0)
    boundary[:, 1] = 1
    late = {"delay_penalty": 0.3, "boundary": boundary}
    total = joiner_loss(*given, 0, reduction="sum", **late)
    torch.testing.assert_close(joiner_loss(*given, 0, normalizer=7, **late), total / 7, rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"joiner": nn.Linear(3, 3)}, ["joiner, a Linear", "no encoder_proj", "no output_linear"]),
        ({"joiner": Joiner(LoRA(8, 11))}, ["output_linear is a LoRA", "joint_loss"]),
        ({"joiner": Joiner(nn.Sequential(nn.Linear(8, 11)))}, ["output_linear is a Sequential"]),
        ({"encoder_out": torch.zeros(3, 9)}, ["encoder_out must be"]),
        ({"decoder_out": torch.zeros(3, 4, 5)}, ["decoder_out has 4 rows", "4 symbols", "5"]),
        ({"decoder_out": torch.zeros(2, 5, 5)}, ["decoder_out has 2 utterances", "3"]),
        ({"boundary": torch.tensor([[0, 0, 4, 9], [0, 3, 4, 3], [0, 0, 4, 9]])}, ["boundary[1]", "0 frames"]),
        ({"boundary": torch.tensor([[0, 0, 4, 10]] * 3)}, ["boundary[0] is [0, 0, 4, 10]", "encoder_out"]),
        ({"symbols": torch.zeros(3, 4).long()}, ["symbols[0, 0] is 0", "termination_symbol"]),
        ({"termination_symbol": 11}, ["termination_symbol is 11"]),
        ({"rnnt_type": "modified", "use_hat_loss": True}, ["rnnt_type is 'modified'", "use_hat_loss"]),
        ({"reduction": "mean_volume"}, ["reduction is 'mean_volume'"]),
        ({"delay_penalty": math.inf}, ["delay_penalty is inf"]),
    ],
)
def test_bad_inputs(changes, words):
    joiner, encoder_out, decoder_out, symbols, boundary = make(Joiner())
    given = {"joiner": joiner, "encoder_out": encoder_out, "decoder_out": decoder_out, "symbols": symbols, "boundary": boundary}
    with pytest.raises(TransducerError) as caught:
        joiner_loss(**{**given, **changes})
    for word in words:
        assert word in str(caught.value), str(caught.value)


@pytest.mark.parametrize("name", ["k2_loss", "icefall_loss"])
def test_examples(name, capsys):
    found = runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    losses = found["losses"]
    assert len(losses) > 3 and losses[-1] < 0.9 * losses[0]
    assert f"{losses[-1]:.2f}" in capsys.readouterr().out
