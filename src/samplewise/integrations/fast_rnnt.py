"""fast_rnnt's losses, call-compatible with fast_rnnt 1.3: `import samplewise.integrations.fast_rnnt as fast_rnnt`.

They are those of `samplewise.integrations.k2`, where everything is said; four signatures differ. Beside what differs from k2:
empty symbols, and in "modified" and "constrained" fewer frames than symbols, work; and a backward leaves the occupation
probabilities that were returned as they are (fast_rnnt multiplies them in place by the upstream gradient).
"""

from __future__ import annotations

import importlib
from typing import Any

from torch import Tensor

from samplewise.integrations import k2
from samplewise.integrations.arguments import UsualReduction
from samplewise.integrations.k2 import (
    do_rnnt_pruning,
    get_rnnt_logprobs,
    get_rnnt_logprobs_smoothed,
    get_rnnt_prune_ranges,
    mutual_information_recursion,
    rnnt_loss_simple,
    rnnt_loss_smoothed,
)
from samplewise.integrations.k2_arguments import Pair, RnntType, loss_of, with_logits, with_pruned
from samplewise.ops import arc_scores

__all__ = [
    "do_rnnt_pruning",
    "get_rnnt_logprobs",
    "get_rnnt_logprobs_joint",
    "get_rnnt_logprobs_pruned",
    "get_rnnt_logprobs_smoothed",
    "get_rnnt_prune_ranges",
    "mutual_information_recursion",
    "rnnt_loss",
    "rnnt_loss_pruned",
    "rnnt_loss_simple",
    "rnnt_loss_smoothed",
]


def rnnt_loss(
    logits: Tensor, symbols: Tensor, termination_symbol: int, boundary: Tensor | None = None, rnnt_type: RnntType = "regular",
    delay_penalty: float = 0.0, reduction: UsualReduction = "mean", return_grad: bool = False,
) -> Tensor | tuple[Tensor, Pair]:  # fmt: skip
    """`samplewise.integrations.k2.rnnt_loss`; with return_grad also (px_grad, py_grad), for which px and py are made.

    >>> import torch
    >>> from samplewise.integrations import fast_rnnt
    >>> logits, symbols = torch.randn(2, 9, 4, 7), torch.tensor([[1, 2, 3], [4, 5, 6]])
    >>> loss, (px_grad, py_grad) = fast_rnnt.rnnt_loss(logits, symbols, 0, return_grad=True)
    >>> px_grad.shape, py_grad.shape
    (torch.Size([2, 3, 10]), torch.Size([2, 4, 9]))
    """
    if not return_grad:
        return k2.rnnt_loss(logits, symbols, termination_symbol, boundary, rnnt_type, delay_penalty, reduction)
    call = with_logits(logits, symbols, termination_symbol, boundary, rnnt_type)
    scores = arc_scores.of_logits(logits, call.symbols, call.blank, call.places)
    return loss_of(scores, call, rnnt_type, delay_penalty, reduction, return_grad)


def rnnt_loss_pruned(
    logits: Tensor, symbols: Tensor, ranges: Tensor, termination_symbol: int, boundary: Tensor | None = None,
    rnnt_type: RnntType = "regular", delay_penalty: float = 0.0, reduction: UsualReduction = "mean", return_grad: bool = False,
) -> Tensor | tuple[Tensor, Pair]:  # fmt: skip
    """`samplewise.integrations.k2.rnnt_loss_pruned`; with return_grad also (px_grad, py_grad)."""
    call, ranges = with_pruned(logits, symbols, ranges, termination_symbol, boundary, rnnt_type)
    scores = arc_scores.of_pruned(logits, call.symbols, ranges, call.blank, call.places)
    loss, grads = loss_of(scores, call, rnnt_type, delay_penalty, reduction, return_grad)
    return (loss, grads) if return_grad else loss


def get_rnnt_logprobs_joint(
    logits: Tensor, symbols: Tensor, termination_symbol: int, boundary: Tensor | None = None, rnnt_type: RnntType = "regular"
) -> Pair:
    """`samplewise.integrations.k2.get_rnnt_logprobs_joint`."""
    return k2.get_rnnt_logprobs_joint(logits, symbols, termination_symbol, rnnt_type, boundary)


def get_rnnt_logprobs_pruned(
    logits: Tensor, symbols: Tensor, ranges: Tensor, termination_symbol: int, boundary: Tensor | None = None,
    rnnt_type: RnntType = "regular",
) -> Pair:  # fmt: skip
    """`samplewise.integrations.k2.get_rnnt_logprobs_pruned`."""
    return k2.get_rnnt_logprobs_pruned(logits, symbols, ranges, termination_symbol, boundary, rnnt_type)


def __getattr__(name: str) -> Any:
    """What fast_rnnt has besides."""
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module("fast_rnnt"), name)
    except ImportError as error:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}, and fast_rnnt is not installed") from error
