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
from samplewise.integrations.arguments import REDUCTIONS, UsualReduction
from samplewise.integrations.k2_arguments import (
    Pair,
    RnntType,
    check_floats,
    check_ranges,
    in_lattice,
    loss_of,
    penalty_of,
    places_of,
    recursion_sizes,
    scales_of,
    with_logits,
    with_occupation,
    with_pruned,
    with_rows,
    without_padding,
)
from samplewise.ops import arc_scores, pruning


def rnnt_loss(
    logits: Tensor, symbols: Tensor, termination_symbol: int, boundary: Tensor | None = None, rnnt_type: RnntType = "regular",
    delay_penalty: float = 0.0, reduction: UsualReduction = "mean",
) -> Tensor:  # fmt: skip
    """Loss of logits (B, T, S+1, C), symbols (B, S), as k2.rnnt_loss.

    It is `samplewise.rnnt_loss`, which takes a few floats a node beyond the logits' gradient (px and py are made where begins
    are not 0).

    >>> import torch
    >>> from samplewise.integrations import k2
    >>> logits, symbols = torch.randn(2, 9, 4, 7, requires_grad=True), torch.tensor([[1, 2, 3], [4, 0, 0]])
    >>> k2.rnnt_loss(logits, symbols, 0, boundary=torch.tensor([[0, 0, 3, 9], [0, 0, 1, 5]]), reduction="sum").backward()
    """
    call = with_logits(logits, symbols, termination_symbol, boundary, rnnt_type)
    checks.check_choice("reduction", reduction, REDUCTIONS)
    if call.starts_at_zero and call.has_frames:
        return samplewise.rnnt_loss(
            logits, call.symbols, *call.lengths, blank=call.blank, reduction=reduction, topology=rnnt_type,
            delay_penalty=penalty_of(delay_penalty),
        )  # fmt: skip
    scores = arc_scores.of_logits(logits, call.symbols, call.blank, call.places)
    return loss_of(scores, call, rnnt_type, delay_penalty, reduction)[0]


