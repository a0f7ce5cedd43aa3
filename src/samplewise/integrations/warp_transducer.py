"""The PyTorch binding of HawkAaron/warp-transducer (`warprnnt_pytorch`), as of f546575; it is not needed."""

from __future__ import annotations

from torch import Tensor, nn

from samplewise.integrations.acts import loss_of_acts
from samplewise.integrations.arguments import usual_reduction


def rnnt_loss(
    acts: Tensor, labels: Tensor, act_lens: Tensor, label_lens: Tensor, blank: int = 0, reduction: str = "mean"
) -> Tensor:
    """`warprnnt_pytorch.rnnt_loss`: the same arguments, defaults, numbers and shapes.

    What changes: int64, lengths below T, bfloat16, float16 and any strides work, and so do labels of width 0, for which the
    binding returns 0; a label that is the blank is an error; the gradient is not made before backward. Its own documentation
    says that "mean" divides by label lengths; its code divides by B, and so do we.

    Args:
        acts: (B, T, U+1, V) logits: the softmax is part of the loss, on any device. Or packed (sum_b T_b (U_b + 1), V).
        labels: (B, U), int32 or int64; what lies beyond an utterance's length is never read.
        act_lens: (B,) frames, 1..T.
        label_lens: (B,) labels, 0..U.
        blank: class of the blank.
        reduction: "none" (B,); "sum" (1,); "mean" (1,) = sum / B.

    Returns:
        float32 (float64 of float64 acts), (B,) or (1,).

    Raises:
        TransducerError: an argument has the wrong shape, type or range.

    >>> import torch
    >>> from samplewise.integrations.warp_transducer import rnnt_loss
    >>> acts = torch.randn(2, 9, 4, 7, requires_grad=True)
    >>> loss = rnnt_loss(acts, torch.randint(1, 7, (2, 3)), torch.tensor([9, 5]), torch.tensor([3, 1]))
    >>> loss.backward()
    >>> loss.shape, acts.grad.shape
    (torch.Size([1]), torch.Size([2, 9, 4, 7]))
    """
    return loss_of_acts(acts, labels, act_lens, label_lens, blank=blank, reduction=reduction)


class RNNTLoss(nn.Module):
    """`warprnnt_pytorch.RNNTLoss`: `rnnt_loss` with its options fixed.

    >>> import torch
    >>> from samplewise.integrations.warp_transducer import RNNTLoss
    >>> RNNTLoss(reduction="none")(torch.randn(2, 9, 4, 7), torch.randint(1, 7, (2, 3)), torch.tensor([9, 5]),
    ...                            torch.tensor([3, 1])).shape
    torch.Size([2])
    """

    def __init__(self, blank: int = 0, reduction: str = "mean") -> None:
        super().__init__()
        self.blank, self.reduction = blank, usual_reduction(reduction)

    def forward(self, acts: Tensor, labels: Tensor, act_lens: Tensor, label_lens: Tensor) -> Tensor:
        return rnnt_loss(acts, labels, act_lens, label_lens, self.blank, self.reduction)
