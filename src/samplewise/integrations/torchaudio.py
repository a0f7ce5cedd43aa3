"""torchaudio's `functional.rnnt_loss` and `transforms.RNNTLoss`, as of 2.11.1; torchaudio itself is not needed."""

from __future__ import annotations

from torch import Tensor, nn

import samplewise
from samplewise.integrations.arguments import usual_reduction


def rnnt_loss(
    logits: Tensor, targets: Tensor, logit_lengths: Tensor, target_lengths: Tensor, blank: int = -1, clamp: float = -1,
    reduction: str = "mean", fused_log_softmax: bool = True,
) -> Tensor:  # fmt: skip
    """`torchaudio.functional.rnnt_loss`: the same arguments, defaults and numbers.

    What changes: gradients are more exact, for the lattice's sums are float64 within; what torchaudio refuses works, which are
    int64 lengths and targets, lengths all below T, bfloat16, float64 and any strides; a target that is the blank, for which
    torchaudio's gradients are wrong, is an error, and so is a length of 0.

    Args:
        logits: (B, T, U+1, V); or packed (sum_b T_b (U_b + 1), V), without padding, which torchaudio has not.
        targets: (B, U), int32 or int64; what lies beyond an utterance's length is never read.
        logit_lengths: (B,) frames, 1..T.
        target_lengths: (B,) labels, 0..U.
        blank: class of the blank, the last one by default.
        clamp: if positive, each element of an utterance's gradient is bounded to -clamp..clamp, before the reduction.
        reduction: "none" (B,); "sum"; "mean" = sum / B.
        fused_log_softmax: False if `logits` are log-probabilities; then blanks and labels alone get gradients.

    Returns:
        float32 (float64 of float64 logits), a scalar or (B,).

    Raises:
        TransducerError: an argument has the wrong shape, type or range.

    >>> import torch
    >>> from samplewise.integrations.torchaudio import rnnt_loss
    >>> logits, targets = torch.randn(2, 9, 4, 7, requires_grad=True), torch.randint(0, 6, (2, 3), dtype=torch.int32)
    >>> rnnt_loss(logits, targets, torch.tensor([9, 5]), torch.tensor([3, 1])).backward()
    >>> logits.grad.shape
    torch.Size([2, 9, 4, 7])
    """
    return samplewise.rnnt_loss(
        logits, targets, logit_lengths, target_lengths, blank=blank, clamp=clamp,
        reduction=usual_reduction(reduction),
        fused_log_softmax=fused_log_softmax,
    )  # fmt: skip


class RNNTLoss(nn.Module):
    """`torchaudio.transforms.RNNTLoss`: `rnnt_loss` with its options fixed.

    >>> import torch
    >>> from samplewise.integrations.torchaudio import RNNTLoss
    >>> RNNTLoss(reduction="none")(torch.randn(2, 9, 4, 7), torch.randint(0, 6, (2, 3)), torch.tensor([9, 5]),
    ...                            torch.tensor([3, 1])).shape
    torch.Size([2])
    """

    def __init__(self, blank: int = -1, clamp: float = -1.0, reduction: str = "mean", fused_log_softmax: bool = True) -> None:
        super().__init__()
        self.blank, self.clamp, self.reduction, self.fused_log_softmax = (
            blank,
            clamp,
            usual_reduction(reduction),
            fused_log_softmax,
        )

    def forward(self, logits: Tensor, targets: Tensor, logit_lengths: Tensor, target_lengths: Tensor) -> Tensor:
        return rnnt_loss(
            logits, targets, logit_lengths, target_lengths, self.blank, self.clamp, self.reduction, self.fused_log_softmax
        )
