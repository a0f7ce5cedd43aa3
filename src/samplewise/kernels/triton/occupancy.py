"""Which nodes a tile holds, and which nodes carry the occupancy.

The smallest occupancy that must stay is found digit by digit in the bits of its float, which order as the numbers do: every
pass sums the occupancy below fifteen candidates, in the same order every time.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from samplewise.kernels.triton.launch import blocks, on

BLOCK, WARPS = 256, 4
DIGIT = 4  # bits found in a pass
PROGRAMS, MOST_PARTS = 512, 64  # enough to fill a GPU; parts that an utterance is cut into for that


def locate(node: Tensor, utterances: Tensor, targets: Tensor, frame: Tensor, token: Tensor, label: Tensor) -> None:
    """Rows of the encodings, and the next label, of the ascending nodes `node` (R,); all outputs (R,) int64.

    targets is the flat (B U,) tensor of label columns; label is -1 where none is left.
    """
    rows = node.numel()
    if rows:
        with on(node):
            _locate[(blocks(rows, BLOCK),)](
                node, utterances, targets, frame, token, label, rows, len(utterances), BLOCK=BLOCK, num_warps=WARPS
            )


def select(gamma_blank: Tensor, gamma_label: Tensor, utterances: Tensor, losses: Tensor, tolerance: float) -> Tensor:
    """The ascending nodes (A,) int64 that carry all but `tolerance` of each utterance's occupancy, as few as possible.

    tolerance 0 keeps every node of every utterance with a finite loss. The host waits for their number, here alone.
    """
    nodes, count = gamma_blank.numel(), len(utterances)
    parts = max(1, min(MOST_PARTS, PROGRAMS // count, nodes // count // (4 * BLOCK)))
    parts = 1 << (parts.bit_length() - 1)
    shifts = range(8 * gamma_blank.element_size() - DIGIT, -1, -DIGIT) if tolerance > 0.0 else ()
    passes = len(shifts)
    sums = losses.new_empty(max(1, passes), count, parts, 1 << DIGIT)
    low = torch.zeros(passes + 1, count, dtype=torch.int64, device=losses.device)
    allowed = losses.new_full((1,), tolerance)
    keep = torch.zeros(nodes, dtype=torch.int8, device=losses.device)
    shared = {"PARTS": parts, "DIGIT": DIGIT, "BLOCK": BLOCK, "num_warps": WARPS}
    with on(gamma_blank):
        for i, shift in enumerate(shifts):
            _below[(count * parts,)](
                gamma_blank, gamma_label, utterances, allowed, low[i - 1] if i else low[0], sums[i - 1] if i else sums[0],
                low[i], sums[i], shift, FIRST=i == 0, **shared,
            )  # fmt: skip
        _mark[(count * parts,)](
            gamma_blank, gamma_label, utterances, losses, allowed, low[passes - 1] if passes else low[0], sums[-1], keep,
            ALL=passes == 0, **shared,
        )  # fmt: skip
    return keep.nonzero().flatten()


@triton.jit(do_not_specialize=["rows", "count"])
def _locate(node, utterances, targets, frame, token, label, rows, count, BLOCK: tl.constexpr):
    r = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = r < rows
    n = tl.load(node + r, mask=live, other=0)
    g = tl.zeros((BLOCK,), tl.int64)  # the last utterance that starts at or before the node, by bisection
    span = count
    while span > 1:
        half = span // 2
        start = tl.load(utterances + (g + half) * 7, mask=live & (g + half < count), other=0)
        g = tl.where(live & (g + half < count) & (start <= n), g + half, g)
        span -= half
    row = utterances + g * 7
    stride = tl.load(row + 1)
    at = n - tl.load(row)
    t = at // stride
    u = at - t * stride
    tl.store(frame + r, tl.load(row + 4) + t, mask=live)
    tl.store(token + r, tl.load(row + 5) + u, mask=live)
    left = live & (u < tl.load(row + 2))
    tl.store(label + r, tl.load(targets + tl.load(row + 6) + u, mask=left, other=-1), mask=live)


@triton.jit
def _order(x):
    """An integer that orders numbers from 0 on as they are ordered."""
    return x.to(tl.int64, bitcast=True) if x.dtype == tl.float64 else x.to(tl.int32, bitcast=True).to(tl.int64)


@triton.jit
def _next_low(low, sums, allowed, g, shift, PARTS: tl.constexpr, DIGIT: tl.constexpr):
    """The lowest key that may have to stay, one digit further: the largest below which no more is than may be left out."""
    part, j = tl.arange(0, PARTS), tl.arange(0, 1 << DIGIT)
    mass = tl.sum(tl.load(sums + (g * PARTS + part[:, None]) * (1 << DIGIT) + j[None, :]), 0)
    total = tl.sum(tl.where(j == 0, mass, 0.0), 0)  # candidate 0 is known to be low enough: its place holds everything
    before = tl.load(low + g)
    candidate = before + (j.to(tl.int64) << shift)
    passes = (j > 0) & (candidate >= before) & (mass <= total * tl.load(allowed))
    return before + (tl.sum(passes.to(tl.int64), 0) << shift)


@triton.jit(do_not_specialize=["shift"])
def _below(
    gamma_blank, gamma_label, utterances, allowed, low_before, sums_before, low, sums, shift, FIRST: tl.constexpr,
    PARTS: tl.constexpr, DIGIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    g, part = (tl.program_id(0) // PARTS).to(tl.int64), tl.program_id(0) % PARTS
    lowest = tl.zeros((), tl.int64)
    if not FIRST:
        lowest = _next_low(low_before, sums_before, allowed, g, shift + DIGIT, PARTS, DIGIT)
        tl.store(low + g, lowest, mask=part == 0)
    j = tl.arange(0, 1 << DIGIT)
    candidate = lowest + (j.to(tl.int64) << shift)
    start = tl.load(utterances + g * 7)
    size = tl.load(utterances + g * 7 + 3) * tl.load(utterances + g * 7 + 1)
    total = tl.zeros((1 << DIGIT,), tl.float64)
    for first in range(part * BLOCK, size, PARTS * BLOCK):
        n = first + tl.arange(0, BLOCK).to(tl.int64)
        live = n < size
        x = tl.load(gamma_blank + start + n, mask=live, other=0.0) + tl.load(gamma_label + start + n, mask=live, other=0.0)
        x = tl.abs(x)
        counts = (j == 0)[None, :] | (_order(x)[:, None] < candidate[None, :])
        total += tl.sum(tl.where(counts, x.to(tl.float64)[:, None], 0.0), 0)
    tl.store(sums + (g * PARTS + part) * (1 << DIGIT) + j, total)


@triton.jit
def _mark(
    gamma_blank, gamma_label, utterances, losses, allowed, low, sums, keep, ALL: tl.constexpr, PARTS: tl.constexpr,
    DIGIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    g, part = (tl.program_id(0) // PARTS).to(tl.int64), tl.program_id(0) % PARTS
    lowest = tl.zeros((), tl.int64)
    if not ALL:
        lowest = _next_low(low, sums, allowed, g, 0, PARTS, DIGIT)
    start = tl.load(utterances + g * 7)
    size = tl.load(utterances + g * 7 + 3) * tl.load(utterances + g * 7 + 1)
    loss = tl.load(losses + g)
    for first in range(part * BLOCK, size, PARTS * BLOCK):
        n = first + tl.arange(0, BLOCK).to(tl.int64)
        live = n < size
        x = tl.load(gamma_blank + start + n, mask=live, other=0.0) + tl.load(gamma_label + start + n, mask=live, other=0.0)
        stays = (_order(tl.abs(x)) >= lowest) & (tl.abs(loss + n * 0.0) < float("inf"))
        tl.store(keep + start + n, stays.to(tl.int8), mask=live)
