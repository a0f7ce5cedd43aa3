"""What k2's and fast_rnnt's functions are given, read and checked once a call, under their names; and losses in their form."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from samplewise import checks
from samplewise.errors import TransducerError
from samplewise.integrations.arguments import REDUCTIONS
from samplewise.ops import arc_scores

RnntType = Literal["regular", "modified", "constrained"]
RNNT_TYPES: tuple[str, ...] = get_args(RnntType)

Pair = tuple[Tensor, Tensor]


class Call(NamedTuple):
    """Symbols (B, S) int64 on the device, each of them a class; the blank's class; and on the host, places (B, 4) int64: first
    frame, first symbol, frames and symbols of each utterance."""

    symbols: Tensor
    blank: int
    places: Tensor

    @property
    def starts_at_zero(self) -> bool:
        return not bool(self.places[:, :2].any())

    @property
    def has_frames(self) -> bool:
        return bool((self.places[:, 2] > 0).all())

    @property
    def stop(self) -> Tensor:
        """(B,) the frame behind each utterance's last, on the device."""
        return (self.places[:, 0] + self.places[:, 2]).to(self.symbols.device)

    @property
    def lengths(self) -> tuple[Tensor, Tensor]:
        return self.places[:, 2], self.places[:, 3]


def read(
    symbols: Tensor, boundary: Tensor | None, termination_symbol: int, like: Tensor, classes: int, frames: int, given: str, *,
    rows: tuple[str, int] | None = None, is_loss: bool = True,
) -> Call:  # fmt: skip
    """Read and check them. `like` is on the device and has the utterances; `given` is the argument that has so many frames,
    `rows` one that must have a row more than there are symbols; of a loss no symbol in use may be the termination symbol.

    Raises:
        TransducerError: one is wrong; the message names it as k2 does, the utterance and the numbers.
    """
    checks.check_integer("symbols", symbols, 2, like.shape[0])
    S = symbols.shape[1]
    if rows is not None and rows[1] != S + 1:
        raise TransducerError(f"{rows[0]} has {rows[1]} rows, but symbols holds {S} symbols an utterance: it must have {S + 1}")
    blank = checks.check_whole("termination_symbol", termination_symbol)
    if not -classes <= blank < classes:
        raise TransducerError(f"termination_symbol is {blank}, but there are {classes} classes: it must be in 0..{classes - 1}")
    blank %= classes
    places, host = places_of(boundary, symbols, frames, given)
    _check_symbols(host, places, classes, blank if is_loss else -1, boundary is None)
    return Call(symbols.to(device=like.device, dtype=torch.int64).clamp(0, classes - 1), blank, places)


def places_of(boundary: Tensor | None, symbols: Tensor, frames: int, given: str) -> tuple[Tensor, Tensor]:
    """Places (B, 4) and symbols (B, S) on the host."""
    (B, S), device = symbols.shape, symbols.device
    if boundary is None:
        return torch.tensor([[0, 0, frames, S]] * B, dtype=torch.int64, device="cpu"), symbols.detach().to("cpu", torch.int64)
    checks.check_tensors(boundary=boundary)
    if boundary.dtype not in (torch.int32, torch.int64) or tuple(boundary.shape) != (B, 4):
        raise TransducerError(
            f"boundary must be ({B}, 4) of int64 or int32, but has shape {tuple(boundary.shape)} and is {boundary.dtype}"
        )
    parts = (boundary.detach().to(device, torch.int64).flatten(), symbols.detach().to(torch.int64).flatten())
    host = torch.cat(parts).cpu()  # one synchronisation for both
    for b, (s, t, s_end, t_end) in enumerate(host[: 4 * B].view(B, 4).tolist()):
        if not 0 <= s <= s_end <= S or not 0 <= t <= t_end <= frames:
            raise TransducerError(
                f"boundary[{b}] is [{s}, {t}, {s_end}, {t_end}], which is [s_begin, t_begin, s_end, t_end]: symbols must be in"
                f" 0..{S}, as symbols has so many, and frames in 0..{frames}, as {given} has, and no begin behind its end"
            )
    limits = host[: 4 * B].view(B, 4)
    begin, end = limits[:, [1, 0]], limits[:, [3, 2]]
    return torch.cat((begin, end - begin), 1), host[4 * B :].view(B, S)


