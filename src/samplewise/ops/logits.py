"""The transducer loss of logits that already exist, (B, T, U+1, V), as PyTorch operators.

Beyond the logits three floats a node are kept for the backward, which writes the gradient straight into its output.
"""

from __future__ import annotations

import torch
from torch import Tensor

from samplewise.checks import Lengths, check_values
from samplewise.kernels.backend import backend_for
from samplewise.kernels.layout import padded_table
from samplewise.ops.guards import finish_nonfinite, first_derivative
from samplewise.ops.problem import real_dtype, wide_dtype

ROWS = 4096  # rows of logits that a kernel is given at a time


def _lengths(logits: Tensor, targets: Tensor, logit_lengths: Tensor, target_lengths: Tensor, blank: int) -> Lengths:
    return check_values(
        targets, logit_lengths, target_lengths, frames=logits.shape[1], tokens=logits.shape[2], classes=logits.shape[3],
        blank=blank, encoder="logits", predictor="logits", lengths_name="logit_lengths",
    )  # fmt: skip


def _next_labels(targets: Tensor, labels: int, width: int, device: torch.device) -> Tensor:
    """The next label of a padded row of nodes of one utterance, -1 where there is none, (U+1,)."""
    row = torch.full((width,), -1, dtype=torch.int64, device=device)
    row[:labels] = targets[:labels]
    return row


@torch.library.custom_op("samplewise::rnnt", mutates_args=())
def rnnt(
    logits: Tensor, targets: Tensor, logit_lengths: Tensor, target_lengths: Tensor, blank: int, clamp: float, fused: bool,
    fastemit_lambda: float, gradient: bool, on_nonfinite: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """(losses (B,), log denominators, gamma_blank, gamma_label); the last three (B, T, U+1), empty without `gradient`."""
    lengths = _lengths(logits, targets, logit_lengths, target_lengths, blank)
    targets = targets.to(logits.device)
    real, device, kernels = real_dtype(logits.dtype), logits.device, backend_for(logits.device)
    B, T, width, V = logits.shape
    wide = wide_dtype(device)
    denominator = torch.zeros(B, T, width, dtype=wide, device=device)
    lp_blank, lp_label = (torch.zeros(B, T, width, dtype=real, device=device) for _ in range(2))
    flat = [part.view(-1) for part in (denominator, lp_blank, lp_label)]
    bias = torch.zeros(V, dtype=real, device=device)
    for b, (frames, labels) in enumerate(zip(*lengths, strict=True)):
        label = _next_labels(targets[b], labels, width, device)
        scores = logits[b, :frames].contiguous()  # (T_b, U+1, V)
        if not fused:
            lp_blank[b, :frames] = scores[..., blank]
            picked = scores.gather(2, label.clamp(min=0)[None, :, None].expand(frames, -1, 1))[..., 0]
            lp_label[b, :frames] = picked.to(real).masked_fill(label < 0, -torch.inf)
            continue
        rows, label = scores.view(-1, V), label.repeat(frames)
        for start in range(0, len(rows), ROWS):
            here = slice(start, start + ROWS)
            node = torch.arange(start, min(start + ROWS, len(rows)), device=device) + b * T * width
            kernels.emission(rows[here], bias, node, label[here], blank, *flat)
    losses = torch.empty(B, dtype=wide, device=device)
    table = padded_table(*lengths, T, width, device)
    gammas = flat[1:] if gradient else (None, None)
    kernels.lattice(flat[1], flat[2], table, torch.ones_like(losses), losses, *gammas)
    losses = finish_nonfinite(losses, on_nonfinite).to(real)
    if not gradient:
        return losses, *(logits.new_empty(0, dtype=dtype) for dtype in (wide, real, real))  # type: ignore[return-value]
    within = torch.arange(width, device=device)[None] <= torch.tensor(lengths.labels, device=device)[:, None]
    for gamma in (lp_blank, lp_label):  # columns beyond an utterance's labels held emissions
        gamma.masked_fill_(~within[:, None], 0.0)
    if fastemit_lambda:
        lp_label.mul_(1.0 + fastemit_lambda)
    return losses, denominator, lp_blank, lp_label


@rnnt.register_fake
def _(logits, targets, logit_lengths, target_lengths, blank, clamp, fused, fastemit_lambda, gradient, on_nonfinite):
    real = real_dtype(logits.dtype)
    state = logits.shape[:3] if gradient else (0,)
    dtypes = (wide_dtype(logits.device), real, real)
    return logits.new_empty(logits.shape[0], dtype=real), *(logits.new_empty(state, dtype=dtype) for dtype in dtypes)


@torch.library.custom_op("samplewise::rnnt_gradient", mutates_args=())
def rnnt_gradient(
    logits: Tensor, targets: Tensor, logit_lengths: Tensor, target_lengths: Tensor, log_denominator: Tensor, gamma_blank:
    Tensor, gamma_label: Tensor, upstream: Tensor, blank: int, clamp: float, fused: bool,
) -> Tensor:  # fmt: skip
    """dL/dlogits (B, T, U+1, V). A positive clamp bounds each utterance's gradient before `upstream` (B,) scales it."""
    lengths = _lengths(logits, targets, logit_lengths, target_lengths, blank)
    targets = targets.to(logits.device)
    real, device, kernels = real_dtype(logits.dtype), logits.device, backend_for(logits.device)
    width, V = logits.shape[2:]
    bias = torch.zeros(V, dtype=real, device=device)
    result = torch.empty(logits.shape, dtype=logits.dtype, device=device)
    for b, (frames, labels) in enumerate(zip(*lengths, strict=True)):
        before, after = (1.0, upstream[b]) if clamp > 0 else (upstream[b].to(real), None)
        label = _next_labels(targets[b], labels, width, device)
        state = [log_denominator[b, :frames], *(gamma[b, :frames] * before for gamma in (gamma_blank, gamma_label))]
        result[b, frames:] = 0
        part = result[b, :frames]
        if fused:
            part.copy_(logits[b, :frames])
            rows, label, state = part.view(-1, V), label.repeat(frames), [number.reshape(-1) for number in state]
            for start in range(0, len(rows), ROWS):
                here = slice(start, start + ROWS)
                node = torch.arange(start, min(start + ROWS, len(rows)), device=device)
                zeros = torch.zeros_like(bias)
                kernels.emission_gradient(rows[here], bias, node, label[here], blank, state[0], state[1], state[2], zeros)
        else:
            part.zero_()
            part[..., blank] = -state[1]
            index = label.clamp(min=0)[None, :, None].expand(frames, -1, 1)
            part.scatter_add_(2, index, -state[2].masked_fill(label < 0, 0.0)[..., None].to(part.dtype))
        if after is not None:
            part.clamp_(-clamp, clamp).mul_(after)
    return result


@rnnt_gradient.register_fake
def _(logits, *arguments):
    return torch.empty_like(logits, memory_format=torch.contiguous_format)


def _setup(ctx, inputs, output):
    logits, targets, logit_lengths, target_lengths, ctx.blank, ctx.clamp, ctx.fused, *_ = inputs
    ctx.save_for_backward(logits, targets, logit_lengths, target_lengths, *output[1:])
    ctx.mark_non_differentiable(*output[1:])


def _backward(ctx, upstream, *unused):
    first_derivative()
    return rnnt_gradient(*ctx.saved_tensors, upstream, ctx.blank, ctx.clamp, ctx.fused), *(None,) * 9


rnnt.register_autograd(_backward, setup_context=_setup)
