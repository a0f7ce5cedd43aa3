"""FunASR's transducer, as of its `Transducer` model of August 2026: its loss, and its joint network without the 4-D tensor."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from samplewise.choices import Reduction
from samplewise.integrations.joints import joint_network_loss
from samplewise.integrations.warp_rnnt import rnnt_loss

__all__ = ["fused_loss", "rnnt_loss"]  # its criterion is warp_rnnt's, called with log_softmax(joint_out) and gather=True


def fused_loss(
    joint_network: Any, encoder_out: Tensor, decoder_out: Tensor, target: Tensor, t_len: Tensor, u_len: Tensor, *,
    blank_id: int = 0, reduction: Reduction = "mean", fastemit_lambda: float = 0.0, **options,
) -> Tensor:  # fmt: skip
    """The transducer loss of a `JointNetwork` and what `get_transducer_task_io` returns, without the 4-D tensor, on any device.

    In place of joint_network(encoder_out.unsqueeze(2), decoder_out.unsqueeze(1)), its log_softmax, and warp_rnnt's loss of
    that, whose numbers these are. A joint whose activation is none of tanh, relu and swish, or whose `lin_out` has LoRA or
    hooks, goes through `samplewise.joint_loss`, which has the logits of one utterance at a time.

    Args:
        joint_network: a module with `lin_enc`, `lin_dec`, `joint_activation` and `lin_out`.
        encoder_out: (B, T, D_enc), what the encoder gives.
        decoder_out: (B, U+1, D_dec), what the decoder gives for `decoder_in`.
        target: (B, U) labels; what lies beyond an utterance's length (the blank) is never read.
        t_len, u_len: (B,) frames and labels of each utterance.
        blank_id: class of the blank.
        reduction: "mean" = sum / B, which FunASR asks for; "sum"; "none" (B,); or another of `samplewise.transducer_loss`.
        fastemit_lambda: 0 or more: what the gradients owe to labels is 1 + lambda times as large, the value is as without.
        options: others of `samplewise.transducer_loss`, such as memory_budget.

    Returns:
        float32 (float64 of float64 inputs), a scalar or (B,).

    Raises:
        TransducerError: an argument has the wrong shape, type or range.

    >>> import torch
    >>> from samplewise.integrations.funasr import fused_loss
    >>> joint_network = torch.nn.Module()  # stands for funasr.models.transducer.joint_network.JointNetwork(7, 8, 6, 16)
    >>> joint_network.lin_enc, joint_network.lin_dec = torch.nn.Linear(8, 16), torch.nn.Linear(6, 16, bias=False)
    >>> joint_network.joint_activation, joint_network.lin_out = torch.nn.Tanh(), torch.nn.Linear(16, 7)
    >>> fused_loss(joint_network, torch.randn(2, 9, 8), torch.randn(2, 4, 6), torch.randint(1, 7, (2, 3)),
    ...            torch.tensor([9, 5]), torch.tensor([3, 1])).backward()
    >>> joint_network.lin_dec.weight.grad.shape
    torch.Size([16, 6])
    """
    return joint_network_loss(
        joint_network, encoder_out, decoder_out, target, t_len, u_len, blank=blank_id, reduction=reduction,
        fastemit_lambda=fastemit_lambda, **options,
    )  # fmt: skip
