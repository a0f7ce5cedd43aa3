"""The losses whose arguments are called acts, labels, act_lens and label_lens: warp-transducer and what descends from it."""

from __future__ import annotations

import torch
from torch import Tensor

import samplewise
from samplewise.checks import check_clamp
from samplewise.choices import TopologyName
from samplewise.integrations.arguments import called, usual_reduction, with_emitted_value
from samplewise.topology import Topology


def loss_of_acts(
    acts: Tensor, labels: Tensor, act_lens: Tensor, label_lens: Tensor, *, blank: int, reduction: str,
    fastemit_lambda: float = 0.0, clamp: float = -1.0, topology: Topology | TopologyName = "regular", scale_value: bool = False,
) -> Tensor:  # fmt: skip
    """The loss of logits acts (B, T, U+1, V), as these libraries return it: (B,), or (1,) where the losses are added up.

    Of labels' gradients FastEmit makes 1 + fastemit_lambda times as much; with `scale_value` the loss is as many times as
    large, which its gradients then are not.
    """
    usual = usual_reduction(reduction)
    clamp = check_clamp(clamp)
    if clamp > 0 and isinstance(acts, Tensor) and not acts.is_cuda:
        acts, clamp = _clamped_last(acts, clamp), -1.0
    with called(logits="acts", targets="labels", logit_lengths="act_lens", target_lengths="label_lens"):
        loss = samplewise.rnnt_loss(
            acts, labels, act_lens, label_lens, blank=blank, clamp=clamp, reduction=usual, fastemit_lambda=fastemit_lambda,
            topology=topology,
        )  # fmt: skip
    return (with_emitted_value(loss, fastemit_lambda) if scale_value else loss).reshape(-1)


def _clamped_last(acts: Tensor, clamp: float) -> Tensor:
    """The same, whose gradient is bounded when all else is done: after the upstream gradient and the reduction."""
    if not (acts.requires_grad and torch.is_grad_enabled()):
        return acts
    same = acts.view_as(acts)
    same.register_hook(lambda gradient: gradient.clamp(-clamp, clamp))
    return same
