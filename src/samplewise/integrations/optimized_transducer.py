"""csukuangfj/optimized_transducer's `transducer_loss` and `TransducerLoss`, as of 1.4; it is not needed."""

from __future__ import annotations

from torch import Tensor, nn

import samplewise
from samplewise.checks import check_tensors
from samplewise.errors import TransducerError
from samplewise.integrations.arguments import usual_reduction
from samplewise.topology import modified

ONE_SYMBOL = modified(label_ends=False)


def transducer_loss(
    logits: Tensor, targets: Tensor, logit_lengths: Tensor, target_lengths: Tensor, blank: int, from_log_softmax: bool,
    one_sym_per_frame: bool = False, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """`optimized_transducer.transducer_loss`: the same arguments, defaults and numbers, of packed logits.

    What changes: the logits stay as they were, where optimized_transducer writes their gradient over them, so that the gradient
    takes memory of its own; reduction "none", int64, float64, bfloat16 and strides work; a label that is the blank, for which
    its gradients are wrong, is an error. Whoever has the encodings should call `samplewise.transducer_loss`, which makes
    neither the logits nor their gradient.

    Args:
        logits: (sum_b T_b (U_b + 1), V), one utterance after the other, in each the labels fastest.
        targets: (B, U), int32 or int64; what lies beyond an utterance's length is never read.
        logit_lengths: (B,) frames.
        target_lengths: (B,) labels.
        blank: class of the blank.
        from_log_softmax: True if `logits` are log-probabilities; then blanks and labels alone get gradients.
        one_sym_per_frame: a label goes on one frame, too, and the last symbol is a blank:
            `topology.modified(label_ends=False)`. An utterance with T_b <= U_b has no path, and an infinite loss.
        reduction: "sum"; "mean" = sum / B; or "none" (B,).

    Returns:
        float32 (float64 of float64 logits), a scalar or (B,).

    Raises:
        TransducerError: an argument has the wrong shape, type or range.

    >>> import torch
    >>> from samplewise.integrations.optimized_transducer import transducer_loss
    >>> logits = torch.randn(9 * 4 + 5 * 2, 7, requires_grad=True)
    >>> transducer_loss(logits, torch.randint(1, 7, (2, 3)), torch.tensor([9, 5]), torch.tensor([3, 1]), blank=0,
    ...                 from_log_softmax=False).backward()
    >>> logits.grad.shape
    torch.Size([46, 7])
    """
    usual = usual_reduction(reduction)
    check_tensors(logits=logits)
    if logits.dim() != 2:
        raise TransducerError(
            f"logits has shape {tuple(logits.shape)}; it must be (sum_b T_b (U_b + 1), V), one utterance after the other"
        )
    return samplewise.rnnt_loss(
        logits, targets, logit_lengths, target_lengths, blank=blank, reduction=usual,
        fused_log_softmax=not from_log_softmax, topology=ONE_SYMBOL if one_sym_per_frame else "regular",
    )  # fmt: skip


class TransducerLoss(nn.Module):
    """`optimized_transducer.TransducerLoss`: `transducer_loss` with blank and reduction fixed.

    >>> import torch
    >>> from samplewise.integrations.optimized_transducer import TransducerLoss
    >>> loss = TransducerLoss(blank=0, reduction="sum")
    >>> loss(torch.randn(46, 7), torch.randint(1, 7, (2, 3)), torch.tensor([9, 5]), torch.tensor([3, 1]), False).shape
    torch.Size([])
    """

    def __init__(self, blank: int, reduction: str = "mean") -> None:
        super().__init__()
        self.blank, self.reduction = blank, usual_reduction(reduction)

    def forward(
        self, logits: Tensor, targets: Tensor, logit_lengths: Tensor, target_lengths: Tensor, from_log_softmax: bool,
        one_sym_per_frame: bool = False,
    ) -> Tensor:  # fmt: skip
        return transducer_loss(
            logits, targets, logit_lengths, target_lengths, self.blank, from_log_softmax, one_sym_per_frame, self.reduction
        )
