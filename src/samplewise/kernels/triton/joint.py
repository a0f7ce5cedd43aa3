"""The joint encoding of a tile of nodes, z = act(encoder row + predictor row), and its gradient (paper: f^J)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from samplewise.kernels.activations import TABLE
from samplewise.kernels.triton.launch import blocks, on, power_of_2, rows_of
from samplewise.kernels.triton.numbers import activate, narrow, slope, widen

BLOCK, WIDEST, WARPS = 2048, 512, 4  # elements and columns of a block
RUN, RUN_WIDEST = 16, 128  # rows that a sum takes at a time, and its columns


def joint(encoder_rows: Tensor, predictor_rows: Tensor, frame: Tensor, token: Tensor, activation: str, out: Tensor) -> None:
    """out[r] = act(encoder_rows[frame[r]] + predictor_rows[token[r]]).

    encoder_rows (F, D), predictor_rows (K, D), frame and token (R,) int64, out (R, D).
    """
    rows, dim = out.shape
    width = power_of_2(dim, WIDEST)
    height = min(64, BLOCK // width)
    if rows:
        with on(out):
            _joint[(blocks(rows, height), blocks(dim, width))](
                rows_of(encoder_rows), rows_of(predictor_rows), frame, token, rows_of(out), rows, dim, encoder_rows.stride(0),
                predictor_rows.stride(0), out.stride(0), ACTIVATION=activation, REAL=_real(encoder_rows, predictor_rows),
                HEIGHT=height, WIDTH=width, num_warps=WARPS,
            )  # fmt: skip


def joint_gradient(
    d_joint: Tensor, joint_out: Tensor, encoder_rows: Tensor, predictor_rows: Tensor, frame: Tensor, token: Tensor,
    activation: str, d_encoder_rows: Tensor, d_predictor_rows: Tensor,
) -> None:  # fmt: skip
    """Send dz (R, D) through the activation and add it to the rows that made it.

    d_encoder_rows and d_predictor_rows accumulate and are float32 (float64 for float64 inputs). Rows of one frame that come
    together, and, once sorted, all rows of one token, are summed in order by one program and added once. Nodes come
    ascending, so that is all of a frame, and the sums do not depend on timing.
    """
    rows, dim = d_joint.shape
    if not rows:
        return
    width = power_of_2(dim, RUN_WIDEST)
    by_frame = frame.sort(stable=True) if torch.are_deterministic_algorithms_enabled() else (frame, None)
    for (key, order), total in ((by_frame, d_encoder_rows), (token.sort(stable=True), d_predictor_rows)):
        with on(d_joint):
            _add_runs[(rows, blocks(dim, width))](
                rows_of(d_joint), rows_of(joint_out), rows_of(encoder_rows), rows_of(predictor_rows), frame, token, key,
                key if order is None else order, total, rows, dim, d_joint.stride(0), joint_out.stride(0),
                encoder_rows.stride(0), predictor_rows.stride(0), total.stride(0), ACTIVATION=activation,
                OF_SUM=TABLE[activation].of_sum, SORTED=order is not None, RUN=RUN, WIDTH=width, num_warps=WARPS,
            )  # fmt: skip


def _real(*tensors: Tensor) -> tl.dtype:
    return tl.float64 if any(tensor.dtype == torch.float64 for tensor in tensors) else tl.float32


@triton.jit(do_not_specialize=["rows", "dim"])
def _joint(
    encoder_rows, predictor_rows, frame, token, out, rows, dim, encoder_stride, predictor_stride, out_stride,
    ACTIVATION: tl.constexpr, REAL: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    r = tl.program_id(0).to(tl.int64) * HEIGHT + tl.arange(0, HEIGHT)
    d = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    live = r < rows
    held = live[:, None] & (d < dim)[None, :]
    f = tl.load(frame + r, mask=live, other=0)
    k = tl.load(token + r, mask=live, other=0)
    x = widen(tl.load(encoder_rows + f[:, None] * encoder_stride + d[None, :], mask=held, other=0), REAL)
    x += widen(tl.load(predictor_rows + k[:, None] * predictor_stride + d[None, :], mask=held, other=0), REAL)
    z = narrow(activate(x, ACTIVATION), out.dtype.element_ty)
    tl.store(out + r[:, None] * out_stride + d[None, :], z, mask=held)


@triton.jit(do_not_specialize=["rows", "dim"])
def _add_runs(
    dz, z, encoder_rows, predictor_rows, frame, token, key, order, total, rows, dim, dz_stride, z_stride, encoder_stride,
    predictor_stride, total_stride, ACTIVATION: tl.constexpr, OF_SUM: tl.constexpr, SORTED: tl.constexpr, RUN: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """One program for every place where a run of equal keys may begin; most find that none does."""
    REAL: tl.constexpr = total.dtype.element_ty
    first = tl.program_id(0).to(tl.int64)
    mine = tl.load(key + first)
    begins = mine != tl.load(key + first - 1, mask=first > 0, other=-1)
    if begins:
        d = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
        gathered = tl.zeros((WIDTH,), REAL)
        goes_on = True
        at = first
        while goes_on:
            place = at + tl.arange(0, RUN)
            other = tl.load(key + place, mask=place < rows, other=-1) != mine
            same = tl.cumsum(other.to(tl.int32), 0) == 0
            r = place
            if SORTED:
                r = tl.load(order + place, mask=same, other=0)
            held = same[:, None] & (d < dim)[None, :]
            g = widen(tl.load(dz + r[:, None] * dz_stride + d[None, :], mask=held, other=0), REAL)
            y = widen(tl.load(z + r[:, None] * z_stride + d[None, :], mask=held, other=0), REAL)
            x = y
            if OF_SUM:
                f = tl.load(frame + r, mask=same, other=0)
                k = tl.load(token + r, mask=same, other=0)
                x = widen(tl.load(encoder_rows + f[:, None] * encoder_stride + d[None, :], mask=held, other=0), REAL)
                x += widen(tl.load(predictor_rows + k[:, None] * predictor_stride + d[None, :], mask=held, other=0), REAL)
            g = tl.where(g == 0.0, 0.0, g * slope(x, y, ACTIVATION))  # zero times NaN is zero here
            gathered += tl.sum(g, 0)
            goes_on = tl.sum(same.to(tl.int32), 0) == RUN
            at += RUN
        tl.atomic_add(total + mine * total_stride + d, gathered, mask=d < dim, sem="relaxed")
