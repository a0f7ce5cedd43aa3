"""The exact transducer loss of an icefall Joiner, in place of its simple and its pruned loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import samplewise
from samplewise import checks
from samplewise.errors import TransducerError
from samplewise.functional import reduction_weights
from samplewise.integrations.arguments import REDUCTIONS, UsualReduction
from samplewise.integrations.joints import is_linear
from samplewise.integrations.k2_arguments import RNNT_TYPES, RnntType, penalty_of, read

PARTS = ("encoder_proj", "decoder_proj", "output_linear")


def joiner_loss(
    joiner: nn.Module, encoder_out: Tensor, decoder_out: Tensor, symbols: Tensor, termination_symbol: int = 0,
    boundary: Tensor | None = None, rnnt_type: RnntType = "regular", delay_penalty: float = 0.0,
    reduction: UsualReduction = "mean", use_hat_loss: bool = False, *, project_input: bool = True, **options,
) -> Tensor:  # fmt: skip
    """k2's loss of output_linear(tanh(encoder_proj(encoder_out) + decoder_proj(decoder_out))), all paths, and no 4-D tensor.

    The value is that of k2.rnnt_loss on the Joiner's logits of all frames and symbols. k2.rnnt_loss_pruned, on the logits of a
    few symbols a frame, leaves out the other paths, so this is no larger. There is no simple loss, as nothing has to find
    ranges: no simple_am_proj and simple_lm_proj, no prune_range, no lm_scale and am_scale, no warm-up of the pruned loss.

    Args:
        joiner: icefall's Joiner, with `encoder_proj`, `decoder_proj` and `output_linear` (zipformer and the like); old
            ScaledLinear layers are used with their scale. Its forward is not called.
        encoder_out: (B, T, encoder_dim).
        decoder_out: (B, S+1, decoder_dim), of the blank and the symbols.
        symbols: (B, S), int64 or int32; what lies beyond an utterance's boundary is never read.
        termination_symbol: the blank, 0 in icefall.
        boundary: (B, 4) [s_begin, t_begin, s_end, t_end], by default [0, 0, S, T].
        rnnt_type, delay_penalty, reduction: as in `samplewise.integrations.k2.rnnt_loss`.
        use_hat_loss: a sigmoid for the blank, and a softmax over the others, as in k2.rnnt_loss_pruned; with "regular" alone.
        project_input: False if encoder_out and decoder_out come from encoder_proj and decoder_proj already.
        options: of `samplewise.transducer_loss`, such as memory_budget, method, on_nonfinite or normalizer.

    Returns:
        float32 loss (float64 for float64): (B,) for "none", sum / B for "mean", the sum for "sum".

    Raises:
        TransducerError: an argument is wrong, named as k2 names it, or output_linear is no plain linear layer (LoRA).

    Looked at: icefall of June 2026, k2 1.24.4.

    >>> import torch
    >>> from samplewise.integrations.icefall import joiner_loss
    >>> joiner = torch.nn.Module()
    >>> joiner.encoder_proj, joiner.decoder_proj = torch.nn.Linear(6, 8), torch.nn.Linear(5, 8)
    >>> joiner.output_linear = torch.nn.Linear(8, 30)
    >>> boundary = torch.tensor([[0, 0, 10, 50], [0, 0, 7, 42]])
    >>> joiner_loss(joiner, torch.randn(2, 50, 6), torch.randn(2, 11, 5), torch.randint(1, 30, (2, 10)), 0, boundary,
    ...             reduction="sum").backward()
    >>> joiner.output_linear.weight.grad.shape
    torch.Size([30, 8])
    """
    checks.check_choice("reduction", reduction, REDUCTIONS)
    checks.check_choice("rnnt_type", rnnt_type, RNNT_TYPES)
    checks.check_three_dimensional(encoder_out=encoder_out, decoder_out=decoder_out)
    checks.same_size("decoder_out", decoder_out.shape[0], "utterances", "encoder_out", encoder_out.shape[0])
    if use_hat_loss and rnnt_type != "regular":
        raise TransducerError(f"rnnt_type is {rnnt_type!r}, but with use_hat_loss it must be 'regular'")
    weight, bias = _output_layer(joiner)
    T, rows = encoder_out.shape[1], ("decoder_out", decoder_out.shape[1])
    call = read(symbols, boundary, termination_symbol, encoder_out, weight.shape[0], T, "encoder_out", rows=rows)
    if not call.has_frames:
        b = int((call.places[:, 2] == 0).nonzero()[0])
        raise TransducerError(f"boundary[{b}] leaves utterance {b} 0 frames of encoder_out; it must have 1 or more")
    if project_input:
        encoder_out = joiner.get_submodule("encoder_proj")(encoder_out)
        decoder_out = joiner.get_submodule("decoder_proj")(decoder_out)
    penalty, labels = penalty_of(delay_penalty), call.symbols
    if not call.starts_at_zero:
        _check_begins(options, penalty)
        first, low = call.places[:, 0], call.places[:, 1]
        encoder_out, decoder_out, labels = _from(encoder_out, first), _from(decoder_out, low), _from(labels, low)
    loss = samplewise.transducer_loss(
        encoder_out, decoder_out, weight, bias, labels, *call.lengths, blank=call.blank, activation="tanh",
        reduction=reduction, topology="hat" if use_hat_loss else rnnt_type, delay_penalty=penalty, **options,
    )  # fmt: skip
    if penalty and not call.starts_at_zero:  # k2's penalty counts from frame 0, wherever an utterance begins
        late = penalty / 2 * (call.places[:, 0] * call.places[:, 3]).double()
        weights = reduction_weights(reduction, call.lengths[1], options.get("normalizer"))
        loss = loss + (late if weights is None else (late * weights.cpu()).sum()).to(loss)
    return loss


def _check_begins(options: dict[str, Any], penalty: float) -> None:
    if options.get("alignment") is not None:
        raise TransducerError("alignment counts frames and labels from 0: give none where boundary has other begins")
    if penalty and options.get("on_nonfinite") == "zero":
        raise TransducerError("on_nonfinite is 'zero', but not with delay_penalty where boundary has other begins than 0")


def _output_layer(joiner: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Weight (C, D) and bias (C,) of the last layer."""
    missing = [name for name in PARTS if not isinstance(getattr(joiner, name, None), nn.Module)]
    if missing:
        raise TransducerError(
            f"joiner, a {type(joiner).__name__}, has no {' and no '.join(missing)}: it must be icefall's Joiner"
        )
    layer: Any = joiner.output_linear
    if hasattr(layer, "get_weight") and hasattr(layer, "get_bias"):  # icefall's old ScaledLinear
        return layer.get_weight(), layer.get_bias()
    if not is_linear(layer):
        raise TransducerError(
            f"joiner.output_linear is a {type(layer).__name__}, whose weight need not be what it computes with; it must be a"
            " linear layer (merge LoRA before, or use samplewise.joint_loss, which calls the joiner)"
        )
    return layer.weight, layer.bias


def _from(x: Tensor, first: Tensor) -> Tensor:
    """x (B, N, ...) from another row on for each utterance; behind the last row, the last one again."""
    index = (
        (torch.arange(x.shape[1], device=first.device)[None] + first[:, None]).clamp(max=max(x.shape[1] - 1, 0)).to(x.device)
    )
    return x[torch.arange(len(x), device=x.device)[:, None], index]
