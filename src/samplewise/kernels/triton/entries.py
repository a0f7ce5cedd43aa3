"""As `emission.py`, for every topology: from a tile of logits to the entries of a node, and from them to the gradient.

A launch serves a head: its columns, and those entries that are made of it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from samplewise.kernels.triton.emission import PROGRAMS, WARPS, block_of
from samplewise.kernels.triton.launch import blocks, constants, on, rows_of
from samplewise.kernels.triton.numbers import log1p, narrow, sigmoid, widen
from samplewise.topology import Bound


def entries(
    logits: Tensor, bias: Tensor, node: Tensor, label: Tensor, form: Bound, log_denominators: Tensor, out: Tensor
) -> None:
    """Log denominators of the heads, and the log-probabilities of a topology's entries; see `kernels/eager/entries.py`."""
    rows, stored = logits.shape[0], rows_of(logits)
    if not rows:
        return
    for h, (start, stop, drop, is_sigmoid, shift) in enumerate(form.heads):
        height, width = block_of(stop - start)
        table = _entries_of(form, h, logits.device)
        with on(logits):
            _entries[(blocks(rows, height),)](
                stored, bias, node, label, table, log_denominators[h], rows_of(out), rows, start, stop, drop, len(table),
                stored.stride(0), out.stride(0), SHIFT=shift, SIGMOID=is_sigmoid, HEIGHT=height, WIDTH=width, num_warps=WARPS,
            )  # fmt: skip


