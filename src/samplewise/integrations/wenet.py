"""WeNet's transducer, as of December 2025: its loss, which is torchaudio's, and its joint without the 4-D tensor."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

import samplewise
from samplewise.choices import Activation, Reduction
from samplewise.errors import TransducerError
from samplewise.integrations.arguments import called
from samplewise.integrations.joints import activation_of, any_joint_loss, joint_reason
from samplewise.integrations.torchaudio import rnnt_loss

__all__ = ["compute_loss", "fused_loss", "rnnt_loss"]


def fused_loss(
    joint: Any, encoder_out: Tensor, predictor_out: Tensor, text: Tensor, encoder_out_lens: Tensor, text_lengths: Tensor, *,
    blank: int = 0, reduction: Reduction = "mean", fastemit_lambda: float = 0.0, **options,
) -> Tensor:  # fmt: skip
    """The transducer loss of a `TransducerJoint`, without the 4-D tensor.

    In place of joint(encoder_out, predictor_out) and torchaudio's loss of that, whose numbers these are. `post_ffn`, a linear
    layer on the sum, is applied to both summands, W a + c and W b. With `hat_joint` the loss is that of `topology="hat"`;
    WeNet's floor of 1e-6 under 1 - P(blank) is left out, and in training both heads share the mask of dropout, each feature of
    which is drawn as in WeNet. A joint of another activation than tanh, relu, swish and gelu, or with LoRA or hooks on its
    output layer, or a `hat_joint` whose `hat_activation` is not tanh or whose dropouts differ, goes through
    `samplewise.joint_loss`, which has the logits of one utterance at a time.

    Args:
        joint: a module with `enc_ffn`, `pred_ffn`, `post_ffn` (each may be None), `activatoin` (so spelt) and `ffn_out`, or
            `hat_joint`, `blank_pred` and `token_pred`.
        encoder_out: (B, T, E), what the encoder gives.
        predictor_out: (B, U+1, P), what the predictor gives for the text with the blank in front.
        text: (B, U) labels; what lies beyond an utterance's length (ignore_id) is never read.
        encoder_out_lens, text_lengths: (B,) frames and labels of each utterance.
        blank: class of the blank; 0 with `hat_joint`, which puts it there.
        reduction: "mean" = sum / B; "sum"; "none" (B,); or another of `samplewise.transducer_loss`.
        fastemit_lambda: 0 or more; the value stays that of the loss.
        options: others of `samplewise.transducer_loss`, such as memory_budget or delay_penalty.

    Returns:
        float32 (float64 of float64 inputs), a scalar or (B,).

    Raises:
        TransducerError: an argument has the wrong shape, type or range.

    >>> import torch
    >>> from samplewise.integrations.wenet import fused_loss
    >>> joint = torch.nn.Module()  # stands for wenet.transducer.joint.TransducerJoint(7, 8, 6, 16)
    >>> joint.enc_ffn, joint.pred_ffn, joint.post_ffn = torch.nn.Linear(8, 16), torch.nn.Linear(6, 16), None
    >>> joint.hat_joint, joint.activatoin, joint.ffn_out = False, torch.nn.Tanh(), torch.nn.Linear(16, 7)
    >>> text = torch.tensor([[3, 5, 2], [4, -1, -1]])
    >>> fused_loss(joint, torch.randn(2, 9, 8), torch.randn(2, 4, 6), text, torch.tensor([9, 5]),
    ...            torch.tensor([3, 1])).backward()
    >>> joint.ffn_out.weight.grad.shape
    torch.Size([7, 16])
    """
    integers = (text, encoder_out_lens, text_lengths)
    common = {"blank": blank, "reduction": reduction, "fastemit_lambda": fastemit_lambda, **options}
    with called(targets="text", encoder_lengths="encoder_out_lens", target_lengths="text_lengths"):
        if joint.hat_joint and options.keys() & {"topology", "dropout"}:
            raise TransducerError("topology and dropout are what the joint says: it has hat_joint")
        why, activation, layers = _head(joint, blank)
        if why:
            return any_joint_loss(joint, why, encoder_out, predictor_out, *integers, **common)
        if joint.hat_joint:
            common |= {"topology": "hat", "dropout": _dropout(joint)}
        weight = torch.cat([layer.weight for layer in layers]) if len(layers) > 1 else layers[0].weight
        bias = torch.cat([layer.bias for layer in layers]) if len(layers) > 1 else layers[0].bias
        return samplewise.transducer_loss(
            *_summands(joint, encoder_out, predictor_out), weight, bias, *integers, activation=activation, **common
        )


def compute_loss(
    model: Any, encoder_out: Tensor, encoder_out_lens: Tensor, encoder_mask: Tensor, text: Tensor, text_lengths: Tensor,
    steps: int = 0,
) -> Tensor:  # fmt: skip
    """`Transducer._compute_loss` without the 4-D tensor, to be put in its place: `Transducer._compute_loss = compute_loss`.

    Everything is the model's own: predictor, joint, blank, ignore_id. A model with `enable_k2` has two losses that are not this
    one, and linear layers for them, so it is refused: make it without.

    Raises:
        TransducerError: the model has `enable_k2`, or as in `fused_loss`.

    >>> import torch
    >>> from samplewise.integrations.wenet import compute_loss
    >>> model, joint = torch.nn.Module(), torch.nn.Module()  # stand for Transducer and TransducerJoint
    >>> joint.enc_ffn, joint.pred_ffn, joint.post_ffn = torch.nn.Linear(8, 16), torch.nn.Linear(6, 16), None
    >>> joint.hat_joint, joint.activatoin, joint.ffn_out = False, torch.nn.Tanh(), torch.nn.Linear(16, 7)
    >>> model.joint, model.predictor, model.blank, model.ignore_id = joint, torch.nn.Embedding(7, 6), 0, -1
    >>> model.simple_am_proj = model.simple_lm_proj = None
    >>> text, frames, lengths = torch.tensor([[3, 5, 2], [4, -1, -1]]), torch.tensor([9, 5]), torch.tensor([3, 1])
    >>> compute_loss(model, torch.randn(2, 9, 8), frames, torch.ones(2, 1, 9), text, lengths).shape
    torch.Size([])
    """
    if model.simple_lm_proj is not None or model.simple_am_proj is not None:
        raise TransducerError(
            "the model has enable_k2, with layers simple_am_proj and simple_lm_proj that the exact loss does not use: set"
            " enable_k2 to false in its configuration"
        )
    labels = text.masked_fill(text == model.ignore_id, model.blank)
    start = labels.new_full((len(labels), 1), model.blank)
    predictor_out = model.predictor(torch.cat((start, labels), 1))  # (B, U+1, P)
    return fused_loss(model.joint, encoder_out, predictor_out, text, encoder_out_lens, text_lengths, blank=model.blank)


def _summands(joint: Any, encoder_out: Tensor, predictor_out: Tensor) -> tuple[Tensor, Tensor]:
    """The two of which the joint's activation sees the sum."""
    if joint.enc_ffn is not None and joint.pred_ffn is not None:
        encoder_out, predictor_out = joint.enc_ffn(encoder_out), joint.pred_ffn(predictor_out)
    if joint.post_ffn is not None:
        encoder_out = linear(encoder_out, joint.post_ffn.weight, joint.post_ffn.bias)
        predictor_out = linear(predictor_out, joint.post_ffn.weight)
    return encoder_out, predictor_out


