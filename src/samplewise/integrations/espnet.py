"""ESPnet2's transducers, as of 202511: the losses that its two models call, and its joint network without the 4-D tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

import samplewise
from samplewise.choices import Reduction, TopologyName
from samplewise.integrations.acts import loss_of_acts
from samplewise.integrations.arguments import usual_reduction, with_emitted_value
from samplewise.integrations.joints import joint_network_loss
from samplewise.topology import Topology, multi_blank


class RNNTLoss(nn.Module):
    """`warprnnt_pytorch.RNNTLoss` of the fork of warp-transducer that ESPnet2 installs, with FastEmit.

    Shapes, errors and what works here alone: `samplewise.integrations.warp_transducer`. FastEmit makes what the gradients owe
    to labels 1 + fastemit_lambda times as large, and leaves the value alone.

    >>> import torch
    >>> from samplewise.integrations.espnet import RNNTLoss
    >>> joint_out, target = torch.randn(2, 9, 4, 7, requires_grad=True), torch.randint(1, 7, (2, 3), dtype=torch.int32)
    >>> RNNTLoss(fastemit_lambda=0.01)(joint_out, target, torch.tensor([9, 5]), torch.tensor([3, 1])).backward()
    >>> joint_out.grad.shape
    torch.Size([2, 9, 4, 7])
    """

    def __init__(self, blank: int = 0, reduction: str = "mean", fastemit_lambda: float = 0.0) -> None:
        super().__init__()
        self.blank, self.reduction, self.fastemit_lambda = blank, usual_reduction(reduction), fastemit_lambda

    def forward(self, acts: Tensor, labels: Tensor, act_lens: Tensor, label_lens: Tensor) -> Tensor:
        return loss_of_acts(
            acts, labels, act_lens, label_lens, blank=self.blank, reduction=self.reduction,
            fastemit_lambda=self.fastemit_lambda,
        )  # fmt: skip


class MultiblankRNNTLossNumba(nn.Module):
    """ESPnet2's multi-blank loss, which runs on a GPU alone; this one runs anywhere.

    Big blanks lie before the blank, the first of `big_blank_durations` next to it, as ESPnet2 puts them into the token list.
    FastEmit scales the value, too, as in `samplewise.integrations.warprnnt_numba`; a clamp is applied as there.

    >>> import torch
    >>> from samplewise.integrations.espnet import MultiblankRNNTLossNumba
    >>> loss = MultiblankRNNTLossNumba(blank=2, big_blank_durations=[2, 4], sigma=0.05)
    >>> loss(torch.randn(2, 9, 4, 7), torch.randint(3, 7, (2, 3)), torch.tensor([9, 5]), torch.tensor([3, 1])).shape
    torch.Size([1])
    """

    def __init__(
        self, blank: int, big_blank_durations: Sequence[int], reduction: str = "mean", fastemit_lambda: float = 0.0,
        clamp: float = -1, sigma: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.topology = multi_blank(big_blank_durations, sigma=sigma)
        self.big_blank_durations, self.sigma = tuple(big_blank_durations), sigma
        self.blank, self.reduction, self.fastemit_lambda, self.clamp = blank, usual_reduction(reduction), fastemit_lambda, clamp

    def forward(self, acts: Tensor, labels: Tensor, act_lens: Tensor, label_lens: Tensor) -> Tensor:
        return loss_of_acts(
            acts, labels, act_lens, label_lens, blank=self.blank, reduction=self.reduction,
            fastemit_lambda=self.fastemit_lambda, clamp=self.clamp, topology=self.topology, scale_value=True,
        )  # fmt: skip


def fused_loss(
    joint_network: Any, encoder_out: Tensor, decoder_out: Tensor, target: Tensor, t_len: Tensor, u_len: Tensor, *,
    blank_id: int = 0, reduction: Reduction = "mean", fastemit_lambda: float = 0.0, big_blank_durations: Sequence[int] = (),
    sigma: float = 0.05, **options,
) -> Tensor:  # fmt: skip
    """The transducer loss of a `JointNetwork` and what `get_transducer_task_io` returns, without the 4-D tensor.

    In place of joint_network(encoder_out.unsqueeze(2), decoder_out.unsqueeze(1)) and the criterion. Numbers are those of the
    loss of these logits; a joint whose activation is none of tanh, relu, leaky_relu (slope 0.01), swish (beta 1) and
    identity, or whose `lin_out` has LoRA or hooks, goes through `samplewise.joint_loss`, which has the logits of one utterance
    at a time.

    Args:
        joint_network: a module with `lin_enc`, `lin_dec`, `joint_activation` and `lin_out`.
        encoder_out: (B, T, D_enc), what the encoder gives.
        decoder_out: (B, U+1, D_dec), what the decoder gives for `decoder_in`.
        target: (B, U) labels; what lies beyond an utterance's length (the blank, or ignore_id) is never read.
        t_len, u_len: (B,) frames and labels of each utterance.
        blank_id: class of the blank.
        reduction: "mean" = sum / B; "sum"; "none" (B,); or another of `transducer_loss`.
        fastemit_lambda: 0 or more; the value stays that of the loss.
        big_blank_durations, sigma: of a multi-blank model, `transducer_multi_blank_durations` and `_sigma`.
        options: others of `samplewise.transducer_loss`, such as memory_budget.

    Returns:
        float32 (float64 of float64 inputs), a scalar or (B,).

    Raises:
        TransducerError: an argument has the wrong shape, type or range.

    >>> import torch
    >>> from samplewise.integrations.espnet import fused_loss
    >>> joint_network = torch.nn.Module()  # stands for espnet2.asr_transducer.joint_network.JointNetwork(7, 8, 6, 16)
    >>> joint_network.lin_enc, joint_network.lin_dec = torch.nn.Linear(8, 16), torch.nn.Linear(6, 16, bias=False)
    >>> joint_network.joint_activation, joint_network.lin_out = torch.nn.Tanh(), torch.nn.Linear(16, 7)
    >>> fused_loss(joint_network, torch.randn(2, 9, 8), torch.randn(2, 4, 6), torch.randint(1, 7, (2, 3)),
    ...            torch.tensor([9, 5]), torch.tensor([3, 1])).backward()
    >>> joint_network.lin_out.weight.grad.shape
    torch.Size([7, 16])
    """
    topology: Topology | TopologyName = multi_blank(big_blank_durations, sigma=sigma) if big_blank_durations else "regular"
    return joint_network_loss(
        joint_network, encoder_out, decoder_out, target, t_len, u_len, blank=blank_id, reduction=reduction,
        fastemit_lambda=fastemit_lambda, topology=topology, **options,
    )  # fmt: skip


def calc_transducer_loss(
    model: Any, encoder_out: Tensor, encoder_out_lens: Tensor, labels: Tensor
) -> tuple[Tensor, float | None, float | None]:
    """`ESPnetASRModel._calc_transducer_loss` without the 4-D tensor, to be put in its place:
    `ESPnetASRModel._calc_transducer_loss = calc_transducer_loss`.

    Everything is the model's own: decoder, joint network, blank_id, ignore_id, its criterion's reduction and FastEmit, of a
    multi-blank model the durations, sigma, clamp (before the reduction) and 1 + lambda times the value, and the error
    calculator in evaluation.

    Args:
        model: the ESPnetASRModel.
        encoder_out: (B, T, D_enc).
        encoder_out_lens: (B,) frames.
        labels: (B, U), padded with model.ignore_id at their ends.

    Returns:
        The loss, a scalar; and character and word error rate, which are None in training.

    Raises:
        TransducerError: padding stands before a label, or as in `fused_loss`.

    >>> import torch
    >>> from samplewise.integrations.espnet import RNNTLoss, calc_transducer_loss
    >>> model, joint_network = torch.nn.Module(), torch.nn.Module()  # stand for ESPnetASRModel and JointNetwork
    >>> joint_network.lin_enc, joint_network.lin_dec = torch.nn.Linear(8, 16), torch.nn.Linear(6, 16, bias=False)
    >>> joint_network.joint_activation, joint_network.lin_out = torch.nn.Tanh(), torch.nn.Linear(16, 7)
    >>> model.joint_network, model.decoder, model.criterion_transducer = joint_network, torch.nn.Embedding(7, 6), RNNTLoss()
    >>> model.decoder.set_device = lambda device: None
    >>> model.blank_id, model.ignore_id, model.error_calculator_trans = 0, -1, None
    >>> labels = torch.tensor([[3, 5, 2], [4, -1, -1]])
    >>> loss, cer, wer = calc_transducer_loss(model, torch.randn(2, 9, 8), torch.tensor([9, 5]), labels)
    >>> loss.shape, cer, wer
    (torch.Size([]), None, None)
    """
    u_len = samplewise.label_lengths(labels, model.ignore_id)
    target = labels.masked_fill(labels == model.ignore_id, model.blank_id)
    decoder_in = torch.cat((target.new_full((len(target), 1), model.blank_id), target), 1)  # (B, U+1)
    model.decoder.set_device(encoder_out.device)
    criterion = model.criterion_transducer
    durations, weight = tuple(getattr(criterion, "big_blank_durations", ())), getattr(criterion, "fastemit_lambda", 0.0)
    options = {"clamp": criterion.clamp} if durations and getattr(criterion, "clamp", -1.0) > 0 else {}
    loss = fused_loss(
        model.joint_network, encoder_out, model.decoder(decoder_in), target, encoder_out_lens, u_len, blank_id=model.blank_id,
        reduction=getattr(criterion, "reduction", None) or "mean", fastemit_lambda=weight, big_blank_durations=durations,
        sigma=getattr(criterion, "sigma", 0.0), **options,
    )  # fmt: skip
    loss = with_emitted_value(loss, weight) if durations else loss
    if model.training or model.error_calculator_trans is None:
        return loss, None, None
    return loss, *model.error_calculator_trans(encoder_out, target)