def _check_symbols(symbols: Tensor, places: Tensor, classes: int, blank: int, everything: bool) -> None:
    s = torch.arange(symbols.shape[1], device=symbols.device)[None]
    used = (s >= places[:, 1:2]) & (s < places[:, 1:2] + places[:, 3:4])
    wrong = used & ((symbols < 0) | (symbols >= classes) | (symbols == blank))
    if bool(wrong.any()):
        b, i = wrong.nonzero()[0].tolist()
        label = int(symbols[b, i])
        why = "that is the termination_symbol" if label == blank else f"there are {classes} classes"
        other = "" if blank < 0 else f" and not {blank}"
        hint = "; without a boundary all symbols count, padding too" if everything else ""
        raise TransducerError(
            f"symbols[{b}, {i}] is {label}, but {why}: within its boundary a symbol must be in 0..{classes - 1}{other}{hint}"
        )


def loss_of(
    scores: Pair, call: Call, rnnt_type: str, delay_penalty: float, reduction: str, return_grad: bool = False
) -> tuple[Tensor, Pair]:
    checks.check_choice("reduction", reduction, REDUCTIONS)
    px, py = arc_scores.in_lattice(scores, rnnt_type, call.stop)
    wanted = return_grad or (torch.is_grad_enabled() and (px.requires_grad or py.requires_grad))
    losses, grads = arc_scores.recursion(px, py, call.places, penalty_of(delay_penalty), wanted)
    if reduction == "none":
        return losses, grads
    return losses.mean() if reduction == "mean" else losses.sum(), grads


def in_lattice(scores: Pair, call: Call, rnnt_type: str, boundary: Tensor | None) -> Pair:
    return arc_scores.in_lattice(scores, rnnt_type, None if boundary is None else call.stop)


def penalty_of(delay_penalty: float) -> float:
    """k2 takes a negative one for none."""
    return max(checks.check_finite("delay_penalty", delay_penalty), 0.0)


def scales_of(lm_only_scale: float, am_only_scale: float) -> tuple[float, float]:
    return checks.check_finite("lm_only_scale", lm_only_scale), checks.check_finite("am_only_scale", am_only_scale)


def with_rows(
    lm: Tensor, am: Tensor, symbols: Tensor, termination_symbol: int, boundary: Tensor | None, rnnt_type: str,
    is_loss: bool = True,
) -> Call:  # fmt: skip
    """What goes with lm (B, S+1, C) and am (B, T, C)."""
    checks.check_choice("rnnt_type", rnnt_type, RNNT_TYPES)
    checks.check_tensors(lm=lm, am=am)
    if (
        am.dim() != 3
        or lm.dim() != 3
        or (lm.shape[0], lm.shape[2]) != (am.shape[0], am.shape[2])
        or 0 in (*am.shape, *lm.shape)
    ):
        raise TransducerError(
            f"am must be (B, T, C) and lm (B, S+1, C), none of them 0, but have shapes {tuple(am.shape)}, {tuple(lm.shape)}"
        )
    check_floats(lm=lm, am=am)
    _, T, C = am.shape
    return read(symbols, boundary, termination_symbol, am, C, T, "am", rows=("lm", lm.shape[1]), is_loss=is_loss)


def with_logits(
    logits: Tensor, symbols: Tensor, termination_symbol: int, boundary: Tensor | None, rnnt_type: str, is_loss: bool = True
) -> Call:
    """What goes with logits (B, T, S+1, C)."""
    checks.check_choice("rnnt_type", rnnt_type, RNNT_TYPES)
    checks.check_logits(logits, packed=False)
    _, T, width, C = logits.shape
    return read(symbols, boundary, termination_symbol, logits, C, T, "logits", rows=("logits", width), is_loss=is_loss)


