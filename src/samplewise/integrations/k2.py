"""k2's transducer losses, call-compatible with k2 1.24.4: `import samplewise.integrations.k2 as k2` in place of `import k2`.

Names, arguments, their order and defaults, shapes and reductions are k2's: B utterances, T frames, S symbols, C classes, the
termination symbol (blank) among them. px (B, S, T+1) are log-probabilities of the next symbol, py (B, S+1, T) of the blank;
with rnnt_type "modified" and "constrained", where a symbol goes on one frame, px is (B, S, T). "constrained" symbols also pay
the blank after them. boundary (B, 4), [s_begin, t_begin, s_end, t_end], is [0, 0, S, T] by default. A positive delay_penalty
adds delay_penalty ((t_end - 1) / 2 - t) to a symbol at frame t. Reductions: "none" (B,), "mean" = sum / B, "sum".

What differs, in all of them: the recursion runs in float64 whatever the dtype, float16 and bfloat16 work and give float32,
boundaries may be int32, and arrays need not be contiguous. Of an utterance without a path the loss is infinite and gradients
are zero (k2: NaN). What is given is never changed, and padding is never read, but where it is said. In a loss, a symbol that is
the termination symbol is an error. There are first derivatives alone. Errors are `samplewise.TransducerError`s with k2's names.

Whatever else is asked of this module is k2's own, which is imported then: nothing of a file that says `k2.` has to change.
The exact loss of an icefall Joiner, without pruning and without the 4-D tensor: `samplewise.integrations.icefall`.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

import samplewise
from samplewise import checks
from samplewise.errors import TransducerError
from samplewise.integrations.boundary import Call, places_of, read
from samplewise.ops import arc_scores, pruning

RNNT_TYPES = ("regular", "modified", "constrained")
REDUCTIONS = ("none", "mean", "sum")

Pair = tuple[Tensor, Tensor]


def rnnt_loss(
    logits: Tensor, symbols: Tensor, termination_symbol: int, boundary: Tensor | None = None, rnnt_type: str = "regular",
    delay_penalty: float = 0.0, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """Loss of logits (B, T, S+1, C), symbols (B, S), as k2.rnnt_loss.

    It is `samplewise.rnnt_loss` (px and py are made where begins are not 0): beyond the logits' gradient it takes a few floats
    a node, where k2 takes two arrays of the logits' size.

    >>> import torch
    >>> from samplewise.integrations import k2
    >>> logits, symbols = torch.randn(2, 9, 4, 7, requires_grad=True), torch.tensor([[1, 2, 3], [4, 0, 0]])
    >>> k2.rnnt_loss(logits, symbols, 0, boundary=torch.tensor([[0, 0, 3, 9], [0, 0, 1, 5]]), reduction="sum").backward()
    """
    call = _of_logits(logits, symbols, termination_symbol, boundary, rnnt_type)
    checks.check_choice("reduction", reduction, REDUCTIONS)
    if call.starts_at_zero and call.has_frames:
        return samplewise.rnnt_loss(
            logits, call.symbols, *call.lengths, blank=call.blank, reduction=reduction, topology=rnnt_type,
            delay_penalty=_penalty(delay_penalty),
        )  # fmt: skip
    scores = arc_scores.of_logits(logits, call.symbols, call.blank)
    return _loss(scores, call, rnnt_type, delay_penalty, reduction)[0]


def rnnt_loss_simple(
    lm: Tensor, am: Tensor, symbols: Tensor, termination_symbol: int, boundary: Tensor | None = None,
    rnnt_type: str = "regular", delay_penalty: float = 0.0, reduction: str = "mean", return_grad: bool = False,
) -> Tensor | tuple[Tensor, Pair]:  # fmt: skip
    """Loss of the joint that adds lm (B, S+1, C) and am (B, T, C), as k2.rnnt_loss_simple.

    With return_grad also (px_grad, py_grad), the occupation probabilities of px and py, without gradient. The denominators are
    right where large scores make k2's product of exponentials underflow; memory: (B, S+1, T), never times C.

    >>> import torch
    >>> from samplewise.integrations import k2
    >>> lm, am, symbols = torch.randn(2, 4, 7), torch.randn(2, 9, 7), torch.tensor([[1, 2, 3], [4, 5, 6]])
    >>> loss, (px_grad, py_grad) = k2.rnnt_loss_simple(lm, am, symbols, 0, return_grad=True)
    >>> px_grad.shape, py_grad.shape
    (torch.Size([2, 3, 10]), torch.Size([2, 4, 9]))
    """
    call = _of_rows(lm, am, symbols, termination_symbol, boundary, rnnt_type)
    scores = arc_scores.of_sums(lm, am, call.symbols, call.blank)
    loss, grads = _loss(scores, call, rnnt_type, delay_penalty, reduction, return_grad)
    return (loss, grads) if return_grad else loss


def rnnt_loss_smoothed(
    lm: Tensor, am: Tensor, symbols: Tensor, termination_symbol: int, lm_only_scale: float = 0.1, am_only_scale: float = 0.1,
    boundary: Tensor | None = None, rnnt_type: str = "regular", delay_penalty: float = 0.0, reduction: str = "mean",
    return_grad: bool = False,
) -> Tensor | tuple[Tensor, Pair]:  # fmt: skip
    """The simple loss, with log-probabilities mixed with those of lm alone and of am alone, as k2.rnnt_loss_smoothed.

    (1 - lm_only_scale - am_only_scale) px + lm_only_scale px_lm + am_only_scale px_am, and py likewise; px_am has am plus the
    log of lm's mean distribution over the whole padded batch, as in k2: with am_only_scale the padding of lm has a part.

    >>> import torch
    >>> from samplewise.integrations import k2
    >>> lm, am = torch.randn(2, 4, 7, requires_grad=True), torch.randn(2, 9, 7)
    >>> k2.rnnt_loss_smoothed(lm, am, torch.tensor([[1, 2, 3], [4, 5, 6]]), 0, lm_only_scale=0.25, am_only_scale=0.0).backward()
    """
    call = _of_rows(lm, am, symbols, termination_symbol, boundary, rnnt_type)
    scales = _scales(lm_only_scale, am_only_scale)
    lm = lm if am_only_scale else _without_padding(lm, call.places[:, 1], call.places[:, 3] + 1)
    am = _without_padding(am, call.places[:, 0], call.places[:, 2])
    scores = arc_scores.smoothed(lm, am, call.symbols, call.blank, *scales)
    loss, grads = _loss(scores, call, rnnt_type, delay_penalty, reduction, return_grad)
    return (loss, grads) if return_grad else loss


def rnnt_loss_pruned(
    logits: Tensor, symbols: Tensor, ranges: Tensor, termination_symbol: int, boundary: Tensor | None = None,
    rnnt_type: str = "regular", delay_penalty: float = 0.0, reduction: str = "mean", use_hat_loss: bool = False,
) -> Tensor:  # fmt: skip
    """Loss of logits (B, T, s_range, C) that are there for the numbers of symbols in ranges (B, T, s_range), as
    k2.rnnt_loss_pruned: paths outside of the ranges are left out, so it is no less than the exact loss.

    use_hat_loss: the blank has a sigmoid, and the softmax is over the other classes (k2 wants termination_symbol 0 then).

    >>> import torch
    >>> from samplewise.integrations import k2
    >>> ranges = torch.arange(2).expand(1, 9, 2)
    >>> k2.rnnt_loss_pruned(torch.randn(1, 9, 2, 7), torch.tensor([[3]]), ranges, 0).shape
    torch.Size([])
    """
    call, ranges = _of_pruned(logits, symbols, ranges, termination_symbol, boundary, rnnt_type, True)
    scores = arc_scores.of_pruned(logits, call.symbols, ranges, call.blank, use_hat_loss)
    return _loss(scores, call, rnnt_type, delay_penalty, reduction)[0]


def get_rnnt_logprobs(
    lm: Tensor, am: Tensor, symbols: Tensor, termination_symbol: int, rnnt_type: str = "regular",
    boundary: Tensor | None = None,
) -> Pair:  # fmt: skip
    """(px, py) of the simple loss, as k2.get_rnnt_logprobs: differentiable, with all padding in them."""
    call = _of_rows(lm, am, symbols, termination_symbol, boundary, rnnt_type, False)
    return _in_lattice(arc_scores.of_sums(lm, am, call.symbols, call.blank), call, rnnt_type, boundary)


def get_rnnt_logprobs_smoothed(
    lm: Tensor, am: Tensor, symbols: Tensor, termination_symbol: int, lm_only_scale: float = 0.1, am_only_scale: float = 0.1,
    boundary: Tensor | None = None, rnnt_type: str = "regular",
) -> Pair:  # fmt: skip
    """(px, py) of the smoothed loss, as k2.get_rnnt_logprobs_smoothed."""
    call = _of_rows(lm, am, symbols, termination_symbol, boundary, rnnt_type, False)
    scales = _scales(lm_only_scale, am_only_scale)
    return _in_lattice(arc_scores.smoothed(lm, am, call.symbols, call.blank, *scales), call, rnnt_type, boundary)


def get_rnnt_logprobs_joint(
    logits: Tensor, symbols: Tensor, termination_symbol: int, rnnt_type: str = "regular", boundary: Tensor | None = None,
) -> Pair:  # fmt: skip
    """(px, py) of logits (B, T, S+1, C), as k2.get_rnnt_logprobs_joint."""
    call = _of_logits(logits, symbols, termination_symbol, boundary, rnnt_type, False)
    return _in_lattice(arc_scores.of_logits(logits, call.symbols, call.blank), call, rnnt_type, boundary)


def get_rnnt_logprobs_pruned(
    logits: Tensor, symbols: Tensor, ranges: Tensor, termination_symbol: int, boundary: Tensor | None,
    rnnt_type: str = "regular",
) -> Pair:  # fmt: skip
    """(px, py) of pruned logits (B, T, s_range, C), -inf outside of ranges, as k2.get_rnnt_logprobs_pruned."""
    call, ranges = _of_pruned(logits, symbols, ranges, termination_symbol, boundary, rnnt_type, False)
    return _in_lattice(arc_scores.of_pruned(logits, call.symbols, ranges, call.blank), call, rnnt_type, boundary)


def get_hat_logprobs_pruned(
    logits: Tensor, symbols: Tensor, ranges: Tensor, termination_symbol: int, boundary: Tensor | None,
    rnnt_type: str = "regular",
) -> Pair:  # fmt: skip
    """As `get_rnnt_logprobs_pruned`, with a sigmoid for the blank, as k2.rnnt_loss.get_hat_logprobs_pruned (where the
    termination symbol must be 0)."""
    call, ranges = _of_pruned(logits, symbols, ranges, termination_symbol, boundary, rnnt_type, False)
    return _in_lattice(arc_scores.of_pruned(logits, call.symbols, ranges, call.blank, True), call, rnnt_type, boundary)


def mutual_information_recursion(
    px: Tensor, py: Tensor, boundary: Tensor | None = None, return_grad: bool = False
) -> Tensor | tuple[Tensor, Pair]:
    """Scores (B,), minus the losses, of any px (B, S, T+1) or (B, S, T) and py (B, S+1, T), as k2.mutual_information_recursion.

    p[s_begin, t_begin] = 0, p[s, t] = log(exp(p[s-1, t] + px[s-1, t]) + exp(p[s, t-1] + py[s, t-1])), or with px[s-1, t-1] in
    the form (B, S, T); the score is p[s_end, t_end]. With return_grad also (px_grad, py_grad), the derivatives of the scores.

    >>> import torch
    >>> from samplewise.integrations import k2
    >>> k2.mutual_information_recursion(torch.zeros(1, 2, 4), torch.zeros(1, 3, 3)).exp().round()  # paths of 2 and 3 steps
    tensor([10.])
    """
    checks.check_tensors(px=px, py=py)
    if px.dim() != 3 or py.dim() != 3 or px.shape[0] == 0:
        raise TransducerError(f"px and py must be three-dimensional, but have shapes {tuple(px.shape)} and {tuple(py.shape)}")
    (B, S, columns), T = px.shape, py.shape[2]
    if tuple(py.shape) != (B, S + 1, T) or columns not in (T, T + 1):
        raise TransducerError(
            f"px is {tuple(px.shape)} and py {tuple(py.shape)}; they must be (B, S, T+1), or (B, S, T), and (B, S+1, T)"
        )
    _check_floats(px=px, py=py)
    places, _ = places_of(boundary, torch.zeros(B, S, dtype=torch.int64), T, "py")
    wanted = return_grad or (torch.is_grad_enabled() and (px.requires_grad or py.requires_grad))
    losses, grads = arc_scores.recursion(px, py, places, 0.0, wanted)
    return (-losses, grads) if return_grad else -losses


def get_rnnt_prune_ranges(px_grad: Tensor, py_grad: Tensor, boundary: Tensor, s_range: int) -> Tensor:
    """Ranges (B, T, s_range) of the numbers of symbols to keep in each frame, from occupation probabilities, as
    k2.get_rnnt_prune_ranges (arXiv 2206.13236, section 3.2).

    They do not go back, leave out no number, and end with the last one. s_range is at most S + 1 and, where px_grad is
    (B, S, T+1), at least trunc((S - 1) / T) + 2. As in k2, begins of the boundary have no part in it.

    >>> import torch
    >>> from samplewise.integrations import k2
    >>> loss, grads = k2.rnnt_loss_simple(
    ...     torch.randn(1, 4, 7), torch.randn(1, 9, 7), torch.tensor([[1, 2, 3]]), 0, return_grad=True)
    >>> k2.get_rnnt_prune_ranges(*grads, boundary=torch.tensor([[0, 0, 3, 9]]), s_range=2)[0, [0, -1]]
    tensor([[0, 1],
            [2, 3]])
    """
    width, step, limits = _of_ranges(px_grad, py_grad, boundary, s_range)
    gain = pruning.kept_probability(px_grad, py_grad, width)
    return pruning.ranges_of(gain, *limits, width, step)


def get_rnnt_prune_ranges_deprecated(px_grad: Tensor, py_grad: Tensor, boundary: Tensor, s_range: int) -> Tensor:
    """As `get_rnnt_prune_ranges`, by k2's older rule: what is kept of all occupation probabilities."""
    width, step, limits = _of_ranges(px_grad, py_grad, boundary, s_range)
    gain = pruning.kept_occupancy(px_grad, py_grad, width)
    return pruning.ranges_of(gain, *limits, width, step)


