"""The transducer loss of logits that already exist, as PyTorch operators.

They are padded, (B, T, U+1, V), or packed, (sum_b T_b (U_b+1), V), one utterance after the other without padding.
Beyond the logits a few floats a node are kept for the backward, three with the regular lattice. It writes the gradient straight
into its output.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from samplewise.checks import check_values
from samplewise.errors import TransducerError
from samplewise.kernels.backend import backend_for
from samplewise.kernels.layout import packed_table, padded_table
from samplewise.ops.guards import finish_nonfinite, first_derivative
from samplewise.ops.lattices import Emissions, Occupancy, lattice_of
from samplewise.ops.problem import real_dtype, wide_dtype
from samplewise.ops.timing import delay
from samplewise.topology import Bound, Topology, named

ROWS = 4096  # rows of logits that a kernel is given at a time


class Span(NamedTuple):
    """Where an utterance's nodes are: the first of them, how many there are from a frame to the next, frames and labels."""

    start: int
    width: int
    frames: int
    labels: int

    @property
    def nodes(self) -> slice:
        return slice(self.start, self.start + self.frames * self.width)

    def grid(self, flat: Tensor) -> Tensor:
        """Floats (E, T_b, width) of its nodes, as a view of those of all nodes (E, N)."""
        return flat[:, self.nodes].unflatten(1, (self.frames, self.width))

    def logits(self, of_all: Tensor, b: int) -> Tensor:
        """Its logits (T_b, width, V), as a view."""
        if of_all.dim() == 4:
            return of_all[b, : self.frames]
        return of_all[self.nodes].unflatten(0, (self.frames, self.width))


def _spans(
    logits: Tensor, targets: Tensor, logit_lengths: Tensor, target_lengths: Tensor, blank: int, topology: Topology
) -> list[Span]:
    """That of each utterance. Every number in use is checked."""
    padded, width = logits.dim() == 4, targets.shape[1] + 1
    lengths = check_values(
        targets, logit_lengths, target_lengths, frames=logits.shape[1] if padded else len(logits),
        tokens=logits.shape[2] if padded else width, classes=logits.shape[-1] - topology.extra, blank=blank, encoder="logits",
        predictor="logits", lengths_name="logit_lengths", blanks=topology.blanks(blank)[1:],
        unit="frames" if padded else "rows",
    )  # fmt: skip
    if padded:
        size, width = logits.shape[1] * logits.shape[2], logits.shape[2]
        return [Span(b * size, width, t, u) for b, (t, u) in enumerate(zip(*lengths, strict=True))]
    spans, start = [], 0
    for t, u in zip(*lengths, strict=True):
        spans.append(Span(start, u + 1, t, u))
        start += t * (u + 1)
    if start != len(logits):
        raise TransducerError(
            f"logits has {len(logits)} rows, but the sum of logit_lengths[b] * (target_lengths[b] + 1) is {start}: packed"
            " logits have a row for each frame and number of labels of an utterance, and no padding"
        )
    return spans


