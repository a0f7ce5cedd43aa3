"""1ytic/warp-rnnt's `rnnt_loss` (package `warp_rnnt`), as of 0.7.0; it is not needed, nor is a GPU."""

from __future__ import annotations

import torch
from torch import Tensor

import samplewise
from samplewise.checks import check_blank, check_tensors
from samplewise.errors import TransducerError
from samplewise.integrations.arguments import called, usual_reduction


def rnnt_loss(
    log_probs: Tensor, labels: Tensor, frames_lengths: Tensor, labels_lengths: Tensor, average_frames: bool = False,
    reduction: str | None = None, blank: int = 0, gather: bool = False, fastemit_lambda: float = 0.0, compact: bool = False,
) -> Tensor:  # fmt: skip
    """`warp_rnnt.rnnt_loss`: the same arguments, defaults and shapes, on any device.

    What changes: int64, bfloat16, float64 and any strides work; a label that is the blank is an error. `gather` is of no
    effect: nothing but blanks and labels is ever read. What stays: FastEmit makes what the gradients owe to labels
    1 + fastemit_lambda times as large, and leaves the value alone.

    Args:
        log_probs: (B, T, U+1, V) log-probabilities: whoever has logits takes their log_softmax first, or better
            `samplewise.rnnt_loss` of the logits, which keeps no second such tensor. With `compact` (sum_b T_b (U_b + 1), V),
            one utterance after the other.
        labels: (B, U), int32 or int64; what lies beyond an utterance's length is never read. With `compact` (sum_b U_b,).
        frames_lengths: (B,) frames, 1..T.
        labels_lengths: (B,) labels, 0..U.
        average_frames: divide each loss by its T_b, before the reduction.
        reduction: None or "none" (B,); "sum"; "mean" = sum / B.
        blank: class of the blank, 0..V-1.
        gather: taken, and not needed.
        fastemit_lambda: 0 or more.
        compact: as said above.

    Returns:
        float32 (float64 of float64 log_probs), (B,) or a scalar. Gradients reach blanks and labels alone.

    Raises:
        TransducerError: an argument has the wrong shape, type or range.

    >>> import torch
    >>> from samplewise.integrations.warp_rnnt import rnnt_loss
    >>> log_probs = torch.randn(2, 9, 4, 7).log_softmax(3)
    >>> frames, lengths = torch.tensor([9, 5]), torch.tensor([3, 1])
    >>> rnnt_loss(log_probs, torch.randint(1, 7, (2, 3)), frames, lengths, average_frames=True, reduction="mean").shape
    torch.Size([])
    >>> packed = torch.randn(9 * 4 + 5 * 2, 7).log_softmax(1)
    >>> rnnt_loss(packed, torch.tensor([1, 5, 2, 4]), frames, lengths, compact=True).shape
    torch.Size([2])
    """
    usual = usual_reduction("none" if reduction is None else reduction)
    check_tensors(log_probs=log_probs, labels=labels, frames_lengths=frames_lengths, labels_lengths=labels_lengths)
    if log_probs.dim() != (2 if compact else 4):
        form = "(sum_b T_b (U_b + 1), V)" if compact else "(B, T, U+1, V)"
        raise TransducerError(f"compact is {compact}, but log_probs has shape {tuple(log_probs.shape)}; it must be {form}")
    if blank != check_blank(blank, log_probs.shape[-1]):
        raise TransducerError(f"blank is {blank}; it must be in 0..{log_probs.shape[-1] - 1}")
    labels = _padded(labels, labels_lengths) if compact else labels
    with called(logits="log_probs", targets="labels", logit_lengths="frames_lengths", target_lengths="labels_lengths"):
        costs = samplewise.rnnt_loss(
            log_probs, labels, frames_lengths, labels_lengths, blank=blank, reduction="none", fused_log_softmax=False,
            fastemit_lambda=fastemit_lambda,
        )  # fmt: skip
    if average_frames:
        costs = costs / frames_lengths.to(costs)
    if usual == "sum":
        return costs.sum()
    return costs.mean() if usual == "mean" else costs


def _padded(labels: Tensor, lengths: Tensor) -> Tensor:
    """Labels (sum_b U_b,), or that and a last dimension of 1, as (B, U)."""
    if lengths.is_floating_point():
        raise TransducerError(f"labels_lengths is {lengths.dtype}; it must be int32 or int64")
    sizes = lengths.flatten().tolist()
    if labels.numel() != labels.shape[:1].numel() or labels.numel() != sum(sizes) or min(sizes, default=-1) < 0:
        raise TransducerError(
            f"compact is True, but labels has shape {tuple(labels.shape)} and labels_lengths are {sizes}, which add up to "
            f"{sum(sizes)}: there must be one label each"
        )
    return torch.nn.utils.rnn.pad_sequence(labels.flatten().split(sizes), batch_first=True)
