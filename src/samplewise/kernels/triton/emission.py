"""From a tile of logits to three numbers a node, and from them to the gradient of the tile (paper: f^W_1 and f^W_4).

Both sweep blocks of a few rows by many classes. Sums of exponentials are kept relative to the largest score so far.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from samplewise.kernels.triton.launch import blocks, on, power_of_2, rows_of
from samplewise.kernels.triton.numbers import narrow, widen

BLOCK, WIDEST, TALLEST, WARPS = 2048, 1024, 16, 4  # elements, columns and rows of a block
PROGRAMS = 512  # enough to fill a GPU; each owns a sum of every column that it sees


def block_of(columns: int) -> tuple[int, int]:
    """Rows and columns of a block: an element a thread at least, as threads that held the same one would race in place."""
    width = power_of_2(columns, WIDEST)
    return max(64 * WARPS // width, min(TALLEST, BLOCK // width)), width


def emission(
    logits: Tensor, bias: Tensor, node: Tensor, label: Tensor, blank: int,
    log_denominator: Tensor, lp_blank: Tensor, lp_label: Tensor,
) -> None:  # fmt: skip
    """Log-softmax denominators of logits + bias, and the log-probabilities of blank and of the next label.

    logits (R, C), bias (C,), node and label (R,) int64; label -1 means that no label is left (log-probability -inf).
    Row r writes element node[r] of the three outputs (N,); log_denominator is float64, so that large scores keep their digits.
    """
    (rows, classes), stored = logits.shape, rows_of(logits)
    height, width = block_of(classes)
    if rows:
        with on(logits):
            _emission[(blocks(rows, height),)](
                stored, bias, node, label, log_denominator, lp_blank, lp_label, rows, classes, blank, stored.stride(0),
                HEIGHT=height, WIDTH=width, num_warps=WARPS,
            )  # fmt: skip


def emission_gradient(
    logits: Tensor, bias: Tensor, node: Tensor, label: Tensor, blank: int,
    log_denominator: Tensor, gamma_blank: Tensor, gamma_label: Tensor, d_bias: Tensor,
) -> None:  # fmt: skip
    """Overwrite logits (R, C) with dL/dh = gamma softmax(h) - gamma_blank e_blank - gamma_label e_label.

    Rows without occupancy become zeros whatever they held. d_bias (C,) accumulates the column sums.
    """
    (rows, classes), stored = logits.shape, rows_of(logits)
    height, width = block_of(classes)
    across = blocks(classes, width)
    parts = min(blocks(rows, height), max(1, PROGRAMS // across))
    each = blocks(blocks(rows, height), max(1, parts)) * height  # rows of a part
    if rows:
        sums = torch.empty(parts, classes, dtype=d_bias.dtype, device=d_bias.device)
        totals = torch.empty(rows if across > 1 else 0, dtype=d_bias.dtype, device=d_bias.device)
        with on(logits):
            if across > 1:
                _totals[(blocks(rows, height),)](
                    stored, bias, node, log_denominator, totals, rows, classes, stored.stride(0), HEIGHT=height, WIDTH=width,
                    num_warps=WARPS,
                )  # fmt: skip
            _emission_gradient[(parts, across)](
                stored, bias, node, label, log_denominator, gamma_blank, gamma_label, sums, totals, rows, classes, blank, each,
                stored.stride(0), WHOLE=across == 1, HEIGHT=height, WIDTH=width, num_warps=WARPS,
            )  # fmt: skip
        d_bias += sums.sum(0)


@triton.jit(do_not_specialize=["rows", "classes", "blank"])
def _emission(
    logits, bias, node, label, log_denominator, lp_blank, lp_label, rows, classes, blank, row_stride,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    REAL: tl.constexpr = bias.dtype.element_ty
    r = tl.program_id(0).to(tl.int64) * HEIGHT + tl.arange(0, HEIGHT)
    live = r < rows
    row = logits + r * row_stride
    top = tl.full((HEIGHT,), float("-inf"), REAL)
    total = tl.zeros((HEIGHT,), REAL)
    for first in range(0, classes, WIDTH):
        v = first + tl.arange(0, WIDTH)
        held = live[:, None] & (v < classes)[None, :]
        score = widen(tl.load(row[:, None] + v[None, :], mask=held, other=0), REAL)
        score += tl.load(bias + v, mask=v < classes, other=0.0)[None, :]
        score = tl.where(held, score, float("-inf"))
        best = tl.max(tl.where(score == score, score, float("-inf")), 1)  # NaN shows in the sum
        best = tl.where(best > top, best, top)
        shift = tl.where(best == float("-inf"), 0.0, best)  # nothing but -inf so far
        total = total * tl.exp(top - shift) + tl.sum(tl.exp(score - shift[:, None]), 1)
        top = best
    rest = tl.log(total.to(tl.float64))  # apart from top it keeps the digits that their sum would lose
    n = tl.load(node + r, mask=live, other=0)
    tl.store(log_denominator + n, (top.to(tl.float64) + rest).to(log_denominator.dtype.element_ty), mask=live)
    score = widen(tl.load(row + blank, mask=live, other=0), REAL) + tl.load(bias + blank)
    tl.store(lp_blank + n, (score - top) - rest.to(REAL), mask=live)
    y = tl.load(label + r, mask=live, other=-1)
    score = widen(tl.load(row + y, mask=y >= 0, other=0), REAL) + tl.load(bias + y, mask=y >= 0, other=0.0)
    tl.store(lp_label + n, tl.where(y >= 0, (score - top) - rest.to(REAL), float("-inf")), mask=live)


@triton.jit(do_not_specialize=["rows", "classes"])
def _totals(
    logits, bias, node, log_denominator, totals, rows, classes, row_stride, HEIGHT: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """Of every row the sum of exp(score - denominator). What rounds the scores here may not be what rounded them when the
    denominator was made, in another product of another shape; divided by this sum they are the softmax all the same."""
    REAL: tl.constexpr = bias.dtype.element_ty
    r = tl.program_id(0).to(tl.int64) * HEIGHT + tl.arange(0, HEIGHT)
    live = r < rows
    level = tl.load(log_denominator + tl.load(node + r, mask=live, other=0)).to(REAL)
    total = tl.zeros((HEIGHT,), REAL)
    for first in range(0, classes, WIDTH):
        v = first + tl.arange(0, WIDTH)
        held = live[:, None] & (v < classes)[None, :]
        score = widen(tl.load(logits + r[:, None] * row_stride + v[None, :], mask=held, other=0), REAL)
        score += tl.load(bias + v, mask=v < classes, other=0.0)[None, :]
        total += tl.sum(tl.where(held, tl.exp(score - level[:, None]), 0.0), 1)
    tl.store(totals + r, total, mask=live)


@triton.jit(do_not_specialize=["rows", "classes", "blank", "each"])
def _emission_gradient(
    logits, bias, node, label, log_denominator, gamma_blank, gamma_label, sums, totals, rows, classes, blank, each, row_stride,
    WHOLE: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    REAL: tl.constexpr = bias.dtype.element_ty
    part = tl.program_id(0).to(tl.int64)
    v = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    offset = tl.load(bias + v, mask=v < classes, other=0.0)
    column = tl.zeros((WIDTH,), REAL)
    for first in range(0, each, HEIGHT):
        r = part * each + first + tl.arange(0, HEIGHT)
        live = r < rows
        n = tl.load(node + r, mask=live, other=0)
        y = tl.load(label + r, mask=live, other=-1)
        by_blank = tl.load(gamma_blank + n, mask=live, other=0.0)
        by_label = tl.load(gamma_label + n, mask=live, other=0.0)
        level = tl.load(log_denominator + n, mask=live, other=0.0).to(REAL)
        occupancy = by_blank + by_label
        held = live[:, None] & (v < classes)[None, :]
        place = logits + r[:, None] * row_stride + v[None, :]
        score = widen(tl.load(place, mask=held, other=0), REAL) + offset[None, :]
        x = tl.where(held, tl.exp(score - level[:, None]), 0.0)
        total = tl.sum(x, 1)
        if not WHOLE:
            total = tl.load(totals + r, mask=live, other=1.0)
        x *= (occupancy / total)[:, None]
        x = tl.where(tl.abs(x) < 1e-37, 0.0, x)  # not worth a denormal number
        x -= tl.where((v == blank)[None, :], by_blank[:, None], 0.0)
        x -= tl.where(v[None, :] == y[:, None], by_label[:, None], 0.0)
        x = tl.where(held & (occupancy != 0.0)[:, None], x, 0.0)
        column += tl.sum(x, 0)
        tl.store(place, narrow(x, logits.dtype.element_ty), mask=held)
    tl.store(sums + part * classes + v, column, mask=v < classes)
