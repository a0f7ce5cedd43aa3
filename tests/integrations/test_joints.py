"""What of a joint is recognised, and what goes another way."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import samplewise
from samplewise import TransducerError
from samplewise.integrations.joints import _say_once, activation_of, linear_of, sum_loss
from samplewise.kernels.activations import TABLE
from tests.integrations.stand_ins import Linear, LinJoint, Swish, agree, encodings, integers

KNOWN = [
    nn.Tanh(),
    nn.ReLU(),
    nn.ReLU(inplace=True),
    nn.Sigmoid(),
    nn.SiLU(),
    nn.GELU(),
    nn.LeakyReLU(),
    nn.Identity(),
    Swish(),
]
UNKNOWN = [
    nn.Hardtanh(), nn.GELU(approximate="tanh"), nn.LeakyReLU(0.2), nn.SELU(), nn.Mish(), nn.PReLU(), nn.Softplus(), Swish(1.5),
    nn.ReLU6(), torch.tanh, "tanh", None, nn.Sequential(nn.Tanh()),
]  # fmt: skip


@pytest.mark.parametrize("module", KNOWN, ids=str)
def test_known_activations_are_what_they_are_called(module):
    x = torch.linspace(-40, 40, 801, dtype=torch.float64)
    name = activation_of(module)
    assert name is not None
    torch.testing.assert_close(TABLE[name].function(x), module(x.clone()), rtol=1e-14, atol=0)


@pytest.mark.parametrize("module", UNKNOWN, ids=lambda module: getattr(module, "__name__", None) or type(module).__name__)
def test_unknown_activations(module):
    assert activation_of(module) is None


def hooked(module):
    module.register_forward_hook(lambda *_: None)
    return module


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class Renamed(nn.Linear):
    pass


class Lora(nn.Module):
    """A low-rank update beside a layer, as PEFT wraps it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base_layer, self.a, self.b = base, nn.Linear(base.in_features, 2, bias=False), nn.Linear(2, base.out_features)

    @property
    def weight(self):
        return self.base_layer.weight

    @property
    def bias(self):
        return self.base_layer.bias

    def forward(self, x):
        return self.base_layer(x) + self.b(self.a(x))


def test_layers():
    plain, brain = nn.Linear(6, 7), Linear(6, 7)
    assert linear_of(plain) is plain and linear_of(brain) is brain.w
    renamed, normed = Renamed(6, 7), parametrizations.weight_norm(nn.Linear(6, 7))
    assert linear_of(renamed) is renamed and linear_of(normed) is normed
    for other in (Doubled(6, 7), Lora(plain), hooked(nn.Linear(6, 7)), hooked(Linear(6, 7)), Linear(6, 7, max_norm=1.0), None):
        assert linear_of(other) is None
    replaced = nn.Linear(6, 7)
    replaced.forward = lambda x: x
    assert linear_of(replaced) is None


def fused(joint, encoder_out, decoder_out, **options):
    return sum_loss(
        joint, (joint.lin_enc, joint.lin_dec), joint.joint_activation, joint.lin_out, encoder_out, decoder_out, *integers(0),
        blank=0, **{"reduction": "mean", **options},
    )  # fmt: skip


def by_logits(joint, encoder_out, decoder_out, **options):
    logits = joint(encoder_out[:, :, None], decoder_out[:, None])
    return samplewise.rnnt_loss(logits, *integers(0), blank=0, **options)


@pytest.mark.parametrize("module", KNOWN, ids=str)
def test_known_joints_make_no_scores(module):
    joint, inputs = LinJoint(module).double(), encodings()
    joint.calls = 0
    fused(joint, *inputs)
    assert joint.calls == 0
    agree(lambda: fused(joint, *inputs, reduction="none"), lambda: by_logits(joint, *inputs, reduction="none"), joint, *inputs)


@pytest.mark.parametrize("kind", ["activation", "lora", "hook", "joint", "subclass"])
def test_other_joints_make_those_of_an_utterance(kind, caplog):
    joint, inputs = LinJoint(nn.Hardtanh() if kind == "activation" else nn.Tanh()).double(), encodings()
    joint.lin_out = {"lora": Lora, "hook": hooked}.get(kind, lambda x: x)(joint.lin_out).double()
    if kind == "subclass":
        joint.lin_out = Doubled(6, 7).double()
    if kind == "joint":
        joint.register_forward_hook(lambda module, inputs, scores: 3 * scores)
    _say_once.cache_clear()
    with caplog.at_level(logging.WARNING, "samplewise"):
        for _ in range(2):
            fused(joint, *inputs)
    assert joint.calls == 6 and joint.most == 24  # utterances of 6 x 4, 1 x 1 and 4 x 3 nodes, twice
    assert len(caplog.records) == 1 and "joint_loss" in caplog.text
    agree(lambda: fused(joint, *inputs, reduction="none"), lambda: by_logits(joint, *inputs, reduction="none"), joint, *inputs)


def test_weights_made_of_others_get_gradients():
    joint, inputs = LinJoint(nn.Tanh()).double(), encodings()
    joint.lin_out = parametrizations.weight_norm(joint.lin_out)
    agree(lambda: fused(joint, *inputs), lambda: by_logits(joint, *inputs), joint, *inputs)
    joint.calls = 0
    fused(joint, *inputs)
    assert joint.calls == 0


def test_options_reach_the_loss():
    joint, inputs = LinJoint(nn.Tanh()).double(), encodings()
    plain = fused(joint, *inputs, reduction="sum")
    assert torch.equal(fused(joint, *inputs, normalizer=4.0), plain / 4)
    assert fused(joint, *inputs, reduction="sum", delay_penalty=0.1) != plain
    torch.testing.assert_close(fused(joint, *inputs, reduction="sum", method="tiled", memory_budget="4MiB"), plain)
    other = LinJoint(nn.Hardtanh()).double()
    assert torch.equal(fused(other, *inputs, normalizer=4.0), fused(other, *inputs, reduction="sum") / 4)
    with pytest.raises(TransducerError, match=r"clamp is an option of transducer_loss.*Hardtanh"):
        fused(other, *inputs, clamp=0.1)


def test_a_wrapped_layer_is_refused():
    joint = LinJoint(nn.Tanh()).double()
    wrapped = nn.parallel.DistributedDataParallel.__new__(nn.parallel.DistributedDataParallel)
    nn.Module.__init__(wrapped)
    wrapped.module = joint.lin_out
    joint.lin_out = wrapped
    with pytest.raises(TransducerError, match=r"Linear is wrapped in DistributedDataParallel.*wrap a module that holds"):
        fused(joint, *encodings())


def test_under_autocast():
    joint, inputs = LinJoint(nn.Tanh()), encodings(dtype=torch.float32)
    plain = fused(joint, *inputs)
    with torch.autocast("cpu", torch.bfloat16):
        half = fused(joint, *inputs)
    assert half.dtype == torch.float32 and half != plain
    torch.testing.assert_close(half, plain, rtol=0.02, atol=0)
    half.backward()
    assert all(parameter.grad is not None for parameter in joint.parameters())