def _head(joint: Any, blank: int) -> tuple[str, Activation, list[nn.Linear]]:
    """Why the joint does not fit, "" if it does; the activation; the layers whose rows are the output layer's."""
    before = () if joint.post_ffn is None else (joint.post_ffn,)
    if joint.hat_joint and blank != 0:
        raise TransducerError(f"blank is {blank}, but the joint has hat_joint, which puts the blank first: it must be 0")
    of_blank: Any = joint.blank_pred if joint.hat_joint else None
    of_tokens: Any = joint.token_pred if joint.hat_joint else None
    activation, layers = joint.activatoin, [joint.ffn_out]
    if joint.hat_joint:
        activation, layers = of_tokens[0], [of_blank[2], of_tokens[2]]
    why = joint_reason(joint, activation, *layers, *before)
    if not why and joint.hat_joint:
        if (activation_of(of_blank[0]), activation_of(activation)) != ("tanh", "tanh"):
            why = f"its blank has {of_blank[0]}, but its tokens have {activation}"
        elif of_blank[1].p != of_tokens[1].p:
            why = f"its dropouts are {of_blank[1].p} and {of_tokens[1].p}"
        elif any(layer.bias is None for layer in layers):
            why = "its heads have no bias"
    return why, activation_of(activation) or "identity", layers


def _dropout(joint: Any) -> float:
    dropout = joint.token_pred[1]
    return dropout.p if dropout.training else 0.0
