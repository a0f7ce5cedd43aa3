"""Log-probabilities of arcs from scores of symbols, in the form of k2 and fast_rnnt: px (B, S, T) of the next symbol, py
(B, S+1, T) of the blank, frames last; and their loss.

Sources: pruned RNN-T arXiv 2206.13236, whose "simple" joint adds two rows of scores and whose smoothed loss mixes it with each
of the two alone; the hybrid autoregressive transducer arXiv 2003.07705.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, pad

from samplewise.ops.given import given_arcs
from samplewise.ops.pair_sums import pair_sums
from samplewise.ops.problem import real_dtype

Scores = tuple[Tensor, Tensor]  # px, py


def of_sums(lm: Tensor, am: Tensor, symbols: Tensor, blank: int) -> Scores:
    """Of the softmax over lm[b, s] + am[b, t]; lm (B, S+1, C), am (B, T, C), symbols (B, S)."""
    lm, am = (x.to(real_dtype(x.dtype)) for x in (lm, am))  # once, or gradients add up in half precision
    denominators, _ = pair_sums(lm, am)  # (B, S+1, T)
    px = _by_frame(am, symbols) + _by_symbol(lm, symbols)[..., None] - denominators[:, :-1]
    return px, am[:, None, :, blank] + lm[:, :, None, blank] - denominators


def smoothed(lm: Tensor, am: Tensor, symbols: Tensor, blank: int, lm_only: float, am_only: float) -> Scores:
    """`of_sums`, the softmax over lm alone, and that over am plus the log of the mean distribution of lm, by their shares."""
    lm, am = (x.to(real_dtype(x.dtype)) for x in (lm, am))
    px, py = (x * (1.0 - lm_only - am_only) for x in of_sums(lm, am, symbols, blank))
    lm = lm.log_softmax(2)
    if lm_only:
        px = px + lm_only * _by_symbol(lm, symbols)[..., None]
        py = py + lm_only * lm[:, :, None, blank]
    if am_only:
        mean = lm.flatten(0, 1).logsumexp(0) - math.log(lm.shape[0] * lm.shape[1])  # (C,)
        am = (am + mean).log_softmax(2)
        px = px + am_only * _by_frame(am, symbols)
        py = py + am_only * am[:, None, :, blank]
    return px, py


def of_logits(logits: Tensor, symbols: Tensor, blank: int, places: Tensor) -> Scores:
    """Of the softmax over logits (B, T, S+1, C); beside the `places` (B, 4) of utterances there may be anything."""
    logits = _numbers(logits.to(real_dtype(logits.dtype)), places, torch.arange(logits.shape[2], device=logits.device))
    index = symbols[:, None, :, None].expand(-1, logits.shape[1], -1, 1)
    denominators = logits.logsumexp(3)  # (B, T, S+1)
    px = logits[:, :, :-1].gather(3, index)[..., 0] - denominators[:, :, :-1]
    return px.transpose(1, 2), (logits[..., blank] - denominators).transpose(1, 2)


def of_pruned(logits: Tensor, symbols: Tensor, ranges: Tensor, blank: int, places: Tensor, hat: bool = False) -> Scores:
    """Of logits (B, T, R, C) that are there for R numbers of symbols a frame, `ranges` (B, T, R); -inf elsewhere. With `hat`
    the blank has a sigmoid of its own, and the softmax is over the others. `places` as of `of_logits`."""
    logits = _numbers(logits.to(real_dtype(logits.dtype)), places, ranges)
    B, T, _ = ranges.shape
    following = pad(symbols, (0, 1))[:, None].expand(-1, T, -1).gather(2, ranges)  # (B, T, R), of the last one anything
    label, of_blank = logits.gather(3, following[..., None])[..., 0], logits[..., blank]
    if hat:
        others = torch.arange(logits.shape[3], device=logits.device) != blank
        label = label - logits.masked_fill(~others, -math.inf).logsumexp(3) + logsigmoid(-of_blank)
        of_blank = logsigmoid(of_blank)
    else:
        denominators = logits.logsumexp(3)
        label, of_blank = label - denominators, of_blank - denominators
    nothing = logits.new_full((B, T, symbols.shape[1] + 1), -math.inf)
    px, py = (nothing.scatter(2, ranges, x).transpose(1, 2) for x in (label, of_blank))
    return px[:, :-1], py


def _numbers(logits: Tensor, places: Tensor, symbols: Tensor) -> Tensor:
    """Logits (B, T, R, C) of so many symbols (B, T, R), with zeros in the place of what is no number beside the places: its
    gradient would be none, either."""
    first, low, frames, count = (x[:, None] for x in places.to(logits.device).unbind(1))
    t = torch.arange(logits.shape[1], device=logits.device)[None]
    in_time = ((t >= first) & (t < first + frames))[..., None]
    used = in_time & (symbols >= low[..., None]) & (symbols <= (low + count)[..., None])
    if bool((used | logits.detach().sum(3).isfinite()).all()):
        return logits
    return logits.masked_fill(~used[..., None], 0.0)


def in_lattice(scores: Scores, kind: str, stop: Tensor | None) -> Scores:
    """Made ready for the recursion: "constrained" symbols pay the blank after them; of "regular" ones, which stay in their
    frame, px gets a column more, and -inf where the utterance has stopped, (B,)."""
    px, py = scores
    if kind == "constrained":
        px = px + py[:, 1:]
    elif kind == "regular":
        px = pad(px, (0, 1), value=-math.inf)
        if stop is not None:
            px = px.masked_fill(torch.arange(px.shape[2], device=px.device) == stop[:, None, None], -math.inf)
    return px.contiguous(), py.contiguous()


def recursion(px: Tensor, py: Tensor, places: Tensor, delay_penalty: float, gradient: bool) -> tuple[Tensor, Scores]:
    """Losses (B,) of px (B, S, T+1), or (B, S, T) where symbols go on one frame, and py (B, S+1, T), and with `gradient` the
    posteriors in their form. places (B, 4): first frame, first symbol, frames and symbols."""
    (_, S, columns), T = px.shape, py.shape[2]
    kind = "regular" if columns == T + 1 else "modified"
    losses, gammas = given_arcs(py.transpose(1, 2), px.transpose(1, 2), places, kind, True, delay_penalty, gradient)
    if not gradient:
        return losses, (px.new_empty(0), py.new_empty(0))
    of_blank, of_symbol = gammas[0, :, :T], gammas[1, :, :columns, :S]
    return losses, (of_symbol.transpose(1, 2).contiguous(), of_blank.transpose(1, 2).contiguous())


def _by_frame(am: Tensor, symbols: Tensor) -> Tensor:
    """am[b, t, symbols[b, s]], (B, S, T)."""
    return am.gather(2, symbols[:, None].expand(-1, am.shape[1], -1)).transpose(1, 2)


def _by_symbol(lm: Tensor, symbols: Tensor) -> Tensor:
    """lm[b, s, symbols[b, s]], (B, S)."""
    return lm[:, :-1].gather(2, symbols[..., None])[..., 0]