def do_rnnt_pruning(am: Tensor, lm: Tensor, ranges: Tensor) -> Pair:
    """am (B, T, C) and lm (B, S+1, C), each as (B, T, s_range, C), of the numbers of symbols in ranges (B, T, s_range), as
    k2.do_rnnt_pruning. What is returned for am is a view, without memory of its own.

    >>> import torch
    >>> from samplewise.integrations import k2
    >>> am, lm = k2.do_rnnt_pruning(torch.randn(1, 9, 5), torch.randn(1, 4, 6), torch.arange(2).expand(1, 9, 2))
    >>> am.shape, lm.shape
    (torch.Size([1, 9, 2, 5]), torch.Size([1, 9, 2, 6]))
    """
    checks.check_tensors(am=am, lm=lm)
    if am.dim() != 3 or lm.dim() != 3 or lm.shape[0] != am.shape[0]:
        raise TransducerError(f"am must be (B, T, C) and lm (B, S+1, C), but have shapes {tuple(am.shape)}, {tuple(lm.shape)}")
    ranges = _check_ranges(ranges, am, "am", lm.shape[1])
    utterance = torch.arange(len(lm), device=lm.device)[:, None, None]
    return am[:, :, None].expand(-1, -1, ranges.shape[2], -1), lm[utterance, ranges.to(lm.device)]


