"""The loss of log-probabilities of arcs that are given, as a PyTorch operator.

A lattice may begin at any node of the padded arrays, and end in two ways: by its last arc, as that of the losses does, or where
it reaches its last node, as k2's recursion over px and py does. The second is the first with one frame more, which has labels
and, at its last node, a blank of probability one.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from samplewise.errors import TransducerError
from samplewise.kernels.backend import backend_for
from samplewise.kernels.layout import on_device
from samplewise.ops.guards import first_derivative
from samplewise.ops.lattices import lattice_of
from samplewise.ops.problem import real_dtype, wide_dtype
from samplewise.ops.timing import delay
from samplewise.topology import named


@torch.library.custom_op("samplewise::given_arcs", mutates_args=())
def given_arcs(
    lp_blank: Tensor, lp_label: Tensor, places: Tensor, topology: str, open_end: bool, delay_penalty: float, gradient: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(losses (B,), posteriors of blanks and labels (2, B, T, U+1)); the latter are empty without `gradient`.

    lp_blank (B, T, U+1), lp_label (B, T, U), places (B, 4): first frame, first label, frames and labels of each utterance. With
    `open_end` there may be no frames, and lp_label may have one frame more than lp_blank, for labels behind the last blank; the
    posteriors have it. A delay penalty counts from the first frame of the arrays to the last of the utterance.
    """
    B, T, width = lp_blank.shape
    rows = _rows(places, T, width - 1, open_end)
    real, wide, device = real_dtype(lp_blank.dtype), wide_dtype(lp_blank.device), lp_blank.device
    arcs = torch.full((2, B, T + open_end, width), -math.inf, dtype=real, device=device)
    arcs[0, :, :T] = lp_blank
    arcs[1, :, : lp_label.shape[1], : width - 1] = lp_label
    first, low, frames, labels = places.to(device=device, dtype=torch.int64).unbind(1)
    stop, top, each = first + frames, low + labels, torch.arange(B, device=device)
    if open_end:
        arcs[0, each, stop] = -math.inf
        arcs[0, each, stop, top] = 0.0
        if named(topology).label_ends:  # a label would go on to the next frame
            arcs[1, each, stop] = -math.inf
    t = torch.arange(T + open_end, device=device)[None]  # (1, T)
    if delay_penalty:
        arcs[1] += delay(delay_penalty, stop[:, None].to(wide), t)[..., None]
    losses = torch.empty(B, dtype=wide, device=device)
    size = (T + open_end) * width
    table = [(b * size + i * width + u, width, U, n + open_end, 0, 0, 0) for b, (i, u, n, U) in enumerate(rows)]
    flat = arcs.flatten(1)
    lattice = lattice_of(backend_for(device), topology, 2, 0)
    lattice.run(flat, on_device(device, table), torch.ones_like(losses), losses, flat if gradient else None)
    losses = losses.to(real)
    if not gradient:
        return losses, losses.new_empty(0)
    u = torch.arange(width, device=device)[None]
    in_time = (t >= first[:, None]) & (t < stop[:, None] + open_end)
    within = in_time[:, :, None] & ((u >= low[:, None]) & (u <= top[:, None]))[:, None]
    arcs.masked_fill_(~within, 0.0)  # beside the lattices they still are log-probabilities
    if open_end:
        arcs[0, each, stop] = 0.0
    return losses, arcs


@given_arcs.register_fake
def _(lp_blank, lp_label, places, topology, open_end, delay_penalty, gradient):
    B, T, width = lp_blank.shape
    real = real_dtype(lp_blank.dtype)
    shape = (2, B, T + open_end, width) if gradient else (0,)
    return lp_blank.new_empty(B, dtype=real), lp_blank.new_empty(shape, dtype=real)


def _rows(places: Tensor, frames: int, labels: int, open_end: bool) -> list[list[int]]:
    """Places on the host: the one synchronisation of a call."""
    rows: list[list[int]] = places.tolist()
    for b, (_, _, t, u) in enumerate(rows):
        if not 1 - open_end <= t <= frames:
            raise TransducerError(f"encoder_lengths[{b}] is {t}, but lp_blank has {frames} frames: it must be in 1..{frames}")
        if not 0 <= u <= labels:
            raise TransducerError(f"target_lengths[{b}] is {u}, but lp_label has {labels} labels: it must be in 0..{labels}")
    return rows


def _setup(ctx, inputs, output):
    lp_blank, lp_label, *_ = inputs
    ctx.shapes = [(x.shape[1], x.shape[2], x.dtype) for x in (lp_blank, lp_label)]
    ctx.save_for_backward(output[1])
    ctx.mark_non_differentiable(output[1])


def _backward(ctx, upstream, _):
    first_derivative()
    (gammas,) = ctx.saved_tensors
    factor = -upstream.to(gammas.dtype)[:, None, None]
    gradients = [
        (gamma[:, :frames, :width] * factor).to(dtype)
        for gamma, (frames, width, dtype) in zip(gammas, ctx.shapes, strict=True)
    ]  # fmt: skip
    return *gradients, *(None,) * 5


given_arcs.register_autograd(_backward, setup_context=_setup)
