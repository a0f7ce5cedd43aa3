"""SpeechBrain's transducer loss, as of 1.1.2, and its joint (`Transducer_joint`, `transducer_lin`) without the 4-D tensor."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import samplewise
from samplewise.checks import check_logits, check_tensors, check_three_dimensional
from samplewise.choices import Reduction
from samplewise.errors import TransducerError
from samplewise.integrations.arguments import called, usual_reduction
from samplewise.integrations.joints import any_joint_loss, sum_loss

ROUNDED = {
    "logit_lengths": "round(input_lens * frames)", "encoder_lengths": "round(input_lens * frames)",
    "target_lengths": "round(target_lens * labels)", "blank_is": "blank_index is",
}  # fmt: skip


def transducer_loss(
    logits: Tensor, targets: Tensor, input_lens: Tensor, target_lens: Tensor, blank_index: int, reduction: str = "mean",
    use_torchaudio: bool = True,
) -> Tensor:  # fmt: skip
    """`speechbrain.nnet.losses.transducer_loss`: the same arguments and defaults, on any device.

    The numbers are those of its torchaudio branch. Its numba branch divides the value of each loss by its frames, but not the
    gradients; here the value is that of the loss whose gradients these are, whatever `use_torchaudio` says. Logits or their
    log_softmax: the loss normalises, so both have the same loss.

    Args:
        logits: (B, T, U+1, V).
        targets: (B, U) labels, any integers; what lies beyond an utterance's length is never read.
        input_lens, target_lens: (B,) relative lengths: shares of T and of U, the longest 1.0; round(share * T) is the length.
        blank_index: class of the blank.
        reduction: "none" (B,); "sum"; "mean" = sum / B.
        use_torchaudio: of no effect.

    Returns:
        float32 (float64 of float64 logits), a scalar or (B,).

    Raises:
        TransducerError: an argument has the wrong shape, type or range.

    >>> import torch
    >>> from samplewise.integrations.speechbrain import transducer_loss
    >>> logits, targets = torch.randn(2, 10, 4, 7, requires_grad=True), torch.randint(1, 7, (2, 3))
    >>> transducer_loss(logits, targets, torch.tensor([1.0, 0.8]), torch.tensor([1.0, 0.67]), blank_index=0).backward()
    >>> logits.grad.shape
    torch.Size([2, 10, 4, 7])
    """
    usual = usual_reduction(reduction)
    check_logits(logits, packed=False)
    targets, frames, labels = _absolute(logits.shape[1], targets, input_lens, target_lens)
    with called(**ROUNDED):
        return samplewise.rnnt_loss(logits, targets, frames, labels, blank=blank_index, reduction=usual)


class TransducerLoss(nn.Module):
    """`speechbrain.nnet.loss.transducer_loss.TransducerLoss`, which wants a GPU; this one runs anywhere.

    The value is that of the loss, not divided by frames (see `transducer_loss`); the gradients are the same. T and U are (B,)
    lengths in frames and labels.

    >>> import torch
    >>> from samplewise.integrations.speechbrain import TransducerLoss
    >>> TransducerLoss(blank=0)(torch.randn(1, 2, 3, 5), torch.tensor([[1, 2]]), torch.tensor([2]), torch.tensor([2])).shape
    torch.Size([])
    """

    def __init__(self, blank: int = 0, reduction: str = "mean") -> None:
        super().__init__()
        self.blank, self.reduction = blank, usual_reduction(reduction)

    def forward(self, logits: Tensor, labels: Tensor, T: Tensor, U: Tensor) -> Tensor:
        with called(targets="labels", logit_lengths="T", target_lengths="U"):
            return samplewise.rnnt_loss(logits, labels, T, U, blank=self.blank, reduction=self.reduction)


def fused_loss(
    joint_network: Any, transducer_lin: nn.Module, encoder_out: Tensor, decoder_out: Tensor, targets: Tensor,
    input_lens: Tensor, target_lens: Tensor, blank_index: int, reduction: Reduction = "mean", *, fastemit_lambda: float = 0.0,
    **options,
) -> Tensor:  # fmt: skip
    """The transducer loss of a `Transducer_joint` and the output layer after it, without the 4-D tensor.

    In place of transducer_lin(Tjoint(x.unsqueeze(2), h.unsqueeze(1))) and the loss of these logits. Joints that "concat", or
    whose activation is none of LeakyReLU (slope 0.01), GELU (exact), ReLU, Tanh, Sigmoid, SiLU and Identity, go through
    `samplewise.joint_loss`, which has the logits of one utterance at a time.

    Args:
        joint_network: `Transducer_joint`, with `joint`, `joint_network` and `nonlinearity`.
        transducer_lin: the output layer, SpeechBrain's Linear or PyTorch's. Neither of both may be wrapped in
            DistributedDataParallel on its own, as Brain does: `FusedLoss` holds them.
        encoder_out: (B, T, D), what `proj_enc` gives.
        decoder_out: (B, U+1, D), what `proj_dec` gives for the labels with the blank in front.
        targets, input_lens, target_lens, blank_index: as in `transducer_loss`.
        reduction: as in `transducer_loss`, or another of `samplewise.transducer_loss`.
        fastemit_lambda: 0 or more; the value stays that of the loss.
        options: others of `samplewise.transducer_loss`, such as memory_budget.

    Returns:
        float32 (float64 of float64 inputs), a scalar or (B,).

    Raises:
        TransducerError: an argument has the wrong shape, type or range.

    >>> import torch
    >>> from samplewise.integrations.speechbrain import fused_loss
    >>> joint, output = torch.nn.Module(), torch.nn.Linear(16, 7, bias=False)  # joint stands for Transducer_joint()
    >>> joint.joint, joint.joint_network, joint.nonlinearity = "sum", None, torch.nn.LeakyReLU()
    >>> loss = fused_loss(joint, output, torch.randn(2, 10, 16), torch.randn(2, 4, 16), torch.randint(1, 7, (2, 3)),
    ...                   torch.tensor([1.0, 0.8]), torch.tensor([1.0, 0.67]), blank_index=0)
    >>> loss.backward()
    >>> output.weight.grad.shape
    torch.Size([7, 16])
    """
    check_three_dimensional(encoder_out=encoder_out, decoder_out=decoder_out)
    targets, frames, labels = _absolute(encoder_out.shape[1], targets, input_lens, target_lens)
    common = {"blank": blank_index, "reduction": reduction, "fastemit_lambda": fastemit_lambda, **options}
    with called(predictor_out="decoder_out", **ROUNDED):
        whole = _Whole(joint_network, transducer_lin)
        if joint_network.joint != "sum":
            why = f"its joint is {joint_network.joint!r}"
            return any_joint_loss(whole, why, encoder_out, decoder_out, targets, frames, labels, **common)
        return sum_loss(
            whole, (nn.Identity(), nn.Identity()), joint_network.nonlinearity, transducer_lin, encoder_out, decoder_out,
            targets, frames, labels, **common,
        )  # fmt: skip


class FusedLoss(nn.Module):
    """`fused_loss` as a module that holds joint and output layer, for SpeechBrain's `modules`: Brain wraps each of these in
    DistributedDataParallel, which sees no use of parameters but in a module's own forward.

    Searchers go on with `Tjoint` and `transducer_lin` themselves, as references to the same objects.

    >>> import torch
    >>> from samplewise.integrations.speechbrain import FusedLoss
    >>> joint = torch.nn.Module()
    >>> joint.joint, joint.joint_network, joint.nonlinearity = "sum", None, torch.nn.GELU()
    >>> FusedLoss(joint, torch.nn.Linear(16, 7), blank_index=0)(
    ...     torch.randn(2, 10, 16), torch.randn(2, 4, 16), torch.randint(1, 7, (2, 3)), torch.tensor([1.0, 0.8]),
    ...     torch.tensor([1.0, 0.67])).shape
    torch.Size([])
    """

    def __init__(
        self, joint_network: nn.Module, transducer_lin: nn.Module, blank_index: int, reduction: Reduction = "mean", **options
    ) -> None:
        super().__init__()
        self.joint_network, self.transducer_lin = joint_network, transducer_lin
        self.options = {"blank_index": blank_index, "reduction": reduction, **options}

    def forward(
        self, encoder_out: Tensor, decoder_out: Tensor, targets: Tensor, input_lens: Tensor, target_lens: Tensor
    ) -> Tensor:
        return fused_loss(
            self.joint_network, self.transducer_lin, encoder_out, decoder_out, targets, input_lens, target_lens, **self.options
        )


class _Whole(nn.Module):
    """Joint and output layer, from encodings to logits."""

    def __init__(self, joint: nn.Module, output: nn.Module) -> None:
        super().__init__()
        self.joint, self.output = joint, output

    def forward(self, encoder_out: Tensor, decoder_out: Tensor) -> Tensor:
        return self.output(self.joint(encoder_out, decoder_out))


def _absolute(frames: int, targets: Tensor, input_lens: Tensor, target_lens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Targets of a dtype that is ours, and lengths in frames and labels, rounded as SpeechBrain does."""
    check_tensors(targets=targets, input_lens=input_lens, target_lens=target_lens)
    for name, shares in (("input_lens", input_lens), ("target_lens", target_lens)):
        if not shares.is_floating_point():
            raise TransducerError(f"{name} is {shares.dtype}; it must be of relative lengths, floats whose longest is 1.0")
    if targets.dim() != 2:
        raise TransducerError(f"targets must be (B, U), but has shape {tuple(targets.shape)}")
    rounded = ((shares * size).round().long() for shares, size in ((input_lens, frames), (target_lens, targets.shape[1])))
    return (targets.long() if targets.dtype not in (torch.int32, torch.int64) else targets, *rounded)  # type: ignore[return-value]