def __getattr__(name: str) -> Any:
    """What k2 has besides, such as RaggedTensor."""
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module("k2"), name)
    except ImportError as error:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}, and k2 is not installed") from error


def _loss(
    scores: Pair, call: Call, rnnt_type: str, delay_penalty: float, reduction: str, return_grad: bool = False
) -> tuple[Tensor, Pair]:
    checks.check_choice("reduction", reduction, REDUCTIONS)
    px, py = arc_scores.in_lattice(scores, rnnt_type, call.stop)
    wanted = return_grad or (torch.is_grad_enabled() and (px.requires_grad or py.requires_grad))
    losses, grads = arc_scores.recursion(px, py, call.places, _penalty(delay_penalty), wanted)
    return {"none": lambda: losses, "mean": losses.mean, "sum": losses.sum}[reduction](), grads


def _in_lattice(scores: Pair, call: Call, rnnt_type: str, boundary: Tensor | None) -> Pair:
    return arc_scores.in_lattice(scores, rnnt_type, None if boundary is None else call.stop)


def _penalty(delay_penalty: float) -> float:
    """k2 takes a negative one for none."""
    return max(checks.check_finite("delay_penalty", delay_penalty), 0.0)


def _scales(lm_only_scale: float, am_only_scale: float) -> tuple[float, float]:
    return checks.check_finite("lm_only_scale", lm_only_scale), checks.check_finite("am_only_scale", am_only_scale)


