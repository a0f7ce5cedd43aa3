"""The transducer loss of any joint network: Algorithm 1 of arXiv 2211.16270 with autograd inside each sample.

One utterance at a time, without padding: its logits, its loss, the gradient of its logits, and through the joint's own graph
the gradients of its encodings and of the joint's parameters, which add up. Then everything of that utterance is freed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from samplewise.checks import Lengths, check_blank, check_values
from samplewise.errors import TransducerError
from samplewise.ops import reasons
from samplewise.ops.guards import finish_nonfinite, first_derivative, hold, once, one_upstream, release, scale_once
from samplewise.ops.logits import rnnt, rnnt_gradient
from samplewise.ops.problem import gradient_dtype, real_dtype
from samplewise.topology import named

_T = TypeVar("_T", bound=Tensor)


@dataclass(frozen=True)
class JointCall:
    """What stays the same from utterance to utterance: the module, the places of its parameters that learn, and the options."""

    joint: nn.Module
    places: tuple[tuple[str, int], ...]  # the name of each, and which of the parameters is there
    blank: int
    on_nonfinite: str
    fastemit_lambda: float = 0.0
    topology: str = "regular"
    delay_penalty: float = 0.0

    @classmethod
    def of(cls, joint: nn.Module, **options) -> tuple[JointCall, list[nn.Parameter]]:
        """The call, and the parameters that learn, each once."""
        learned = [parameter for parameter in joint.parameters() if parameter.requires_grad]
        number = {id(parameter): i for i, parameter in enumerate(learned)}
        places = places_of(joint, nn.Module.named_parameters)
        return cls(joint, tuple((name, number[id(x)]) for name, x in places if id(x) in number), **options), learned

    def buffers(self) -> dict[str, Tensor]:
        """Copies of the module's buffers by their places."""
        return copies_of(dict(places_of(self.joint, nn.Module.named_buffers)))


class JointLoss(torch.autograd.Function):
    """Either the weighted sum of the losses, with gradients made in the forward, or (weights None) every loss (B,), with the
    utterances run once more in the backward under the same random numbers. The parameters are inputs, so that hooks on them,
    such as those of distributed training, see their gradients."""

    @staticmethod
    def forward(ctx, call, weights, targets, encoder_lengths, target_lengths, encoder_out, predictor_out, *parameters):
        integers, floats = (targets, encoder_lengths, target_lengths), (encoder_out, predictor_out, *parameters)
        needed = [x.dtype if need else None for x, need in zip(floats, ctx.needs_input_grad[5:], strict=True)]
        ctx.call, ctx.needed, ctx.weighted = call, needed, weights is not None
        ctx.set_materialize_grads(False)
        if weights is None:
            ctx.buffers = call.buffers() if any(needed) else {}
            ctx.random, ctx.autocast = _random_state(encoder_out.device), _autocast_state(encoder_out.device)
            losses, _ = run(call, integers, floats, None, needed, {})
            ctx.save_for_backward(*integers, *floats)
            return losses
        losses, gradients = run(call, integers, floats, weights, needed, {})
        hold(ctx, gradients)
        return (losses * weights.to(losses)).sum()

    @staticmethod
    def backward(ctx, upstream):
        first_derivative()
        missing = (None,) * 5
        if upstream is None:
            return *missing, *(None for _ in ctx.needed)
        one_upstream(upstream)
        if ctx.weighted:
            once(ctx)
            saved = iter(release(ctx))
            return *missing, *(scale_once(next(saved), upstream).to(d) if d is not None else None for d in ctx.needed)
        saved = ctx.saved_tensors  # to be asked for once: a checkpoint hands them out one time
        integers, floats = saved[:3], saved[3:]
        device, buffers = floats[0].device, copies_of(ctx.buffers)
        with _replay(ctx.random, device), torch.autocast(device.type, **ctx.autocast):
            _, gradients = run(ctx.call, integers, floats, upstream, ctx.needed, buffers)
        found = iter(gradients)
        return *missing, *(next(found).to(d) if d is not None else None for d in ctx.needed)


