"""Joints with the attributes of the toolkits', called as these are, and how a fused loss is compared with their logits."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


class Counting(nn.Module):
    """It counts how often scores were made, and the nodes of the largest."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.most = 0, 0

    def counted(self, scores: Tensor) -> Tensor:
        self.calls, self.most = self.calls + 1, max(self.most, scores[..., 0].numel())
        return scores


class LinJoint(Counting):
    """ESPnet's and FunASR's."""

    def __init__(self, activation: nn.Module, encoder=5, decoder=4, joint=6, classes=7) -> None:
        super().__init__()
        self.lin_enc, self.lin_dec = nn.Linear(encoder, joint), nn.Linear(decoder, joint, bias=False)
        self.joint_activation, self.lin_out = activation, nn.Linear(joint, classes)

    def forward(self, enc_out: Tensor, dec_out: Tensor) -> Tensor:
        return self.counted(self.lin_out(self.joint_activation(self.lin_enc(enc_out) + self.lin_dec(dec_out))))


class TransducerJoint(Counting):
    """SpeechBrain's, without projections and output layer."""

    def __init__(self, nonlinearity: type[nn.Module] = nn.LeakyReLU, joint="sum", joint_network=None) -> None:
        super().__init__()
        self.joint, self.joint_network, self.nonlinearity = joint, joint_network, nonlinearity()

    def forward(self, input_TN: Tensor, input_PN: Tensor) -> Tensor:
        if self.joint == "sum":
            both = input_TN + input_PN
        else:
            both = torch.cat(torch.broadcast_tensors(input_TN, input_PN), -1)
            both = both if self.joint_network is None else self.joint_network(both)
        return self.counted(self.nonlinearity(both))


class Linear(nn.Module):
    """SpeechBrain's."""

    def __init__(self, inputs: int, outputs: int, bias=True, max_norm=None) -> None:
        super().__init__()
        self.w, self.max_norm, self.combine_dims = nn.Linear(inputs, outputs, bias=bias), max_norm, False

    def forward(self, x: Tensor) -> Tensor:
        return self.w(x)


class WenetJoint(Counting):
    """WeNet's, softmax and hybrid."""

    def __init__(
        self, activation: nn.Module, encoder=5, predictor=4, joint=6, classes=7, before=True, after=False, hat=False,
        dropout=0.0, of_tokens: nn.Module | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.activatoin, self.hat_joint = activation, hat
        self.enc_ffn = nn.Linear(encoder, joint) if before else None
        self.pred_ffn = nn.Linear(predictor, joint) if before else None
        self.post_ffn = nn.Linear(joint, joint) if after else None
        self.ffn_out = None if hat else nn.Linear(joint, classes)
        self.blank_pred = self.token_pred = None
        if hat:
            self.blank_pred = nn.Sequential(nn.Tanh(), nn.Dropout(dropout), nn.Linear(joint, 1), nn.LogSigmoid())
            self.token_pred = nn.Sequential(of_tokens or nn.Tanh(), nn.Dropout(dropout), nn.Linear(joint, classes - 1))

    def forward(self, enc_out: Tensor, pred_out: Tensor) -> Tensor:
        if self.enc_ffn is not None:
            enc_out, pred_out = self.enc_ffn(enc_out), self.pred_ffn(pred_out)
        if enc_out.dim() == 3:
            enc_out, pred_out = enc_out[:, :, None], pred_out[:, None]
        both = enc_out + pred_out
        both = both if self.post_ffn is None else self.post_ffn(both)
        if not self.hat_joint:
            return self.counted(self.ffn_out(self.activatoin(both)))
        of_blank = self.blank_pred(both)
        rest = (1.0 - of_blank.exp()).clamp(min=1e-6).log()
        return self.counted(torch.cat((of_blank, rest + self.token_pred(both).log_softmax(-1)), -1))


class Swish(nn.Module):
    """What toolkits have of their own: x sigmoid(x), or ESPnet's beta x sigmoid(x)."""

    def __init__(self, beta: float = 1.0) -> None:
        super().__init__()
        self.beta = beta

    def forward(self, x: Tensor) -> Tensor:
        return self.beta * x * torch.sigmoid(x)


FRAMES, LABELS = (6, 1, 4), (3, 0, 2)


def encodings(encoder=5, decoder=4, dtype=torch.float64, pad=(1, 2)):
    """encoder_out (B, T, E) and decoder_out (B, U+1, P), with rows beyond what is needed."""
    g = torch.Generator().manual_seed(5)
    shapes = (len(FRAMES), max(FRAMES) + pad[0], encoder), (len(FRAMES), max(LABELS) + 1 + pad[1], decoder)
    return [torch.randn(shape, generator=g, dtype=dtype).requires_grad_() for shape in shapes]


def integers(padding: int, blank=0, classes=7):
    """Targets (B, U) whose padding is said, and both lengths."""
    g = torch.Generator().manual_seed(6)
    labels = torch.tensor([c for c in range(classes) if c != blank])
    targets = labels[torch.randint(len(labels), (len(FRAMES), max(LABELS) + 1), generator=g)]
    lengths = torch.tensor(LABELS)
    beyond = torch.arange(targets.shape[1])[None] >= lengths[:, None]
    return targets.masked_fill(beyond, padding), torch.tensor(FRAMES), lengths


def agree(fused: Callable[[], Tensor], by_logits: Callable[[], Tensor], module: nn.Module, *inputs: Tensor) -> Tensor:
    """Both have the same loss and the same gradients of inputs and of all parameters of the module; the loss."""
    leaves = [*inputs, *module.parameters()]
    found = []
    for loss in (fused(), by_logits()):
        upstream = torch.linspace(0.5, 2, loss.numel(), dtype=loss.dtype).view_as(loss)
        found.append((loss.detach(), torch.autograd.grad(loss, leaves, upstream, allow_unused=True)))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-10, atol=0)
    for got, right in zip(found[0][1], found[1][1], strict=True):
        assert (got is None or not got.any()) if right is None else got is not None
        if right is not None:
            torch.testing.assert_close(got, right, rtol=1e-8, atol=1e-11)
    return found[0][0]
