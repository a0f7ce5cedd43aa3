"""What every backward of this package refuses, and what becomes of a loss that is not finite."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from samplewise.checks import is_batch_of_upstreams
from samplewise.errors import BackwardError, TransducerError


def one_upstream(upstream: Tensor) -> None:
    """Refuse a batch of upstream gradients at once."""
    if not torch.compiler.is_compiling() and is_batch_of_upstreams(upstream):
        raise BackwardError(
            "is_grads_batched and vectorize are for rnnt_loss and for transducer_loss with reduction='none' alone"
        )


def first_derivative() -> None:
    """Refuse a gradient of a gradient."""
    if torch.is_grad_enabled():
        raise BackwardError(
            "double backward is not supported: the loss gives first derivatives alone (create_graph=True was asked for)"
        )


def once(ctx) -> None:
    """Refuse a gradient of a gradient, and a second backward over the same graph: the first one has used up the gradients."""
    first_derivative()
    if getattr(ctx, "used", False):
        raise BackwardError(
            "this loss was already backpropagated: its gradients are handed out once, so call the loss again instead of "
            'retain_graph=True, or ask for reduction="none", which can be backpropagated again'
        )
    ctx.used = True


def hold(ctx, gradients: Sequence[Tensor]) -> None:
    """Keep finished gradients for the backward.

    Not by `save_for_backward`: its own reference would make autograd copy each of them into `.grad` instead of moving it there.
    """
    ctx.gradients = [gradient.detach() for gradient in gradients]


def release(ctx) -> list[Tensor]:
    """The gradients that `hold` kept; nobody else holds them afterwards."""
    gradients, ctx.gradients = ctx.gradients, None
    return gradients


def scale_once(gradient: Tensor, upstream: Tensor) -> Tensor:
    """upstream times a gradient that nobody else holds: in place, so that no second copy of it is ever made.

    Safe because `once` lets a saved gradient out one time only.
    """
    if type(gradient) is not Tensor:  # while torch.compile traces this, values are functional
        return gradient * upstream
    return gradient.mul_(upstream)


def finish_nonfinite(losses: Tensor, on_nonfinite: str, reason: Callable[[int], str] = lambda b: "") -> Tensor:
    """Keep losses (B,) that are not finite, replace them by zero, or raise an error that names their utterances, and says what
    is wrong with each."""
    if on_nonfinite == "keep":
        return losses
    bad = ~torch.isfinite(losses)
    if on_nonfinite == "zero":
        return losses.masked_fill(bad, 0.0)
    guilty = bad.nonzero()[:, 0].tolist()
    if guilty:
        listed = ", ".join(
            f"utterance {b}: {losses[b].item()}" + (f", {why}" if (why := reason(b)) else "") for b in guilty[:8]
        )
        more = f" and {len(guilty) - 8} more" if len(guilty) > 8 else ""
        raise TransducerError(f"{len(guilty)} of {len(losses)} losses are not finite ({listed}{more})")
    return losses
