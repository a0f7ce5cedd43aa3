"""Upper bounds of the emissions of every node, from a few classes: one launch for all stretches, nothing in memory between.

The formula and the meaning of the arguments are in `kernels/eager/bounds.py`. A program takes a block of nodes of a stretch,
counted frame by frame, whatever the number of labels; joint encodings are made piece by piece and stay in registers.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from samplewise.kernels.masks import Dropout
from samplewise.kernels.triton.dropout import kept, key_of, numbers
from samplewise.kernels.triton.launch import blocks, on, power_of_2, rows_of
from samplewise.kernels.triton.numbers import activate, widen

HEIGHT, DEPTH, WARPS = 64, 32, 4  # nodes and features of a block
NODES = 512  # of a stretch, about, so that each block has a program; where there are more, programs take several
FEWEST = 16  # columns of a matrix product


def bounds(
    encoder_rows: Tensor, predictor_rows: Tensor, activation: str, utterances: Tensor, targets: Tensor, weight: Tensor,
    bias: Tensor, stretches: Tensor, classes: Tensor, rows: Tensor, row_bias: Tensor, rest: Tensor, slack: Tensor,
    ub_blank: Tensor, ub_label: Tensor, dropout: Dropout | None = None,
) -> None:  # fmt: skip
    """Write upper bounds of lp_blank and lp_label of every node of the stretches; see `kernels/eager/bounds.py`."""
    count, dim = rows.shape[1:]
    if not len(stretches):
        return
    widest = predictor_rows.shape[0] // len(utterances)  # no utterance has more labels; the host does not know how many
    mask = (0,) * 6 if dropout is None else numbers(dropout)
    scale = slack if dropout is None else slack.new_full((1,), dropout.scale)  # a number would be a float32 there
    with on(ub_blank):
        _bounds[(len(stretches), blocks(max(NODES, widest), HEIGHT))](
            rows_of(encoder_rows), rows_of(predictor_rows), utterances, targets, rows_of(weight), bias, stretches.contiguous(),
            classes.contiguous(), rows.contiguous(), row_bias.contiguous(), rest, slack, ub_blank, ub_label, count, dim,
            encoder_rows.stride(0), predictor_rows.stride(0), weight.stride(0), *mask[:3], mask[5], scale,
            ACTIVATION=activation, DROPS=dropout is not None, HEIGHT=HEIGHT,
            WIDTH=max(FEWEST, power_of_2(count, 1 << 30)), DEPTH=DEPTH, num_warps=WARPS,
        )  # fmt: skip


@triton.jit
def _scores(
    encoder_row, predictor_row, own_row, rows, live, own, k, count, dim, key, threshold, scale, ACTIVATION: tl.constexpr,
    DROPS: tl.constexpr, REAL: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Inner products of a block's joint encodings with the rows of the stretch (HEIGHT, WIDTH), and with each node's own."""
    score = tl.zeros((HEIGHT, WIDTH), REAL)
    by_own = tl.zeros((HEIGHT, DEPTH), REAL)
    for first in range(0, dim, DEPTH):
        d = first + tl.arange(0, DEPTH)
        inside = (d < dim)[None, :]
        x = widen(tl.load(encoder_row[:, None] + d[None, :], mask=live[:, None] & inside, other=0), REAL)
        x += widen(tl.load(predictor_row[:, None] + d[None, :], mask=live[:, None] & inside, other=0), REAL)
        z = activate(x, ACTIVATION)  # beyond the features something finite, which meets rows of zeros
        if DROPS:
            z = tl.where(kept(key[:, None], d[None, :], threshold), z * scale, 0.0).to(REAL)
        by_own += z * widen(tl.load(own_row[:, None] + d[None, :], mask=own[:, None] & inside, other=0), REAL)
        row = tl.load(rows + k[None, :] * dim + d[:, None], mask=(k < count)[None, :] & (d < dim)[:, None], other=0.0)
        score = tl.dot(z, row, score, input_precision="ieee", out_dtype=REAL)
    return score, tl.sum(by_own, 1)


