"""The transducer loss as PyTorch operators: eager, `torch.compile`, autograd and autocast meet here.

`transducer_sum` knows every utterance's weight beforehand, so it makes the gradients of the weighted sum in the forward, group
by group, and keeps nothing else; the backward scales them. `transducer_each` returns every utterance's loss; its backward runs
the passes again with the upstream gradients as weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from samplewise.checks import Lengths, check_values
from samplewise.kernels.backend import backend_for
from samplewise.kernels.masks import dropout_of
from samplewise.observation import calling, planned
from samplewise.ops import reasons, sampled
from samplewise.ops.guards import finish_nonfinite, first_derivative, hold, once, one_upstream, release, scale_once
from samplewise.ops.lattices import lattice_of
from samplewise.ops.methods import RUNS
from samplewise.ops.problem import (
    BIAS,
    ENCODER,
    PREDICTOR,
    WEIGHT,
    Clamp,
    Gradients,
    Inputs,
    Problem,
    gradient_dtype,
    real_dtype,
    wide_dtype,
)
from samplewise.ops.timing import Timing
from samplewise.planning.devices import default_budget, device_of
from samplewise.planning.methods import schedule_of
from samplewise.planning.planner import Sizes
from samplewise.topology import named


class Options(NamedTuple):
    """What a call asks for, in the order in which the operators take it. memory_budget 0 and tolerance -1 mean the defaults."""

    blank: int
    activation: str
    method: str
    memory_budget: int
    tolerance: float
    fastemit_lambda: float
    compute_dtype: torch.dtype
    on_nonfinite: str
    topology: str = "regular"
    delay_penalty: float = 0.0
    clamp: float = -1.0
    dropout: float = 0.0
    dropout_seed: int = 0


OPTION_TYPES = (
    "int blank, str activation, str method, int memory_budget, float tolerance, float fastemit_lambda, "
    "ScalarType compute_dtype, str on_nonfinite, str topology, float delay_penalty, "
    "float clamp, float dropout, int dropout_seed"
)
INPUT_TYPES = (
    "Tensor encoder_out, Tensor predictor_out, Tensor weight, Tensor? bias, Tensor targets, Tensor encoder_lengths, "
    "Tensor target_lengths, Tensor? classes, Tensor? class_bias, Tensor? alignment"
)
INPUTS, WANTED = len(Inputs._fields), (ENCODER, PREDICTOR, WEIGHT, BIAS)
HALF_RANGE = 1024.0  # in float16 dL/dh, at most 1 a node (FastEmit: 1 + lambda), is made as large, out of the subnormal numbers


def run(inputs: Inputs, weights: Tensor, wanted: int, options: Options) -> tuple[Tensor, Gradients | None]:
    """Losses (B,) float64 and the wanted gradients of sum_b weights[b] loss[b]."""
    weight, real, topology = inputs.weight, real_dtype(options.compute_dtype), named(options.topology)
    lengths = check_values(
        inputs.targets, inputs.encoder_lengths, inputs.target_lengths, frames=inputs.encoder_out.shape[1],
        tokens=inputs.predictor_out.shape[1], classes=weight.shape[0] - topology.extra, blank=options.blank,
        blanks=topology.blanks(options.blank)[1:],
    )  # fmt: skip
    weights = weights.to(device=weight.device, dtype=wide_dtype(weight.device)).contiguous()
    scale = 1.0
    if wanted and options.compute_dtype == torch.float16:  # dz = dh W must stay within the range, too
        scale = min(HALF_RANGE, torch.finfo(torch.float16).max / (4 * max(float(weight.detach().abs().max()), 1e-3)))
        scale /= 1.0 + options.fastemit_lambda
    unusable: list[int] = []
    if wanted and not bool((finite := torch.isfinite(weights)).all()):
        unusable, weights = (~finite).nonzero()[:, 0].tolist(), weights.masked_fill(~finite, 0.0)
    unit = scale
    if scale != 1.0:
        weights = weights / (top := weights.abs().max().clamp(min=1e-30)) * scale
        scale /= float(top)
    gradients = None
    if wanted:
        clamp = Clamp(options.clamp, weights, unit) if options.clamp > 0 else None
        gradients = Gradients.of(inputs.encoder_out, inputs.predictor_out, weight, real, wanted, clamp)
    with torch.autocast(weight.device.type, enabled=False), calling(options.method):
        if inputs.classes is None:
            losses = passes(problem_of(inputs, lengths, options), weights, gradients, options)
        else:
            losses = weights.new_empty(len(lengths.frames))
            for part in sampled.parts(inputs, lengths, options.blank, topology):
                own = None if gradients is None else gradients.part(part.first, part.stop, part.inputs.weight.shape[0])
                here = slice(part.first, part.stop)
                own_options = options._replace(blank=part.blank, topology=part.topology.key)
                problem = problem_of(part.inputs, part.lengths, own_options, part.first)
                losses[here] = passes(problem, weights[here], own, own_options, part.first, gathered=True)
                if gradients is not None and own is not None:
                    sampled.add_part(gradients, own, part.classes)
    if gradients is not None:
        if scale != 1.0:
            gradients.scale_(1.0 / scale)
        gradients.poison_(unusable, lengths)
    return losses, gradients


def passes(
    problem: Problem, weights: Tensor, gradients: Gradients | None, options: Options, first: int = 0, *, gathered: bool = False
) -> Tensor:
    """Losses (B,) by the method that the options ask for; `gathered` if the weight is a copy made for this call, of whose
    batch the problem's first utterance is number `first`."""
    lengths = problem.lengths
    sizes = Sizes(
        lengths.frames, lengths.labels, problem.weight.shape[0], problem.weight.shape[1], problem.compute.itemsize,
        problem.real.itemsize, gradients is not None, torch.get_num_threads() if problem.device.type == "cpu" else 1, gathered,
        device_of(problem.device), problem.may_use_exponentials, named(options.topology),
        problem.timing is not None and problem.timing.alignment is not None,
    )  # fmt: skip
    budget, default = options.memory_budget or None, default_budget(problem.device)
    tolerance = default_tolerance(problem.compute) if options.tolerance < 0 else options.tolerance
    schedule = schedule_of(options.method, sizes, budget, default, problem.encoder_out.shape[1], problem.predictor_out.shape[1])
    planned(schedule.workspace, first)
    return RUNS[schedule.method](problem, weights, gradients, schedule, tolerance)