def _of_rows(
    lm: Tensor, am: Tensor, symbols: Tensor, termination_symbol: int, boundary: Tensor | None, rnnt_type: str,
    is_loss: bool = True,
) -> Call:  # fmt: skip
    """What goes with lm (B, S+1, C) and am (B, T, C)."""
    checks.check_choice("rnnt_type", rnnt_type, RNNT_TYPES)
    checks.check_tensors(lm=lm, am=am)
    if am.dim() != 3 or lm.dim() != 3 or (lm.shape[0], lm.shape[2]) != (am.shape[0], am.shape[2]) or 0 in (*am.shape, *lm.shape):
        raise TransducerError(
            f"am must be (B, T, C) and lm (B, S+1, C), none of them 0, but have shapes {tuple(am.shape)}, {tuple(lm.shape)}"
        )
    _check_floats(lm=lm, am=am)
    _, T, C = am.shape
    return read(symbols, boundary, termination_symbol, am, C, T, "am", rows=("lm", lm.shape[1]), is_loss=is_loss)


def _of_logits(
    logits: Tensor, symbols: Tensor, termination_symbol: int, boundary: Tensor | None, rnnt_type: str, is_loss: bool = True
) -> Call:
    """What goes with logits (B, T, S+1, C)."""
    checks.check_choice("rnnt_type", rnnt_type, RNNT_TYPES)
    checks.check_logits(logits)
    _, T, width, C = logits.shape
    return read(symbols, boundary, termination_symbol, logits, C, T, "logits", rows=("logits", width), is_loss=is_loss)


