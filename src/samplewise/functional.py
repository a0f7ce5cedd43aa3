"""The losses as functions: check, choose, run the op, reduce. No mathematics here."""

from __future__ import annotations

import torch
from torch import Tensor

from samplewise import checks
from samplewise.errors import TransducerError
from samplewise.ops.problem import BIAS, ENCODER, PREDICTOR, WEIGHT
from samplewise.ops.transducer import Options, transducer_each, transducer_sum
from samplewise.plan.budget import parse_budget


def transducer_loss(
    encoder_out: Tensor, predictor_out: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor,
    encoder_lengths: Tensor, target_lengths: Tensor, *, blank: int = 0, activation: str = "tanh", reduction: str = "mean",
    method: str = "auto", memory_budget: int | str | None = None, tolerance: float | None = None, vocabulary: object = None,
    fastemit_lambda: float = 0.0, generator: torch.Generator | None = None, on_nonfinite: str = "keep",
) -> Tensor:  # fmt: skip
    """Exact transducer (RNN-T) loss of a joint network z = act(encoder_out + predictor_out), logits = z weight^T + bias.

    loss_b = -log sum over all alignments of prod P(symbol | t, u). The 4-D logits are never built.

    Args:
        encoder_out: (B, T, D) acoustic encodings, already projected to the joint dimension D.
        predictor_out: (B, U+1, D) label encodings, already projected; row u has seen u labels.
        weight: (V, D) output layer; blank is one of the V classes.
        bias: (V,) or None.
        targets: (B, U) labels, int32 or int64. What lies beyond an utterance's length is never read.
        encoder_lengths: (B,) frames of each utterance, 1..T, int32 or int64.
        target_lengths: (B,) labels of each utterance, 0..U, int32 or int64.
        blank: class of the blank, -V..V-1.
        activation: "tanh", "relu", "sigmoid", "gelu", "silu" or "identity".
        reduction: "none" (B,); "sum"; "mean" = sum / B; "mean_volume" = sum / sum of target lengths; "mean_target" = mean of
            loss_b / max(1, U_b).
        method: "auto", "tiled", "samplewise", "batched" or "guided"; see docs/methods.md. All give the same loss and gradients.
        memory_budget: bytes, or text such as "512MiB", for the workspace beyond inputs, outputs and gradients. The default is
            64 MiB on a CPU, or what the largest utterance needs.
        tolerance: share of each utterance's occupancy that the gradients may leave out; the default is the machine epsilon of
            the dtype of the matrix products, 0.0 leaves out nothing.
        on_nonfinite: what to do with an utterance whose loss is infinite or NaN: "keep" it in the loss, count it as "zero", or
            "raise". Its gradients are zero in any case, and the others' untouched.

    Returns:
        float32 loss (float64 for float64 inputs), a scalar or (B,).

    Raises:
        TransducerError: an argument has the wrong shape, type or range; the message names the utterance and the numbers.

    Memory: workspace bounded by `memory_budget`; beyond it only the gradients themselves. Time: N D V multiply-adds for the
    losses of N = sum_b T_b (U_b + 1) nodes, and three times that for the nodes that carry the occupancy. A backward can be run
    once. Source: Graves 2012 (arXiv 1211.3711); arXiv 2211.16270, Algorithm 1.

    >>> import torch, samplewise
    >>> encoder_out, predictor_out = torch.randn(2, 50, 16), torch.randn(2, 11, 16)
    >>> weight, bias = torch.randn(30, 16, requires_grad=True), torch.zeros(30)
    >>> loss = samplewise.transducer_loss(
    ...     encoder_out, predictor_out, weight, bias, targets=torch.randint(1, 30, (2, 10)),
    ...     encoder_lengths=torch.tensor([50, 42]), target_lengths=torch.tensor([10, 7]))
    >>> loss.backward()
    >>> weight.grad.shape
    torch.Size([30, 16])
    """
    checks.check_choice("activation", activation, checks.ACTIVATIONS)
    checks.check_choice("reduction", reduction, checks.REDUCTIONS)
    checks.check_choice("method", method, checks.METHODS)
    checks.check_choice("on_nonfinite", on_nonfinite, checks.NONFINITE)
    checks.check_encodings(encoder_out, predictor_out, weight, bias)
    checks.check_integers(targets, encoder_lengths, target_lengths, encoder_out.shape[0])
    if tolerance is not None and not 0.0 <= tolerance < 1.0:
        raise TransducerError(f"tolerance is {tolerance}; it must be in 0..1, 1 excluded")
    if vocabulary is not None or method == "guided" or fastemit_lambda != 0.0:
        raise NotImplementedError("vocabulary, method='guided' and fastemit_lambda are not there yet")
    options = Options(
        checks.check_blank(blank, weight.shape[0]), activation, method, parse_budget(memory_budget) or 0,
        -1.0 if tolerance is None else float(tolerance), _compute_dtype(encoder_out, predictor_out, weight, bias), on_nonfinite,
    )  # fmt: skip
    inputs = (encoder_out, predictor_out, weight, bias, targets, encoder_lengths, target_lengths)
    wanted = _wanted(encoder_out, predictor_out, weight, bias)
    if reduction == "none":
        return transducer_each(*inputs, wanted, *options)
    loss_weights = reduction_weights(reduction, target_lengths)
    return transducer_sum(*inputs, loss_weights, wanted, *options)[0]


def reduction_weights(reduction: str, target_lengths: Tensor) -> Tensor:
    """The weights (B,) float64 that make a reduction of losses a weighted sum."""
    batch = target_lengths.shape[0]
    ones = torch.ones(batch, dtype=torch.float64, device=target_lengths.device)
    if reduction == "mean":
        return ones / batch
    if reduction == "mean_volume":
        return ones / target_lengths.sum().clamp(min=1)
    if reduction == "mean_target":
        return ones / (batch * target_lengths.clamp(min=1))
    return ones


def _wanted(*tensors: Tensor | None) -> int:
    """Which of encoder_out, predictor_out, weight and bias need a gradient, as bits."""
    if not torch.is_grad_enabled():
        return 0
    bits = (ENCODER, PREDICTOR, WEIGHT, BIAS)
    return sum(bit for bit, tensor in zip(bits, tensors, strict=True) if tensor is not None and tensor.requires_grad)


def _compute_dtype(encoder_out: Tensor, predictor_out: Tensor, weight: Tensor, bias: Tensor | None) -> torch.dtype:
    """The dtype of the matrix products: that of the inputs, or autocast's, which leaves float64 alone."""
    kind = weight.device.type
    autocast = torch.is_autocast_enabled(kind) and weight.dtype != torch.float64
    checks.check_dtypes(autocast, encoder_out=encoder_out, predictor_out=predictor_out, weight=weight, bias=bias)
    return torch.get_autocast_dtype(kind) if autocast else weight.dtype