def default_tolerance(compute: torch.dtype) -> float:
    """The machine epsilon of the compute dtype; a sixteenth of it in half precision, whose rounding errors average out within a
    matrix product while what is left out adds up: at the full epsilon the encodings' gradients were up to 8 times worse."""
    eps = torch.finfo(compute).eps
    return eps if compute.itemsize >= 4 else eps / 16


def problem_of(inputs: Inputs, lengths: Lengths, options: Options, first: int = 0) -> Problem:
    """The problem of utterances from number `first` of the batch on."""
    weight, bias, real = inputs.weight, inputs.bias, real_dtype(options.compute_dtype)
    bias = torch.zeros(weight.shape[0], dtype=real, device=weight.device) if bias is None else bias
    kernels, factor = backend_for(weight.device), 1.0 + options.fastemit_lambda
    lattice = lattice_of(kernels, options.topology, weight.shape[0], options.blank, factor)
    timing = None
    if options.delay_penalty or inputs.alignment is not None:
        timing = Timing.of(options.delay_penalty, inputs.alignment, lengths, real, weight.device)
    return Problem(
        inputs.encoder_out.detach(), inputs.predictor_out.detach(), weight.detach().to(options.compute_dtype).contiguous(),
        bias.detach().to(real).contiguous(), inputs.targets.to(device=weight.device, dtype=torch.int64), lengths, options.blank,
        options.activation, kernels, lattice, timing,
        dropout_of(
            options.dropout, options.dropout_seed, inputs.encoder_out.shape[1], inputs.predictor_out.shape[1], first
        ),
    )  # fmt: skip


def _outputs(gradients: Gradients | None, inputs: Sequence[Tensor | None], wanted: int) -> list[Tensor]:
    """The four gradients in their inputs' dtypes; an empty tensor for one that is not wanted."""
    found = (gradients.encoder, gradients.predictor, gradients.weight, gradients.bias) if gradients else (None,) * 4
    outputs = []
    for bit, gradient, like in zip(WANTED, found, inputs, strict=False):
        assert like is not None or not wanted & bit
        outputs.append(gradient.to(gradient_dtype(like.dtype)) if wanted & bit else inputs[0].new_empty(0))  # type: ignore[union-attr]
    return outputs


def _finish(losses: Tensor, inputs: Inputs, options: Options) -> Tensor:
    def reason(b: int) -> str:
        found = reasons.of_joint_sum(inputs, b, options.activation, options.compute_dtype)
        frames, labels = int(inputs.encoder_lengths[b]), int(inputs.target_lengths[b])
        alignment = None if inputs.alignment is None else inputs.alignment[b]
        return found or reasons.of_path(named(options.topology), frames, labels, alignment, b)

    return finish_nonfinite(losses, options.on_nonfinite, reason)