def _of_pruned(
    logits: Tensor, symbols: Tensor, ranges: Tensor, termination_symbol: int, boundary: Tensor | None, rnnt_type: str,
    is_loss: bool,
) -> tuple[Call, Tensor]:  # fmt: skip
    """What goes with logits (B, T, s_range, C), and the ranges on their device."""
    checks.check_choice("rnnt_type", rnnt_type, RNNT_TYPES)
    checks.check_tensors(logits=logits)
    if logits.dim() != 4 or 0 in logits.shape:
        raise TransducerError(f"logits must be (B, T, s_range, C), none of them 0, but has shape {tuple(logits.shape)}")
    _check_floats(logits=logits)
    _, T, width, C = logits.shape
    call = read(symbols, boundary, termination_symbol, logits, C, T, "logits", is_loss=is_loss)
    ranges = _check_ranges(ranges, logits, "logits", symbols.shape[1] + 1)
    checks.same_size("ranges", ranges.shape[2], "numbers a frame", "logits", width)
    return call, ranges.to(logits.device)


def _check_ranges(ranges: Tensor, like: Tensor, name: str, rows: int) -> Tensor:
    checks.check_tensors(ranges=ranges)
    if ranges.dtype not in (torch.int32, torch.int64) or ranges.dim() != 3 or tuple(ranges.shape[:2]) != tuple(like.shape[:2]):
        raise TransducerError(
            f"ranges must be ({like.shape[0]}, {like.shape[1]}, s_range) of int64 or int32, as {name} has shape"
            f" {tuple(like.shape)}, but has shape {tuple(ranges.shape)} and is {ranges.dtype}"
        )
    wrong = (ranges < 0) | (ranges >= rows)
    if bool(wrong.any()):
        b, t, i = wrong.nonzero()[0].tolist()
        raise TransducerError(f"ranges[{b}, {t}, {i}] is {int(ranges[b, t, i])}; it must be in 0..{rows - 1}, the numbers of symbols")
    return ranges.to(torch.int64)