def entries_gradient(
    logits: Tensor, bias: Tensor, node: Tensor, label: Tensor, form: Bound, log_denominators: Tensor, gammas: Tensor,
    d_bias: Tensor,
) -> None:  # fmt: skip
    """Overwrite logits (R, C) with dL/dh of every head; see `kernels/eager/entries.py`."""
    rows, stored = logits.shape[0], rows_of(logits)
    if not rows:
        return
    for h, (start, stop, drop, is_sigmoid, _) in enumerate(form.heads):
        height, width = block_of(stop - start)
        table, across = _entries_of(form, h, logits.device), blocks(stop - start, width)
        parts = min(blocks(rows, height), max(1, PROGRAMS // across))
        each = blocks(blocks(rows, height), max(1, parts)) * height  # rows of a part
        sums = torch.empty(parts, stop - start, dtype=d_bias.dtype, device=d_bias.device)
        totals = torch.empty(rows if across > 1 else 0, dtype=d_bias.dtype, device=d_bias.device)
        with on(logits):
            if across > 1:
                _totals[(blocks(rows, height),)](
                    stored, bias, node, log_denominators[h], totals, rows, start, stop, drop, stored.stride(0), HEIGHT=height,
                    WIDTH=width, num_warps=WARPS,
                )  # fmt: skip
            _gradient[(parts, across)](
                stored, bias, node, label, table, log_denominators[h], rows_of(gammas), sums, totals, rows, start, stop, drop,
                len(table), each, stored.stride(0), gammas.stride(0), SIGMOID=is_sigmoid, WHOLE=across == 1, HEIGHT=height,
                WIDTH=width, num_warps=WARPS,
            )  # fmt: skip
        d_bias[start:stop] += sums.sum(0)


def _entries_of(form: Bound, head: int, device: torch.device) -> Tensor:
    """(., 3) of the entries of a head: the number of each, its column, -1 for the next label, and whether it is a
    complement."""
    rows = [(e, column, int(complement)) for e, (h, column, complement) in enumerate(form.entries) if h == head]
    return constants(rows, device)


@triton.jit
def _scores(row, bias, v, held, stop, REAL: tl.constexpr):
    """Of a block of rows and columns."""
    score = widen(tl.load(row[:, None] + v[None, :], mask=held, other=0), REAL)
    return score + tl.load(bias + v, mask=v < stop, other=0.0)[None, :]


@triton.jit
def _log_sigmoid(x):
    """To the last digits on both sides."""
    return tl.where(x < 0.0, x, 0.0) - log1p(tl.exp(-tl.abs(x)))


@triton.jit(do_not_specialize=["rows", "start", "stop", "drop", "count", "out_stride"])
def _entries(
    logits, bias, node, label, table, log_denominator, out, rows, start, stop, drop, count, row_stride, out_stride,
    SHIFT: tl.constexpr, SIGMOID: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    REAL: tl.constexpr = bias.dtype.element_ty
    r = tl.program_id(0).to(tl.int64) * HEIGHT + tl.arange(0, HEIGHT)
    live = r < rows
    row = logits + r * row_stride
    n = tl.load(node + r, mask=live, other=0)
    y = tl.load(label + r, mask=live, other=-1)
    top = tl.full((HEIGHT,), float("-inf"), REAL)
    total = tl.zeros((HEIGHT,), REAL)
    rest = tl.zeros((HEIGHT,), tl.float64)
    if not SIGMOID:
        for first in range(start, stop, WIDTH):
            v = first + tl.arange(0, WIDTH)
            held = live[:, None] & ((v < stop) & (v != drop))[None, :]
            score = tl.where(held, _scores(row, bias, v, held, stop, REAL), float("-inf"))
            best = tl.max(tl.where(score == score, score, float("-inf")), 1)  # NaN shows in the sum
            best = tl.where(best > top, best, top)
            shift = tl.where(best == float("-inf"), 0.0, best)  # nothing but -inf so far
            total = total * tl.exp(top - shift) + tl.sum(tl.exp(score - shift[:, None]), 1)
            top = best
        rest = tl.log(total.to(tl.float64))  # apart from top it keeps the digits that their sum would lose
        tl.store(log_denominator + n, (top.to(tl.float64) + rest).to(log_denominator.dtype.element_ty), mask=live)
    for i in range(0, count):
        e, column, complement = tl.load(table + i * 3), tl.load(table + i * 3 + 1), tl.load(table + i * 3 + 2)
        v = tl.where(column < 0, y, column)
        held = live & (v >= 0)
        score = widen(tl.load(row + v, mask=held, other=0), REAL) + tl.load(bias + v, mask=held, other=0.0)
        if SIGMOID:
            x = score.to(tl.float64)
            x = (_log_sigmoid(tl.where(complement != 0, -x, x)) - SHIFT).to(REAL)
        else:
            x = ((score - top) - rest.to(REAL)) - SHIFT
        tl.store(out + e * out_stride + n, tl.where(held, x, float("-inf")), mask=live)


@triton.jit(do_not_specialize=["rows", "start", "stop", "drop"])
def _totals(
    logits, bias, node, log_denominator, totals, rows, start, stop, drop, row_stride, HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """Of every row the sum of a head's exp(score - denominator), by which its shares are divided; see `emission.py`."""
    REAL: tl.constexpr = bias.dtype.element_ty
    r = tl.program_id(0).to(tl.int64) * HEIGHT + tl.arange(0, HEIGHT)
    live = r < rows
    row = logits + r * row_stride
    level = tl.load(log_denominator + tl.load(node + r, mask=live, other=0), mask=live, other=0.0).to(REAL)
    total = tl.zeros((HEIGHT,), REAL)
    for first in range(start, stop, WIDTH):
        v = first + tl.arange(0, WIDTH)
        held = live[:, None] & ((v < stop) & (v != drop))[None, :]
        score = _scores(row, bias, v, held, stop, REAL)
        total += tl.sum(tl.where(held, tl.exp(score - level[:, None]), 0.0), 1)
    tl.store(totals + r, total, mask=live)


@triton.jit(do_not_specialize=["rows", "start", "stop", "drop", "count", "each", "gamma_stride"])
def _gradient(
    logits, bias, node, label, table, log_denominator, gammas, sums, totals, rows, start, stop, drop, count, each, row_stride,
    gamma_stride, SIGMOID: tl.constexpr, WHOLE: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    REAL: tl.constexpr = bias.dtype.element_ty
    part = tl.program_id(0).to(tl.int64)
    v = start + tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    mine = (v < stop) & (v != drop)
    sum_of_column = tl.zeros((WIDTH,), REAL)
    for first in range(0, each, HEIGHT):
        r = part * each + first + tl.arange(0, HEIGHT)
        live = r < rows
        row = logits + r * row_stride
        n = tl.load(node + r, mask=live, other=0)
        y = tl.load(label + r, mask=live, other=-1)
        mass = tl.zeros((HEIGHT,), REAL)
        for i in range(0, count):
            mass += tl.load(gammas + tl.load(table + i * 3) * gamma_stride + n, mask=live, other=0.0)
        held = live[:, None] & mine[None, :]
        score = _scores(row, bias, v, held, stop, REAL)
        if SIGMOID:
            x = sigmoid(score) * mass[:, None]
        else:
            level = tl.load(log_denominator + n, mask=live, other=0.0).to(REAL)
            x = tl.where(held, tl.exp(score - level[:, None]), 0.0)
            total = tl.sum(x, 1)
            if not WHOLE:
                total = tl.load(totals + r, mask=live, other=1.0)
            x *= (mass / total)[:, None]
        x = tl.where(tl.abs(x) < 1e-37, 0.0, x)  # not worth a denormal number
        for i in range(0, count):
            e, column, complement = tl.load(table + i * 3), tl.load(table + i * 3 + 1), tl.load(table + i * 3 + 2)
            gamma = tl.load(gammas + e * gamma_stride + n, mask=live & (complement == 0), other=0.0)
            at = tl.where(column < 0, y, column)
            x -= tl.where(v[None, :] == at[:, None], gamma[:, None], 0.0)
        x = tl.where(held & (mass != 0.0)[:, None], x, 0.0)
        sum_of_column += tl.sum(x, 0)
        tl.store(row[:, None] + v[None, :], narrow(x, logits.dtype.element_ty), mask=held)
    tl.store(sums + part * (stop - start) + (v - start), sum_of_column, mask=v < stop)
