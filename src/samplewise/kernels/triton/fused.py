"""Emissions without joint encodings or logits in memory: matrix product, activation and softmax denominator in one kernel.

A block of rows walks the classes; for every block of these it makes its joint encodings anew, piece by piece, multiplies them
by the weight, and keeps the largest score and the sum of exponentials, as Cut Cross-Entropy (arXiv 2411.09009) does for
language models. It saves the traffic of z and h, and pays for it with the activation, once a block of classes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from samplewise.kernels.triton.launch import blocks, on, rows_of
from samplewise.kernels.triton.numbers import activate, narrow, widen

HEIGHT, WIDTH, DEPTH, WARPS = 64, 128, 32, 8  # rows, classes and features of a block


def fused_emission(
    encoder_rows: Tensor, predictor_rows: Tensor, frame: Tensor, token: Tensor, activation: str, weight: Tensor, bias: Tensor,
    node: Tensor, label: Tensor, blank: int, log_denominator: Tensor, lp_blank: Tensor, lp_label: Tensor,
) -> None:  # fmt: skip
    """`emission` of the logits act(encoder_rows[frame] + predictor_rows[token]) weight^T, which are never written.

    encoder_rows (F, D), predictor_rows (K, D), weight (V, D) in float32, bfloat16 or float16, bias (V,) float32; the rest as in
    `joint` and `emission`. Sums are float32; TF32 is used if PyTorch's matrix products may use it.
    """
    rows, (classes, dim) = frame.numel(), weight.shape
    precision = "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"
    if rows:
        with on(weight):
            _fused_emission[(blocks(rows, HEIGHT),)](
                rows_of(encoder_rows), rows_of(predictor_rows), frame, token, rows_of(weight), bias, node, label,
                log_denominator, lp_blank, lp_label, rows, classes, dim, blank, encoder_rows.stride(0),
                predictor_rows.stride(0), weight.stride(0), ACTIVATION=activation, PRECISION=precision, HEIGHT=HEIGHT,
                WIDTH=WIDTH, DEPTH=DEPTH, num_warps=WARPS,
            )  # fmt: skip


@triton.jit
def _scores(
    encoder_row, predictor_row, weight, v, live, classes, dim, weight_stride, ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Logits of a block of rows and the classes v, without the bias; encodings are rounded as if they had been stored."""
    STORED: tl.constexpr = weight.dtype.element_ty
    score = tl.zeros((HEIGHT, WIDTH), tl.float32)
    column = weight + v.to(tl.int64) * weight_stride
    for first in range(0, dim, DEPTH):
        d = first + tl.arange(0, DEPTH)
        held = live[:, None] & (d < dim)[None, :]
        x = widen(tl.load(encoder_row[:, None] + d[None, :], mask=held, other=0), tl.float32)
        x += widen(tl.load(predictor_row[:, None] + d[None, :], mask=held, other=0), tl.float32)
        z = narrow(tl.where(held, activate(x, ACTIVATION), 0.0), STORED)
        w = tl.load(column[None, :] + d[:, None], mask=(d < dim)[:, None] & (v < classes)[None, :], other=0)
        if tl.int16 == STORED:  # bfloat16 in the interpreter
            z = widen(z, tl.float32)
            w = widen(w, tl.float32)
        score = tl.dot(z, w, score, input_precision=PRECISION)
    return score


@triton.jit(do_not_specialize=["rows", "classes", "blank"])
def _fused_emission(
    encoder_rows, predictor_rows, frame, token, weight, bias, node, label, log_denominator, lp_blank, lp_label, rows, classes,
    dim, blank, encoder_stride, predictor_stride, weight_stride, ACTIVATION: tl.constexpr, PRECISION: tl.constexpr,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    r = tl.program_id(0).to(tl.int64) * HEIGHT + tl.arange(0, HEIGHT)
    live = r < rows
    y = tl.load(label + r, mask=live, other=-1)
    encoder_row = encoder_rows + tl.load(frame + r, mask=live, other=0) * encoder_stride
    predictor_row = predictor_rows + tl.load(token + r, mask=live, other=0) * predictor_stride
    top = tl.full((HEIGHT,), float("-inf"), tl.float32)
    total = tl.zeros((HEIGHT,), tl.float32)
    by_blank = tl.zeros((HEIGHT,), tl.float32)
    by_label = tl.zeros((HEIGHT,), tl.float32)
    for first in range(0, classes, WIDTH):
        v = first + tl.arange(0, WIDTH)
        score = _scores(
            encoder_row,
            predictor_row,
            weight,
            v,
            live,
            classes,
            dim,
            weight_stride,
            ACTIVATION,
            PRECISION,
            HEIGHT,
            WIDTH,
            DEPTH,
        )
        score += tl.load(bias + v, mask=v < classes, other=0.0)[None, :]
        by_blank += tl.sum(tl.where((v == blank)[None, :], score, 0.0), 1)
        by_label += tl.sum(tl.where(v[None, :] == y[:, None], score, 0.0), 1)
        score = tl.where((v < classes)[None, :], score, float("-inf"))
        best = tl.max(tl.where(score == score, score, float("-inf")), 1)  # NaN shows in the sum
        best = tl.where(best > top, best, top)
        shift = tl.where(best == float("-inf"), 0.0, best)
        total = total * tl.exp(top - shift) + tl.sum(tl.exp(score - shift[:, None]), 1)
        top = best
    rest = tl.log(total.to(tl.float64))
    n = tl.load(node + r, mask=live, other=0)
    tl.store(log_denominator + n, (top.to(tl.float64) + rest).to(log_denominator.dtype.element_ty), mask=live)
    tl.store(lp_blank + n, (by_blank - top) - rest.to(tl.float32), mask=live)
    tl.store(lp_label + n, tl.where(y >= 0, (by_label - top) - rest.to(tl.float32), float("-inf")), mask=live)