def _table(logits: Tensor, spans: list[Span]) -> Tensor:
    frames, labels = [span.frames for span in spans], [span.labels for span in spans]
    if logits.dim() == 4:
        return padded_table(frames, labels, logits.shape[1], logits.shape[2], logits.device)
    return packed_table(frames, labels, 0, 0, 0, logits.device)[0]


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
    """(losses (B,), log denominators of the heads (H, N), gradients of minus the entries (E, N)) of N nodes, also those of
    padding; the last two are empty without `gradient`."""
    spans = _spans(logits, targets, logit_lengths, target_lengths, blank, named(topology))
    targets = targets.to(logits.device)
    real, device, V, N = real_dtype(logits.dtype), logits.device, logits.shape[-1], math.prod(logits.shape[:-1])
    wide, form = wide_dtype(device), named(topology).bind(V, blank)
    lattice = lattice_of(backend_for(device), topology, V, blank, 1.0 + fastemit_lambda)
    denominators = torch.zeros(lattice.heads, N, dtype=wide, device=device)
    entries = torch.zeros(lattice.entries, N, dtype=real, device=device)
    flat = Emissions(denominators, entries)
    bias = torch.zeros(V, dtype=real, device=device)
    for b, span in enumerate(spans):
        part, label = span.logits(logits, b), _next_labels(targets[b], span.labels, span.width, device)
        if fused:
            rows, label = part.reshape(-1, V).contiguous(), label.repeat(span.frames)
            for start in range(0, len(rows), ROWS):
                here = slice(start, start + ROWS)
                node = torch.arange(start, min(start + ROWS, len(rows)), device=device) + span.start
                lattice.emission(rows[here], bias, node, label[here], flat)
        else:
            _read(part, label, form, span.grid(entries))
        if delay_penalty:
            late = delay(delay_penalty, span.frames, torch.arange(span.frames, device=device, dtype=wide))
            span.grid(entries)[lattice.label_entry] += late[:, None]
    losses = torch.empty(len(spans), dtype=wide, device=device)
    lattice.run(entries, _table(logits, spans), torch.ones_like(losses), losses, entries if gradient else None)
    losses = finish_nonfinite(losses, on_nonfinite).to(real)
    if not gradient:
        return losses, *(logits.new_empty(0, dtype=dtype) for dtype in (wide, real))  # type: ignore[return-value]
    for span in spans:  # columns beyond an utterance's labels still hold emissions
        span.grid(entries)[:, :, span.labels + 1 :] = 0.0
    lattice.weigh(entries)
    return losses, denominators, entries


@rnnt.register_fake
def _(logits, targets, logit_lengths, target_lengths, blank, clamp, fused, fastemit_lambda, topology, gradient, *options):
    real, lattice = real_dtype(logits.dtype), named(topology)
    kinds = ((len(lattice.heads), wide_dtype(logits.device)), (len(lattice.entries), real))
    return logits.new_empty(logit_lengths.shape[0], dtype=real), *(
        logits.new_empty((count, math.prod(logits.shape[:-1])) if gradient else (0,), dtype=dtype) for count, dtype in kinds
    )


@torch.library.custom_op("samplewise::rnnt_gradient", mutates_args=())
def rnnt_gradient(
    logits: Tensor, targets: Tensor, logit_lengths: Tensor, target_lengths: Tensor, log_denominators: Tensor, gammas: Tensor,
    upstream: Tensor, blank: int, clamp: float, fused: bool, topology: str,
) -> Tensor:  # fmt: skip
    """dL/dlogits, as the logits lie. A positive clamp bounds each utterance's gradient before `upstream` (B,) scales it."""
    spans = _spans(logits, targets, logit_lengths, target_lengths, blank, named(topology))
    targets = targets.to(logits.device)
    real, device, V = real_dtype(logits.dtype), logits.device, logits.shape[-1]
    lattice, form = lattice_of(backend_for(device), topology, V, blank), named(topology).bind(V, blank)
    bias = torch.zeros(V, dtype=real, device=device)
    result = torch.empty(logits.shape, dtype=logits.dtype, device=device)
    for b, span in enumerate(spans):
        before, after = (1.0, upstream[b]) if clamp > 0 else (upstream[b].to(real), None)
        label, own = _next_labels(targets[b], span.labels, span.width, device), gammas[:, span.nodes] * before
        if logits.dim() == 4:
            result[b, span.frames :] = 0
        part = span.logits(result, b)
        if fused:
            part.copy_(span.logits(logits, b))
            rows, label = part.view(-1, V), label.repeat(span.frames)
            occupancy = Occupancy(log_denominators[:, span.nodes], own)
            for start in range(0, len(rows), ROWS):
                here = slice(start, start + ROWS)
                node = torch.arange(start, min(start + ROWS, len(rows)), device=device)
                lattice.gradient(rows[here], bias, node, label[here], occupancy, torch.zeros_like(bias))
        else:
            _read_gradient(own.unflatten(1, part.shape[:2]), label, form, part)
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