def _of_ranges(px_grad: Tensor, py_grad: Tensor, boundary: Tensor, s_range: int) -> tuple[int, int, Pair]:
    """The width of ranges, the most that they go on, and frames and symbols of each utterance."""
    checks.check_tensors(px_grad=px_grad, py_grad=py_grad, boundary=boundary)
    if px_grad.dim() != 3 or py_grad.dim() != 3 or 0 in py_grad.shape:
        raise TransducerError(
            f"px_grad and py_grad must be three-dimensional, but have shapes {tuple(px_grad.shape)}, {tuple(py_grad.shape)}"
        )
    (B, S, columns), T = px_grad.shape, py_grad.shape[2]
    if tuple(py_grad.shape) != (B, S + 1, T) or columns not in (T, T + 1):
        raise TransducerError(
            f"px_grad is {tuple(px_grad.shape)} and py_grad {tuple(py_grad.shape)}; they must be (B, S, T+1), or (B, S, T), and"
            " (B, S+1, T)"
        )
    if tuple(boundary.shape) != (B, 4):
        raise TransducerError(f"boundary must be ({B}, 4), but has shape {tuple(boundary.shape)}")
    regular = columns == T + 1
    width = min(max(checks.check_whole("s_range", s_range, 1), int((S - 1) / T) + 2 if regular else 1), S + 1)
    boundary = boundary.to(px_grad.device)
    return width, width - 1 if regular else 1, (boundary[:, 3], boundary[:, 2])


def _check_floats(**tensors: Tensor) -> None:
    for name, tensor in tensors.items():
        if tensor.dtype not in checks.FLOATS:
            raise TransducerError(f"{name} is {tensor.dtype}; it must be float32, float64, bfloat16 or float16")
    checks.check_dtypes(False, **tensors)


def _without_padding(x: Tensor, first: Tensor, count: Tensor) -> Tensor:
    """x (B, N, C) with zeros beside the rows that an utterance uses."""
    row = torch.arange(x.shape[1])[None]
    unused = (row < first[:, None]) | (row >= (first + count)[:, None])
    return x.masked_fill(unused[..., None].to(x.device), 0.0)
