"""The transducer loss of logits that already exist, (B, T, U+1, V), as PyTorch operators.

Beyond the logits a few floats a node are kept for the backward, three with the regular lattice. It writes the gradient straight
into its output.
"""

from __future__ import annotations

import torch
from torch import Tensor

from samplewise.checks import Lengths, check_values
from samplewise.kernels.backend import backend_for
from samplewise.kernels.layout import padded_table
from samplewise.ops.guards import finish_nonfinite, first_derivative
from samplewise.ops.lattices import Emissions, Occupancy, lattice_of
from samplewise.ops.problem import real_dtype, wide_dtype
from samplewise.ops.timing import delay
from samplewise.topology import Bound, Topology, named

ROWS = 4096  # rows of logits that a kernel is given at a time


def _lengths(
    logits: Tensor, targets: Tensor, logit_lengths: Tensor, target_lengths: Tensor, blank: int, topology: Topology
) -> Lengths:
    return check_values(
        targets, logit_lengths, target_lengths, frames=logits.shape[1], tokens=logits.shape[2],
        classes=logits.shape[3] - topology.extra, blank=blank, encoder="logits", predictor="logits",
        lengths_name="logit_lengths", blanks=topology.blanks(blank)[1:],
    )  # fmt: skip


def _next_labels(targets: Tensor, labels: int, width: int, device: torch.device) -> Tensor:
    """The next label of a padded row of nodes of one utterance, -1 where there is none, (U+1,)."""
    row = torch.full((width,), -1, dtype=torch.int64, device=device)
    row[:labels] = targets[:labels]
    return row


def _read(scores: Tensor, label: Tensor, form: Bound, out: Tensor) -> None:
    """Entries out (E, T, U+1) of log-probabilities (T, U+1, V), less what a topology takes from them."""
    for e, (head, column, _) in enumerate(form.entries):
        found = scores.gather(2, _index(label, len(scores)))[..., 0] if column < 0 else scores[..., column]
        found = found.to(out.dtype) - form.heads[head][4]
        out[e] = found.masked_fill(label < 0, -torch.inf) if column < 0 else found


def _read_gradient(gammas: Tensor, label: Tensor, form: Bound, out: Tensor) -> None:
    """The gradient out (T, U+1, V) of what `_read` read."""
    out.zero_()
    for gamma, (_, column, _) in zip(gammas, form.entries, strict=True):
        if column < 0:
            out.scatter_add_(2, _index(label, len(out)), -gamma.masked_fill(label < 0, 0.0)[..., None].to(out.dtype))
        else:
            out[..., column] -= gamma


def _index(label: Tensor, frames: int) -> Tensor:
    """Of each node's label, (T, U+1, 1)."""
    return label.clamp(min=0)[None, :, None].expand(frames, -1, 1)


