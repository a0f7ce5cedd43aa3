"""The package `warprnnt_numba`, as of 0.4.1; it is not needed."""

from __future__ import annotations

from torch import Tensor, nn

from samplewise.integrations.acts import loss_of_acts
from samplewise.integrations.arguments import usual_reduction


def rnnt_loss(
    acts: Tensor, labels: Tensor, act_lens: Tensor, label_lens: Tensor, blank: int = 0, reduction: str = "mean",
    fastemit_lambda: float = 0.0, clamp: float = 0.0,
) -> Tensor:  # fmt: skip
    """`warprnnt_numba.rnnt_loss`: the same arguments, defaults, numbers and shapes.

    What changes: int64 lengths, lengths below T, bfloat16 and any strides work; a label that is the blank is an error. What
    stays: FastEmit makes the value and what the gradients owe to labels 1 + fastemit_lambda times as large, so that the
    gradients are not those of the value; a clamp is the last thing that happens to the gradient on a CPU, after the reduction
    and the upstream gradient, and the first, of each utterance, on a GPU.

    Args:
        acts: (B, T, U+1, V) logits; or packed (sum_b T_b (U_b + 1), V).
        labels: (B, U), int32 or int64; what lies beyond an utterance's length is never read.
        act_lens: (B,) frames, 1..T.
        label_lens: (B,) labels, 0..U.
        blank: class of the blank.
        reduction: "none" (B,); "sum" (1,); "mean" (1,) = sum / B.
        fastemit_lambda: 0 or more.
        clamp: if positive, each element of the gradient is bounded to -clamp..clamp.

    Returns:
        float32 (float64 of float64 acts), (B,) or (1,).

    Raises:
        TransducerError: an argument has the wrong shape, type or range.

    >>> import torch
    >>> from samplewise.integrations.warprnnt_numba import rnnt_loss
    >>> acts = torch.randn(2, 9, 4, 7, requires_grad=True)
    >>> rnnt_loss(acts, torch.randint(1, 7, (2, 3)), torch.tensor([9, 5]), torch.tensor([3, 1]), clamp=0.1).backward()
    >>> acts.grad.abs().max() <= 0.1
    tensor(True)
    """
    return loss_of_acts(
        acts, labels, act_lens, label_lens, blank=blank, reduction=reduction, fastemit_lambda=fastemit_lambda, clamp=clamp,
        scale_value=True,
    )  # fmt: skip


class RNNTLossNumba(nn.Module):
    """`warprnnt_numba.RNNTLossNumba`: `rnnt_loss` with its options fixed.

    >>> import torch
    >>> from samplewise.integrations.warprnnt_numba import RNNTLossNumba
    >>> RNNTLossNumba(reduction="sum")(torch.randn(2, 9, 4, 7), torch.randint(1, 7, (2, 3)), torch.tensor([9, 5]),
    ...                                torch.tensor([3, 1])).shape
    torch.Size([1])
    """

    def __init__(self, blank: int = 0, reduction: str = "mean", fastemit_lambda: float = 0.0, clamp: float = -1) -> None:
        super().__init__()
        self.blank, self.reduction, self.fastemit_lambda, self.clamp = blank, usual_reduction(reduction), fastemit_lambda, clamp

    def forward(self, acts: Tensor, labels: Tensor, act_lens: Tensor, label_lens: Tensor) -> Tensor:
        return rnnt_loss(acts, labels, act_lens, label_lens, self.blank, self.reduction, self.fastemit_lambda, self.clamp)