@triton.jit
def _at_most_0(x):
    """NaN stays NaN."""
    return tl.where(x > 0.0, 0.0, x)


@triton.jit(do_not_specialize=["count", "dim"])
def _bounds(
    encoder_rows, predictor_rows, utterances, targets, weight, bias, stretches, classes, rows, row_bias, rest, slack, ub_blank,
    ub_label, count, dim, encoder_stride, predictor_stride, weight_stride, seed_low, seed_high, threshold,
    first_utterance, scale, ACTIVATION: tl.constexpr, DROPS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    DEPTH: tl.constexpr,
):  # fmt: skip
    REAL: tl.constexpr = bias.dtype.element_ty
    q = tl.program_id(0).to(tl.int64)
    begin, stop = tl.load(stretches + 3 * q + 1), tl.load(stretches + 3 * q + 2)
    table = utterances + 7 * tl.load(stretches + 3 * q)
    start, stride, labels = tl.load(table), tl.load(table + 1), tl.load(table + 2)
    frame_base, token_base, target_base = tl.load(table + 4), tl.load(table + 5), tl.load(table + 6)
    k = tl.arange(0, WIDTH)
    chosen = tl.load(classes + q * (count - 1) + k, mask=k < count - 1, other=-1)
    offset = tl.load(row_bias + q * count + k, mask=k < count, other=0.0)
    others, above = tl.load(rest + q), tl.load(slack + q)
    nodes = (stop - begin) * (labels + 1)
    for first in range(tl.program_id(1) * HEIGHT, nodes, tl.num_programs(1) * HEIGHT):
        n = first + tl.arange(0, HEIGHT).to(tl.int64)
        live = n < nodes
        t, u = begin + n // (labels + 1), n % (labels + 1)
        own = live & (u < labels)
        y = tl.load(targets + target_base + u, mask=own, other=0)
        own_bias = tl.load(bias + y, mask=own, other=float("-inf"))
        key, factor = u, others
        if DROPS:
            factor = tl.load(scale)
            key = key_of(seed_low, seed_high, first_utterance + tl.load(stretches + 3 * q), t, u)
        score, label = _scores(
            encoder_rows + (frame_base + t) * encoder_stride, predictor_rows + (token_base + u) * predictor_stride,
            weight + y * weight_stride, rows + q * count * dim, live, own, k, count, dim, key, threshold, factor, ACTIVATION,
            DROPS, REAL, HEIGHT, WIDTH, DEPTH,
        )  # fmt: skip
        score += offset[None, :]
        label += own_bias
        known = tl.max((y[:, None] == chosen[None, :]).to(tl.int32), 1) > 0
        counted = own & (own_bias != float("-inf")) & (known == 0)  # the label is one of the others: it is taken out
        left = others - tl.where(counted, 1.0, 0.0).to(REAL)
        many = tl.where(left > 1.0, left, 1.0)
        mean = tl.sum(tl.where((k == count - 1)[None, :], score, 0.0), 1) - tl.where(counted, label, 0.0)
        mean = tl.where(left > 0.5, mean / many + tl.log(many), float("-inf"))
        extra = tl.where(counted, label, float("-inf"))
        score = tl.where((k < count - 1)[None, :], score, float("-inf"))
        top = tl.max(tl.where(score == score, score, float("-inf")), 1)  # NaN shows in the sum
        top = tl.where(extra > top, extra, top)
        top = tl.where(mean > top, mean, top)
        shift = tl.where(top == float("-inf"), 0.0, top)
        total = tl.sum(tl.exp(score - shift[:, None]), 1) + tl.exp(extra - shift) + tl.exp(mean - shift)
        by_blank = tl.sum(tl.where((k == 0)[None, :], score, 0.0), 1)
        at = start + t * stride + u
        tl.store(ub_blank + at, _at_most_0((by_blank - shift) - tl.log(total) + above), mask=live)
        tl.store(ub_label + at, _at_most_0((label - shift) - tl.log(total) + above), mask=live)