def rnnt_loss_simple(
    lm: Tensor, am: Tensor, symbols: Tensor, termination_symbol: int, boundary: Tensor | None = None,
    rnnt_type: RnntType = "regular", delay_penalty: float = 0.0, reduction: UsualReduction = "mean", return_grad: bool = False,
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
    call = with_rows(lm, am, symbols, termination_symbol, boundary, rnnt_type)
    scores = arc_scores.of_sums(lm, am, call.symbols, call.blank)
    loss, grads = loss_of(scores, call, rnnt_type, delay_penalty, reduction, return_grad)
    return (loss, grads) if return_grad else loss


def rnnt_loss_smoothed(
    lm: Tensor, am: Tensor, symbols: Tensor, termination_symbol: int, lm_only_scale: float = 0.1, am_only_scale: float = 0.1,
    boundary: Tensor | None = None, rnnt_type: RnntType = "regular", delay_penalty: float = 0.0,
    reduction: UsualReduction = "mean", return_grad: bool = False,
) -> Tensor | tuple[Tensor, Pair]:  # fmt: skip
    """The simple loss, with log-probabilities mixed with those of lm alone and of am alone, as k2.rnnt_loss_smoothed.

    (1 - lm_only_scale - am_only_scale) px + lm_only_scale px_lm + am_only_scale px_am, and py likewise; px_am has am plus the
    log of lm's mean distribution over the whole padded batch, as in k2: with am_only_scale the padding of lm has a part.

    >>> import torch
    >>> from samplewise.integrations import k2
    >>> lm, am = torch.randn(2, 4, 7, requires_grad=True), torch.randn(2, 9, 7)
    >>> k2.rnnt_loss_smoothed(lm, am, torch.tensor([[1, 2, 3], [4, 5, 6]]), 0, lm_only_scale=0.25, am_only_scale=0.0).backward()
    """
    call = with_rows(lm, am, symbols, termination_symbol, boundary, rnnt_type)
    scales = scales_of(lm_only_scale, am_only_scale)
    lm = lm if am_only_scale else without_padding(lm, call.places[:, 1], call.places[:, 3] + 1)
    am = without_padding(am, call.places[:, 0], call.places[:, 2])
    scores = arc_scores.smoothed(lm, am, call.symbols, call.blank, *scales)
    loss, grads = loss_of(scores, call, rnnt_type, delay_penalty, reduction, return_grad)
    return (loss, grads) if return_grad else loss


def rnnt_loss_pruned(
    logits: Tensor, symbols: Tensor, ranges: Tensor, termination_symbol: int, boundary: Tensor | None = None,
    rnnt_type: RnntType = "regular", delay_penalty: float = 0.0, reduction: UsualReduction = "mean", use_hat_loss: bool = False,
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
    call, ranges = with_pruned(logits, symbols, ranges, termination_symbol, boundary, rnnt_type)
    scores = arc_scores.of_pruned(logits, call.symbols, ranges, call.blank, call.places, use_hat_loss)
    return loss_of(scores, call, rnnt_type, delay_penalty, reduction)[0]


def get_rnnt_logprobs(
    lm: Tensor, am: Tensor, symbols: Tensor, termination_symbol: int, rnnt_type: RnntType = "regular",
    boundary: Tensor | None = None,
) -> Pair:  # fmt: skip
    """(px, py) of the simple loss, as k2.get_rnnt_logprobs: differentiable, and made of the padding, too.

    >>> import torch
    >>> from samplewise.integrations import k2
    >>> px, py = k2.get_rnnt_logprobs(torch.randn(1, 4, 7), torch.randn(1, 9, 7), torch.tensor([[1, 2, 3]]), 0)
    >>> px.shape, py.shape, px[0, 0, 9]
    (torch.Size([1, 3, 10]), torch.Size([1, 4, 9]), tensor(-inf))
    """
    call = with_rows(lm, am, symbols, termination_symbol, boundary, rnnt_type, False)
    return in_lattice(arc_scores.of_sums(lm, am, call.symbols, call.blank), call, rnnt_type, boundary)


def get_rnnt_logprobs_smoothed(
    lm: Tensor, am: Tensor, symbols: Tensor, termination_symbol: int, lm_only_scale: float = 0.1, am_only_scale: float = 0.1,
    boundary: Tensor | None = None, rnnt_type: RnntType = "regular",
) -> Pair:  # fmt: skip
    """(px, py) of the smoothed loss, as k2.get_rnnt_logprobs_smoothed.

    >>> import torch
    >>> from samplewise.integrations import k2
    >>> lm, am = torch.randn(1, 4, 7), torch.randn(1, 9, 7)
    >>> k2.get_rnnt_logprobs_smoothed(lm, am, torch.tensor([[1, 2, 3]]), 0, rnnt_type="modified")[0].shape
    torch.Size([1, 3, 9])
    """
    call = with_rows(lm, am, symbols, termination_symbol, boundary, rnnt_type, False)
    scales = scales_of(lm_only_scale, am_only_scale)
    return in_lattice(arc_scores.smoothed(lm, am, call.symbols, call.blank, *scales), call, rnnt_type, boundary)


def get_rnnt_logprobs_joint(
    logits: Tensor, symbols: Tensor, termination_symbol: int, rnnt_type: RnntType = "regular", boundary: Tensor | None = None,
) -> Pair:  # fmt: skip
    """(px, py) of logits (B, T, S+1, C), as k2.get_rnnt_logprobs_joint.

    >>> import torch
    >>> from samplewise.integrations import k2
    >>> px, py = k2.get_rnnt_logprobs_joint(torch.zeros(1, 9, 4, 8), torch.tensor([[1, 2, 3]]), 0)
    >>> py.exp().unique()
    tensor([0.1250])
    """
    call = with_logits(logits, symbols, termination_symbol, boundary, rnnt_type, False)
    return in_lattice(arc_scores.of_logits(logits, call.symbols, call.blank, call.places), call, rnnt_type, boundary)


def get_rnnt_logprobs_pruned(
    logits: Tensor, symbols: Tensor, ranges: Tensor, termination_symbol: int, boundary: Tensor | None,
    rnnt_type: RnntType = "regular",
) -> Pair:  # fmt: skip
    """(px, py) of pruned logits (B, T, s_range, C), -inf outside of ranges, as k2.get_rnnt_logprobs_pruned.

    >>> import torch
    >>> from samplewise.integrations import k2
    >>> ranges = torch.arange(2).expand(1, 9, 2)
    >>> px, py = k2.get_rnnt_logprobs_pruned(torch.zeros(1, 9, 2, 8), torch.tensor([[1, 2, 3]]), ranges, 0, None)
    >>> py.exp()[0, :, 0]
    tensor([0.1250, 0.1250, 0.0000, 0.0000])
    """
    call, ranges = with_pruned(logits, symbols, ranges, termination_symbol, boundary, rnnt_type, False)
    return in_lattice(arc_scores.of_pruned(logits, call.symbols, ranges, call.blank, call.places), call, rnnt_type, boundary)


def get_hat_logprobs_pruned(
    logits: Tensor, symbols: Tensor, ranges: Tensor, termination_symbol: int, boundary: Tensor | None,
    rnnt_type: RnntType = "regular",
) -> Pair:  # fmt: skip
    """As `get_rnnt_logprobs_pruned`, with a sigmoid for the blank, as get_hat_logprobs_pruned of k2's module rnnt_loss (where
    the termination symbol must be 0).

    >>> import torch
    >>> from samplewise.integrations import k2
    >>> ranges = torch.arange(2).expand(1, 9, 2)
    >>> px, py = k2.get_hat_logprobs_pruned(torch.zeros(1, 9, 2, 6), torch.tensor([[1, 2, 3]]), ranges, 0, None)
    >>> px.exp()[0, :, 0], py.exp()[0, :, 0]
    (tensor([0.1000, 0.1000, 0.0000]), tensor([0.5000, 0.5000, 0.0000, 0.0000]))
    """
    call, ranges = with_pruned(logits, symbols, ranges, termination_symbol, boundary, rnnt_type, False)
    return in_lattice(
        arc_scores.of_pruned(logits, call.symbols, ranges, call.blank, call.places, True), call, rnnt_type, boundary
    )


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
    S, T, _ = recursion_sizes(px=px, py=py)
    check_floats(px=px, py=py)
    places, _ = places_of(boundary, torch.zeros(len(px), S, dtype=torch.int64), T, "py")
    wanted = return_grad or (torch.is_grad_enabled() and (px.requires_grad or py.requires_grad))
    losses, grads = arc_scores.recursion(px, py, places, 0.0, wanted)
    return (-losses, grads) if return_grad else -losses


def get_rnnt_prune_ranges(px_grad: Tensor, py_grad: Tensor, boundary: Tensor, s_range: int) -> Tensor:
    """Ranges (B, T, s_range) of the numbers of symbols to keep in each frame, from occupation probabilities, as
    k2.get_rnnt_prune_ranges (arXiv 2206.13236, section 3.2).

    They do not go back, leave out no number, and end with the last one. s_range becomes S + 1 if it is larger, and where
    px_grad is (B, S, T+1) the largest trunc((s_end - 1) / t_end) + 2 if it is smaller. Begins have no part, as in k2.

    >>> import torch
    >>> from samplewise.integrations import k2
    >>> loss, grads = k2.rnnt_loss_simple(
    ...     torch.randn(1, 4, 7), torch.randn(1, 9, 7), torch.tensor([[1, 2, 3]]), 0, return_grad=True)
    >>> k2.get_rnnt_prune_ranges(*grads, boundary=torch.tensor([[0, 0, 3, 9]]), s_range=2)[0, [0, -1]]
    tensor([[0, 1],
            [2, 3]])
    """
    width, step, limits = with_occupation(px_grad, py_grad, boundary, s_range, True)
    gain = pruning.kept_probability(px_grad, py_grad, width)
    return pruning.ranges_of(gain, *limits, width, step)


def get_rnnt_prune_ranges_deprecated(px_grad: Tensor, py_grad: Tensor, boundary: Tensor, s_range: int) -> Tensor:
    """As `get_rnnt_prune_ranges`, by k2's older rule: what is kept of all occupation probabilities. s_range is never made
    larger."""
    width, step, limits = with_occupation(px_grad, py_grad, boundary, s_range, False)
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
    ranges = check_ranges(ranges, am, "am", lm.shape[1])
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
