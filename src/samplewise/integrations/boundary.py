"""What k2 and fast_rnnt are told of a batch: symbols, the termination symbol and the boundary, read and checked once a call."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from samplewise import checks
from samplewise.errors import TransducerError


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
    """Read and check them. `like` is on the device and has the utterances; `given` is the argument that has so many frames, `rows`
    one that must have a row more than there are symbols; of a loss no symbol in use may be the termination symbol.

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
        return torch.tensor([[0, 0, frames, S]] * B, dtype=torch.int64), symbols.detach().to("cpu", torch.int64)
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
    s = torch.arange(symbols.shape[1])[None]
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