def run(
    call: JointCall, integers, floats, weights: Tensor | None, needed: list[torch.dtype | None], buffers: dict[str, Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """Losses (B,), and the gradients of sum_b weights[b] loss[b] by those inputs that need one.

    floats are encoder_out (B, T, D), predictor_out (B, U+1, D) and the parameters that `call` names. Gradients add up in
    float32 or better, whatever the dtype of the parameters. `buffers` stand in for the module's own, which then stay as they
    are.
    """
    wanted = weights is not None and any(needed)
    need = [wanted and dtype is not None for dtype in needed]
    sums = [torch.zeros_like(x, dtype=real_dtype(x.dtype)) if n else None for x, n in zip(floats, need, strict=True)]
    lattice = named(call.topology)
    lengths = _check(integers, floats, None, 0)
    losses: list[Tensor] = []
    why: dict[int, str] = {}
    for b, (frames, labels) in enumerate(zip(*lengths, strict=True)):
        encodings = (floats[0][b : b + 1, :frames, None], floats[1][b : b + 1, None, : labels + 1])  # (1,T,1,D), (1,1,U+1,D)
        inputs = [x.detach().requires_grad_(n) for x, n in zip((*encodings, *floats[2:]), need, strict=True)]
        with torch.set_grad_enabled(wanted):
            tensors = {**buffers, **{name: inputs[2 + i] for name, i in call.places}}
            logits = functional_call(call.joint, tensors, tuple(inputs[:2]), tie_weights=False)
            buffers = {name: tensors[name] for name in buffers}  # some modules put new ones in the places of the old
        _check_logits(logits, b, frames, labels)
        if b == 0:
            blank = check_blank(call.blank, max(1, logits.shape[3] - lattice.extra))
            lattice.check(logits.shape[3], blank, "columns of the joint's logits")
            _check(integers, floats, logits.shape[3] - lattice.extra, blank, lattice.blanks(blank)[1:])
        sample = [part[b : b + 1] for part in integers]
        options = (blank, -1.0, True, call.fastemit_lambda, lattice.key, wanted, "keep", call.delay_penalty)
        loss, *state = rnnt(logits.detach(), *sample, *options)
        losses.append(loss)
        if call.on_nonfinite == "raise" and not bool(torch.isfinite(loss)):
            why[b] = reasons.of_module(call.joint, tensors, (inputs[0].detach(), inputs[1].detach()), b)
        if wanted and weights is not None:
            d_logits = rnnt_gradient(logits.detach(), *sample, *state, weights[b : b + 1], blank, -1.0, True, lattice.key)
            with torch.autocast(logits.device.type, enabled=False):  # as where backward is called outside autocast
                found = torch.autograd.grad(logits, [x for x in inputs if x.requires_grad], d_logits, allow_unused=True)
            into = (
                sums[0] if sums[0] is None else sums[0][b : b + 1, :frames, None],
                sums[1] if sums[1] is None else sums[1][b : b + 1, None, : labels + 1],
                *sums[2:],
            )
            for total, part in zip((x for x in into if x is not None), found, strict=True):
                if part is not None:  # of a loss that is not finite, nothing must reach the shared parameters
                    total += torch.where(torch.isfinite(loss), part, 0.0)
    gradients = [total.to(gradient_dtype(x.dtype)) for total, x in zip(sums, floats, strict=True) if total is not None]
    return finish_nonfinite(torch.cat(losses), call.on_nonfinite, lambda b: why.get(b, "")), gradients


def places_of(joint: nn.Module, named: Callable[..., Iterator[tuple[str, _T]]]) -> Iterator[tuple[str, _T]]:
    """Every place of a parameter or buffer by one name: of a module that has several names, only the first is used.

    `functional_call` would put a tensor there once a name, and in the end put back what it found the second time: its own.
    """
    for prefix, module in joint.named_modules():
        yield from named(module, prefix, recurse=False, remove_duplicate=False)


def copies_of(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """A tensor that has several names is copied once."""
    copies = {id(tensor): tensor.clone() for tensor in tensors.values()}
    return {name: copies[id(tensor)] for name, tensor in tensors.items()}


def _check(integers, floats, classes: int | None, blank: int, blanks: Sequence[int] = ()) -> Lengths:
    frames, tokens = floats[0].shape[1], floats[1].shape[1]
    return check_values(*integers, frames=frames, tokens=tokens, classes=classes, blank=blank, blanks=blanks)


def _check_logits(logits: Tensor, b: int, frames: int, labels: int) -> None:
    if not isinstance(logits, Tensor) or logits.dim() != 4 or tuple(logits.shape[:3]) != (1, frames, labels + 1):
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise TransducerError(
            f"joint gave {shape} for utterance {b}; from encodings (1, {frames}, 1, D) and (1, 1, {labels + 1}, D) it must"
            f" make logits (1, {frames}, {labels + 1}, V)"
        )


def _random_state(device: torch.device) -> list[Tensor]:
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states


@contextlib.contextmanager
def _replay(states: list[Tensor], device: torch.device):
    """The random numbers of the forward again, so that dropout has the same masks; afterwards everything is as it was."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.set_rng_state(states[0])
        if len(states) > 1:
            torch.cuda.set_rng_state(states[1], device)
        yield


def _autocast_state(device: torch.device) -> dict[str, Any]:
    kind = device.type
    return {"enabled": torch.is_autocast_enabled(kind), "dtype": torch.get_autocast_dtype(kind)}