def with_pruned(
    logits: Tensor, symbols: Tensor, ranges: Tensor, termination_symbol: int, boundary: Tensor | None, rnnt_type: str,
    is_loss: bool = True,
) -> tuple[Call, Tensor]:  # fmt: skip
    """What goes with logits (B, T, s_range, C), and the ranges on their device."""
    checks.check_choice("rnnt_type", rnnt_type, RNNT_TYPES)
    checks.check_tensors(logits=logits)
    if logits.dim() != 4 or 0 in logits.shape:
        raise TransducerError(f"logits must be (B, T, s_range, C), none of them 0, but has shape {tuple(logits.shape)}")
    check_floats(logits=logits)
    _, T, width, C = logits.shape
    call = read(symbols, boundary, termination_symbol, logits, C, T, "logits", is_loss=is_loss)
    ranges = check_ranges(ranges, logits, "logits", symbols.shape[1] + 1)
    checks.same_size("ranges", ranges.shape[2], "numbers a frame", "logits", width)
    return call, ranges.to(logits.device)


def check_ranges(ranges: Tensor, like: Tensor, name: str, rows: int) -> Tensor:
    checks.check_tensors(ranges=ranges)
    if ranges.dtype not in (torch.int32, torch.int64) or ranges.dim() != 3 or tuple(ranges.shape[:2]) != tuple(like.shape[:2]):
        raise TransducerError(
            f"ranges must be ({like.shape[0]}, {like.shape[1]}, s_range) of int64 or int32, as {name} has shape"
            f" {tuple(like.shape)}, but has shape {tuple(ranges.shape)} and is {ranges.dtype}"
        )
    wrong = (ranges < 0) | (ranges >= rows)
    if bool(wrong.any()):
        b, t, i = wrong.nonzero()[0].tolist()
        raise TransducerError(
            f"ranges[{b}, {t}, {i}] is {int(ranges[b, t, i])}; it must be in 0..{rows - 1}, the numbers of symbols"
        )
    return ranges.to(torch.int64)


def with_occupation(px_grad: Tensor, py_grad: Tensor, boundary: Tensor, s_range: int, widen: bool) -> tuple[int, int, Pair]:
    """The width of ranges, the most that they go on, and frames and symbols of each utterance."""
    checks.check_tensors(px_grad=px_grad, py_grad=py_grad, boundary=boundary)
    S, _, regular = recursion_sizes(px_grad=px_grad, py_grad=py_grad)
    if tuple(boundary.shape) != (len(px_grad), 4):
        raise TransducerError(f"boundary must be ({len(px_grad)}, 4), but has shape {tuple(boundary.shape)}")
    frames, symbols = (boundary[:, i].to(px_grad.device) for i in (3, 2))
    width = checks.check_whole("s_range", s_range, 1)
    if regular and widen:
        width = max(width, int((symbols - 1).div(frames.clamp(min=1), rounding_mode="trunc").max()) + 2)
    if regular and width < 2:
        raise TransducerError(f"s_range is {s_range}; it must be 2 or more, as px_grad is (B, S, T+1)")
    width = min(width, S + 1)
    return width, width - 1 if regular else 1, (frames, symbols)


def recursion_sizes(**pair: Tensor) -> tuple[int, int, bool]:
    """S, T and whether it is the regular lattice, of a pair (B, S, T+1) or (B, S, T), and (B, S+1, T)."""
    (name, px), (other, py) = pair.items()
    fits = px.dim() == py.dim() == 3 and px.shape[0] == py.shape[0] > 0 and px.shape[1] == py.shape[1] - 1
    if not fits or px.shape[2] - py.shape[2] not in (0, 1):
        raise TransducerError(
            f"{name} is {tuple(px.shape)} and {other} {tuple(py.shape)}; they must be (B, S, T+1), or (B, S, T), and"
            " (B, S+1, T)"
        )
    return px.shape[1], py.shape[2], px.shape[2] > py.shape[2]


def check_floats(**tensors: Tensor) -> None:
    checks.check_floats(**tensors)
    checks.check_dtypes(False, **tensors)


def without_padding(x: Tensor, first: Tensor, count: Tensor) -> Tensor:
    """x (B, N, C) with zeros beside the rows that an utterance uses."""
    row = torch.arange(x.shape[1], device=first.device)[None]
    unused = (row < first[:, None]) | (row >= (first + count)[:, None])
    return x.masked_fill(unused[..., None].to(x.device), 0.0)