# --- losses added up with weights that are known beforehand ---------------------------------------------------------------


@torch.library.custom_op(
    "samplewise::transducer_sum",
    mutates_args=(),
    schema=f"({INPUT_TYPES}, Tensor loss_weights, int wanted, {OPTION_TYPES}) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def transducer_sum(*arguments):
    """(sum_b loss_weights[b] loss[b], losses (B,), d_encoder_out, d_predictor_out, d_weight, d_bias)."""
    inputs, (weights, wanted), options = (
        Inputs(*arguments[:INPUTS]),
        arguments[INPUTS : INPUTS + 2],
        Options(*arguments[INPUTS + 2 :]),
    )
    losses, gradients = run(inputs, weights, wanted, options)
    losses = _finish(losses, inputs, options)
    real = real_dtype(options.compute_dtype)
    total = torch.dot(losses, weights.to(losses)).to(real)
    return (total, losses.to(real), *_outputs(gradients, inputs, wanted))


@transducer_sum.register_fake
def _(*arguments):
    inputs, wanted, options = arguments[:INPUTS], arguments[INPUTS + 1], Options(*arguments[INPUTS + 2 :])
    encoder_out, real = inputs[0], real_dtype(options.compute_dtype)
    gradients = [
        encoder_out.new_empty(like.shape, dtype=gradient_dtype(like.dtype)) if wanted & bit else encoder_out.new_empty(0)
        for bit, like in zip(WANTED, inputs, strict=False)
    ]
    return (
        encoder_out.new_empty((), dtype=real),
        encoder_out.new_empty(encoder_out.shape[0], dtype=real),
        *gradients,
    )


def _sum_setup(ctx, inputs, output):
    ctx.wanted, ctx.dtypes = inputs[INPUTS + 1], [x.dtype if x is not None else None for x in inputs[:4]]
    hold(ctx, output[2:])
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _sum_backward(ctx, upstream, *unused):
    once(ctx)
    gradients: list[Tensor | None] = [None] * (INPUTS + 2 + len(Options._fields))
    if upstream is not None:
        one_upstream(upstream)
        for i, (bit, gradient) in enumerate(zip(WANTED, release(ctx), strict=True)):
            if ctx.wanted & bit:
                gradients[i] = scale_once(gradient, upstream).to(ctx.dtypes[i])
    return tuple(gradients)


transducer_sum.register_autograd(_sum_backward, setup_context=_sum_setup)


# --- every utterance's loss ------------------------------------------------------------------------------------------------


@torch.library.custom_op(
    "samplewise::transducer_each",
    mutates_args=(),
    schema=f"({INPUT_TYPES}, int wanted, {OPTION_TYPES}) -> Tensor",
)
def transducer_each(*arguments):
    """Losses (B,)."""
    inputs, options = Inputs(*arguments[:INPUTS]), Options(*arguments[INPUTS + 1 :])
    losses, _ = run(inputs, torch.ones(inputs.encoder_out.shape[0]), 0, options)
    return _finish(losses, inputs, options).to(real_dtype(options.compute_dtype))


@transducer_each.register_fake
def _(*arguments):
    encoder_out, options = arguments[0], Options(*arguments[INPUTS + 1 :])
    return encoder_out.new_empty(encoder_out.shape[0], dtype=real_dtype(options.compute_dtype))


def _each_setup(ctx, inputs, output):
    ctx.given = [tensor is not None for tensor in inputs[:INPUTS]]
    ctx.save_for_backward(*(tensor for tensor in inputs[:INPUTS] if tensor is not None))
    ctx.wanted, ctx.options = inputs[INPUTS], inputs[INPUTS + 1 :]


def _each_backward(ctx, upstream):
    first_derivative()
    saved = iter(ctx.saved_tensors)
    inputs = [next(saved) if given else None for given in ctx.given]
    found = transducer_sum(*inputs, upstream, ctx.wanted, *ctx.options)[2:]
    gradients: list[Tensor | None] = [None] * (INPUTS + 1 + len(Options._fields))
    for i, (bit, gradient) in enumerate(zip(WANTED, found, strict=True)):
        if ctx.wanted & bit:
            gradients[i] = gradient.to(inputs[i].dtype)  # type: ignore[union-attr]
    return tuple(gradients)


transducer_each.register_autograd(_each_backward, setup_context=_each_setup)