@torch.library.custom_op("samplewise::rnnt", mutates_args=())
def rnnt(
    logits: Tensor, targets: Tensor, logit_lengths: Tensor, target_lengths: Tensor, blank: int, clamp: float, fused: bool,
    fastemit_lambda: float, topology: str, gradient: bool, on_nonfinite: str, delay_penalty: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """(losses (B,), log denominators of the heads (H, B, T, U+1), gradients of minus the entries (E, B, T, U+1)); the last two
    are empty without `gradient`."""
    lengths = _lengths(logits, targets, logit_lengths, target_lengths, blank, named(topology))
    targets = targets.to(logits.device)
    real, device, kernels = real_dtype(logits.dtype), logits.device, backend_for(logits.device)
    B, T, width, V = logits.shape
    wide, form = wide_dtype(device), named(topology).bind(V, blank)
    lattice = lattice_of(kernels, topology, V, blank, 1.0 + fastemit_lambda)
    denominators = torch.zeros(lattice.heads, B, T, width, dtype=wide, device=device)
    entries = torch.zeros(lattice.entries, B, T, width, dtype=real, device=device)
    flat = Emissions(denominators.flatten(1), entries.flatten(1))
    bias = torch.zeros(V, dtype=real, device=device)
    for b, (frames, labels) in enumerate(zip(*lengths, strict=True)):
        label = _next_labels(targets[b], labels, width, device)
        if fused:
            rows, label = logits[b, :frames].reshape(-1, V).contiguous(), label.repeat(frames)
            for start in range(0, len(rows), ROWS):
                here = slice(start, start + ROWS)
                node = torch.arange(start, min(start + ROWS, len(rows)), device=device) + b * T * width
                lattice.emission(rows[here], bias, node, label[here], flat)
        else:
            _read(logits[b, :frames], label, form, entries[:, b, :frames])
        if delay_penalty:
            late = delay(delay_penalty, frames, torch.arange(frames, device=device, dtype=wide))
            entries[lattice.label_entry, b, :frames] += late[:, None]
    losses = torch.empty(B, dtype=wide, device=device)
    table = padded_table(*lengths, T, width, device)
    lattice.run(flat.entries, table, torch.ones_like(losses), losses, flat.entries if gradient else None)
    losses = finish_nonfinite(losses, on_nonfinite).to(real)
    if not gradient:
        return losses, *(logits.new_empty(0, dtype=dtype) for dtype in (wide, real))  # type: ignore[return-value]
    within = torch.arange(width, device=device)[None] <= torch.tensor(lengths.labels, device=device)[:, None]
    entries.masked_fill_(~within[:, None], 0.0)  # columns beyond an utterance's labels still hold emissions
    lattice.weigh(entries)
    return losses, denominators, entries


@rnnt.register_fake
def _(logits, targets, logit_lengths, target_lengths, blank, clamp, fused, fastemit_lambda, topology, gradient, *options):
    real, lattice = real_dtype(logits.dtype), named(topology)
    kinds = ((len(lattice.heads), wide_dtype(logits.device)), (len(lattice.entries), real))
    return logits.new_empty(logits.shape[0], dtype=real), *(
        logits.new_empty((count, *logits.shape[:3]) if gradient else (0,), dtype=dtype) for count, dtype in kinds
    )


@torch.library.custom_op("samplewise::rnnt_gradient", mutates_args=())
def rnnt_gradient(
    logits: Tensor, targets: Tensor, logit_lengths: Tensor, target_lengths: Tensor, log_denominators: Tensor, gammas: Tensor,
    upstream: Tensor, blank: int, clamp: float, fused: bool, topology: str,
) -> Tensor:  # fmt: skip
    """dL/dlogits (B, T, U+1, V). A positive clamp bounds each utterance's gradient before `upstream` (B,) scales it."""
    lengths = _lengths(logits, targets, logit_lengths, target_lengths, blank, named(topology))
    targets = targets.to(logits.device)
    real, device = real_dtype(logits.dtype), logits.device
    width, V = logits.shape[2:]
    lattice, form = lattice_of(backend_for(device), topology, V, blank), named(topology).bind(V, blank)
    bias = torch.zeros(V, dtype=real, device=device)
    result = torch.empty(logits.shape, dtype=logits.dtype, device=device)
    for b, (frames, labels) in enumerate(zip(*lengths, strict=True)):
        before, after = (1.0, upstream[b]) if clamp > 0 else (upstream[b].to(real), None)
        label, own = _next_labels(targets[b], labels, width, device), gammas[:, b, :frames] * before
        result[b, frames:] = 0
        part = result[b, :frames]
        if fused:
            part.copy_(logits[b, :frames])
            rows, label = part.view(-1, V), label.repeat(frames)
            occupancy = Occupancy(log_denominators[:, b, :frames].flatten(1), own.flatten(1))
            for start in range(0, len(rows), ROWS):
                here = slice(start, start + ROWS)
                node = torch.arange(start, min(start + ROWS, len(rows)), device=device)
                lattice.gradient(rows[here], bias, node, label[here], occupancy, torch.zeros_like(bias))
        else:
            _read_gradient(own, label, form, part)
        if after is not None:
            limit = min(clamp, torch.finfo(part.dtype).max)
            part.clamp_(-limit, limit).mul_(after)
    return result


@rnnt_gradient.register_fake
def _(logits, *arguments):
    return torch.empty_like(logits, memory_format=torch.contiguous_format)


def _setup(ctx, inputs, output):
    logits, targets, logit_lengths, target_lengths, ctx.blank, ctx.clamp, ctx.fused, _, ctx.topology, *_ = inputs
    ctx.save_for_backward(logits, targets, logit_lengths, target_lengths, *output[1:])
    ctx.mark_non_differentiable(*output[1:])


def _backward(ctx, upstream, *unused):
    first_derivative()
    return rnnt_gradient(*ctx.saved_tensors, upstream, ctx.blank, ctx.clamp, ctx.fused, ctx.topology), *(None,) * 11


rnnt.register_autograd(_backward, setup_context=_setup)
