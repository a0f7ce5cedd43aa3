"""What an argument must be: shapes and names before the op, values (lengths, labels) inside it, where they are on the host."""

from __future__ import annotations

import functools
import inspect
import logging
import math
import operator
import sys
from collections.abc import Sequence
from typing import NamedTuple, cast, get_args

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from samplewise.choices import Activation, OnNonfinite, Reduction
from samplewise.errors import TransducerError
from samplewise.kernels import activations
from samplewise.topology import DEFAULTS, Topology, named

logger = logging.getLogger("samplewise")

ACTIVATIONS = tuple(activations.TABLE)
ACTIVATION_NAMES = (*ACTIVATIONS, *activations.ALIASES)
REDUCTIONS, NONFINITE = get_args(Reduction), get_args(OnNonfinite)
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
FUNCTORCH = getattr(torch._C, "_functorch", None)  # private: a PyTorch without these functions is asked nothing


def _asked(name: str, tensor: Tensor) -> bool:
    function = getattr(FUNCTORCH, name, None)
    return function is not None and bool(function(tensor))


class Lengths(NamedTuple):
    """Lengths of a batch on the host: frames T_b and labels U_b, one each an utterance."""

    frames: list[int]
    labels: list[int]


def check_tensors(**tensors: object) -> None:
    """That each is a tensor whose numbers are all here and are what PyTorch's autograd differentiates."""
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise TransducerError(f"{name} is {_a(tensor)}; it must be a tensor, such as torch.as_tensor makes")
        if tensor.layout != torch.strided:
            raise TransducerError(f"{name} has layout {tensor.layout}; it must be dense")
        if hasattr(tensor, "full_tensor"):
            raise TransducerError(
                f"{name} is a DTensor, of which this process has a part: call the loss inside the forward of the module that"
                " fully_shard was given, where its parameters are whole, or give full_tensor() of it"
            )
        if not torch.compiler.is_compiling() and _is_transformed(tensor):
            raise TransducerError(
                f"{name} comes from vmap, a transform of torch.func or forward-mode differentiation: there are backward"
                " derivatives by torch.autograd alone (grad, backward, functional.jacobian), and the batch is an argument's"
                " first dimension"
            )


def _is_transformed(tensor: Tensor) -> bool:
    return _asked("is_functorch_wrapped_tensor", tensor) or forward_ad.unpack_dual(tensor).tangent is not None


def is_batch_of_upstreams(tensor: Tensor) -> bool:
    """Whether it stands for several tensors, as `is_grads_batched` makes them."""
    return _asked("is_legacy_batchedtensor", tensor)


def _a(value: object) -> str:
    """What a value is, in an error message."""
    if value is None:
        return "None"
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"


def check_whole(name: str, value: object, least: int | None = None) -> int:
    try:
        whole = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TransducerError(f"{name} is {value!r}; it must be a whole number") from None
    if least is not None and whole < least:
        raise TransducerError(f"{name} is {whole}; it must be {least} or more")
    return whole


def check_number(name: str, value: object) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise TransducerError(f"{name} is {value!r}; it must be a number") from None
    return number


def check_finite(name: str, value: object) -> float:
    number = check_number(name, value)
    if not -math.inf < number < math.inf:
        raise TransducerError(f"{name} is {value}; it must be a finite number")
    return number


def check_clamp(clamp: float) -> float:
    number = check_number("clamp", clamp)
    if number != number:  # math.isnan is not traced by torch.compile
        raise TransducerError(f"clamp is {clamp}; it must be a number, positive to bound gradients")
    return number


def check_dropout(dropout: float) -> float:
    number = check_number("dropout", dropout)
    if not 0.0 <= number < 1.0:
        raise TransducerError(f"dropout is {dropout}; it must be in 0..1, 1 excluded")
    return number


def check_tolerance(tolerance: float | None) -> float:
    """The tolerance, -1 for the default one."""
    if tolerance is None:
        return -1.0
    number = check_number("tolerance", tolerance)
    if not 0.0 <= number < 1.0:
        raise TransducerError(f"tolerance is {tolerance}; it must be in 0..1, 1 excluded")
    return number


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise TransducerError(f"{name} is {value!r}; it must be one of {', '.join(map(repr, choices))}")


def check_activation(name: object) -> Activation:
    """The activation's own name, of that or of another one that it goes by."""
    own = activations.ALIASES.get(name, name) if isinstance(name, str) else name
    check_choice("activation", own, ACTIVATIONS)
    return cast(Activation, own)


def check_fastemit(fastemit_lambda: float) -> float:
    number = check_number("fastemit_lambda", fastemit_lambda)
    if not 0.0 <= number < math.inf:
        raise TransducerError(f"fastemit_lambda is {fastemit_lambda}; it must be a number from 0 on")
    return number


def check_normalizer(normalizer: object, reduction: str) -> None:
    """That it is a positive number, or a tensor of one element, for losses that are added up."""
    if normalizer is None:
        return
    if reduction == "none":
        raise TransducerError(f"normalizer is {normalizer}, but reduction is 'none', which gives each loss as it is")
    if isinstance(normalizer, Tensor):
        if normalizer.numel() != 1:
            raise TransducerError(f"normalizer has shape {tuple(normalizer.shape)}; it must be one number")
    elif not 0.0 < check_number("normalizer", normalizer) < math.inf:
        raise TransducerError(f"normalizer is {normalizer}; it must be a positive number")


def check_topology(topology: Topology | str) -> Topology:
    """The topology itself, or that of a name."""
    found = topology if isinstance(topology, Topology) else None
    if isinstance(topology, str):
        found = DEFAULTS[topology] if topology in DEFAULTS else named(topology)  # torch.compile traces the first alone
    if found is None:
        raise TransducerError(f"topology is {_a(topology)}; it must be a name, or made by samplewise.topology")
    return found


def check_blank(blank: int, classes: int) -> int:
    """The blank's class in 0..V-1; negative numbers count from the end."""
    blank = check_whole("blank", blank)
    if not -classes <= blank < classes:
        raise TransducerError(f"blank is {blank}, but there are {classes} classes: it must be in {-classes}..{classes - 1}")
    return blank + classes if blank < 0 else blank


def check_encodings(encoder_out: Tensor, predictor_out: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Shapes and dtypes of the float inputs: (B, T, D), (B, U+1, D), (V, D), (V,)."""
    check_tensors(encoder_out=encoder_out, predictor_out=predictor_out, weight=weight)
    if bias is not None:
        check_tensors(bias=bias)
    shapes = (("encoder_out", encoder_out, "(B, T, D)"), ("predictor_out", predictor_out, "(B, U+1, D)"))
    for name, tensor, axes in (*shapes, ("weight", weight, "(V, D)")):
        if tensor.dim() != axes.count(",") + 1:
            raise TransducerError(f"{name} must be {axes}, but has shape {tuple(tensor.shape)}")
        check_floats(**{name: tensor})
    same_size("predictor_out", predictor_out.shape[0], "utterances", "encoder_out", encoder_out.shape[0])
    same_size("predictor_out", predictor_out.shape[2], "features", "encoder_out", encoder_out.shape[2])
    same_size("weight", weight.shape[1], "features", "encoder_out", encoder_out.shape[2])
    if bias is not None and tuple(bias.shape) != (weight.shape[0],):
        raise TransducerError(
            f"bias must be ({weight.shape[0]},) as weight has so many rows, but has shape {tuple(bias.shape)}"
        )
    if weight.shape[0] == 0 or weight.shape[1] == 0 or encoder_out.shape[0] == 0:
        raise TransducerError(
            f"nothing to do for {encoder_out.shape[0]} utterances, {weight.shape[0]} classes, {weight.shape[1]} features"
        )
    for name, other in (("predictor_out", predictor_out), ("weight", weight), ("bias", bias)):
        if other is not None and other.device != encoder_out.device:
            raise TransducerError(f"{name} is on {other.device}, but encoder_out is on {encoder_out.device}")


def check_three_dimensional(**tensors: Tensor) -> None:
    check_tensors(**tensors)
    for name, tensor in tensors.items():
        if tensor.dim() != 3:
            raise TransducerError(f"{name} must be (B, length, features), but has shape {tuple(tensor.shape)}")
        if tensor.shape[0] == 0:
            raise TransducerError(f"nothing to do for 0 utterances: {name} has shape {tuple(tensor.shape)}")


def check_joint(joint: object) -> None:
    """That it is a module which takes two encodings, and whose parameters this process has whole."""
    if not isinstance(joint, nn.Module):
        raise TransducerError(
            f"joint is {_a(joint)}; it must be an instance of nn.Module, whose parameters get gradients: write a module whose"
            " forward(encoder_out, predictor_out) returns the logits"
        )
    try:
        inspect.signature(joint.forward).bind(None, None)
    except TypeError:
        raise TransducerError(
            f"the forward of {type(joint).__name__} takes {inspect.signature(joint.forward)}, but joint_loss calls"
            " joint(encoder_out, predictor_out), on one utterance without padding: wrap it in a module whose forward takes"
            " these two and returns the logits alone"
        ) from None
    except ValueError:  # a forward without a signature
        pass
    fsdp = sys.modules.get("torch.distributed.fsdp")  # nothing is sharded by it where it is not loaded
    kinds = (fsdp.FSDPModule, fsdp.FullyShardedDataParallel) if fsdp is not None else ()
    for name, module in joint.named_modules():
        if isinstance(module, kinds):
            raise TransducerError(
                f"joint{name and f'.{name}'} is sharded by FSDP on its own, so gradients made utterance by utterance would not"
                " reach its parameters: shard a module that contains both the joint and the call of joint_loss instead"
            )
    check_tensors(**{f"joint.{name}": parameter for name, parameter in joint.named_parameters()})


def check_logits(logits: Tensor, *, packed: bool = True) -> None:
    check_tensors(logits=logits)
    if logits.dim() not in ((2, 4) if packed else (4,)) or 0 in logits.shape:
        forms = "(B, T, U+1, V)" + (", or packed (sum_b T_b (U_b+1), V)" if packed else "")
        raise TransducerError(f"logits must be {forms}, none of them 0, but has shape {tuple(logits.shape)}")
    check_floats(logits=logits)


def check_floats(**tensors: Tensor | None) -> None:
    """That each is of a dtype that losses are made of."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.dtype not in FLOATS:
            raise TransducerError(f"{name} is {tensor.dtype}; it must be float32, float64, bfloat16 or float16")


def check_dtypes(autocast: bool, **tensors: Tensor | None) -> None:
    """Outside autocast all float inputs share one dtype, as for a linear layer."""
    dtypes = {name: tensor.dtype for name, tensor in tensors.items() if tensor is not None}
    if not autocast and len(set(dtypes.values())) > 1:
        listed = ", ".join(f"{name} is {dtype}" for name, dtype in dtypes.items())
        raise TransducerError(f"{listed}: outside autocast they must share one dtype")


def same_size(name: str, size: int, what: str, other: str, expected: int) -> None:
    if size != expected:
        raise TransducerError(f"{name} has {size} {what}, but {other} has {expected}")


def check_integers(
    targets: Tensor,
    encoder_lengths: Tensor,
    target_lengths: Tensor,
    batch: int,
    lengths_name: str = "encoder_lengths",
) -> None:
    """Shapes and dtypes of targets (B, U) and of both lengths (B,)."""
    for name, tensor, dim in (
        ("targets", targets, 2),
        (lengths_name, encoder_lengths, 1),
        ("target_lengths", target_lengths, 1),
    ):
        check_integer(name, tensor, dim, batch)


def check_integer(name: str, tensor: Tensor, dim: int, batch: int) -> None:
    check_tensors(**{name: tensor})
    if tensor.dtype not in (torch.int32, torch.int64):
        raise TransducerError(f"{name} is {tensor.dtype}; it must be int32 or int64")
    if tensor.dim() != dim:
        axes = "(B, U)" if dim == 2 else "(B,)"
        raise TransducerError(f"{name} must be {axes}, but has shape {tuple(tensor.shape)}")
    same_size(name, tensor.shape[0], "utterances", "the batch", batch)


def check_alignment(alignment: Tensor | None, targets: Tensor) -> None:
    """That an alignment has two frames for each of the targets (B, U)."""
    if alignment is None:
        return
    check_tensors(alignment=alignment)
    if alignment.dtype not in (torch.int32, torch.int64):
        raise TransducerError(f"alignment is {alignment.dtype}; it must be int32 or int64")
    if tuple(alignment.shape) != (*targets.shape, 2):
        raise TransducerError(
            f"alignment must be {(*targets.shape, 2)}, the first and the last frame of each of the targets, but has shape "
            f"{tuple(alignment.shape)}"
        )


def check_values(
    targets: Tensor, encoder_lengths: Tensor, target_lengths: Tensor, *, frames: int, tokens: int, classes: int | None, blank:
    int, encoder: str = "encoder_out", predictor: str = "predictor_out", lengths_name: str = "encoder_lengths",
    blanks: Sequence[int] = (), unit: str = "frames",
) -> Lengths:  # fmt: skip
    """Bring the lengths to the host (the one synchronisation of a call) and check every number in use.

    frames and tokens are the padded sizes T and U + 1; without classes the labels are not checked. Labels beyond an utterance's
    length are never looked at. `blanks` are classes that are no labels besides the blank. `unit` is what `frames` counts.
    """
    batch, width = targets.shape
    parts = (encoder_lengths, target_lengths, targets.reshape(-1))
    host = torch.cat([part.detach().to(device=targets.device, dtype=torch.int64) for part in parts]).cpu()
    lengths = Lengths(host[:batch].tolist(), host[batch : 2 * batch].tolist())
    most = min(width, tokens - 1)
    exchangeable = all(t <= most and 1 <= u <= frames for t, u in zip(*lengths, strict=True)) and lengths[0] != lengths[1]
    try:
        for b, (t, u) in enumerate(zip(*lengths, strict=True)):
            if not 1 <= t <= frames:
                raise TransducerError(
                    f"{lengths_name}[{b}] is {t}, but {encoder} has {frames} {unit}: it must be in 1..{frames}"
                )
            _check_target_length(b, u, width)
            if u > most:
                raise TransducerError(
                    f"target_lengths[{b}] is {u}, which needs {u + 1} rows of {predictor}, but it has {tokens}"
                )
        if classes is not None:
            labels = host[2 * batch :].view(batch, width)
            _check_labels(labels, host[batch : 2 * batch], classes, blank, blanks)
            if exchangeable and bool((_within(labels, host[:batch]) == _are_labels(labels, classes, blank)).all()):
                _warn_exchanged(lengths_name)
    except TransducerError as error:
        if exchangeable:
            hint = f"As each other's they would fit: are {lengths_name} and target_lengths exchanged?"
            raise TransducerError(f"{error}. {hint}") from None
        raise
    return lengths


@functools.cache
def _warn_exchanged(lengths_name: str) -> None:
    """Once: it is not certain, for what lies beyond an utterance's labels may be anything."""
    logger.warning(
        "%s and target_lengths seem to be exchanged: the labels of every utterance end where %s says, not where target_lengths "
        "does; lengths can be given by keyword",
        lengths_name, lengths_name,
    )  # fmt: skip


def check_targets(targets: Tensor, target_lengths: Tensor, classes: int, blank: int) -> Tensor:
    """The targets (B, U) on the host, checked, and -1 beyond their utterance's length."""
    batch, width = targets.shape
    parts = (target_lengths, targets.reshape(-1))
    host = torch.cat([part.detach().to(device=targets.device, dtype=torch.int64) for part in parts]).cpu()
    lengths, labels = host[:batch], host[batch:].view(batch, width)
    for b, u in enumerate(lengths.tolist()):
        _check_target_length(b, u, width)
    _check_labels(labels, lengths, classes, blank)
    return labels.masked_fill(~_within(labels, lengths), -1)


def _check_target_length(b: int, labels: int, width: int) -> None:
    if not 0 <= labels <= width:
        raise TransducerError(f"target_lengths[{b}] is {labels}, but targets holds {width} labels an utterance")


def _within(targets: Tensor, lengths: Tensor) -> Tensor:
    return torch.arange(targets.shape[1], device=targets.device)[None] < lengths[:, None]


def _are_labels(targets: Tensor, classes: int, blank: int) -> Tensor:
    return (targets >= 0) & (targets < classes) & (targets != blank)


def _check_labels(targets: Tensor, lengths: Tensor, classes: int, blank: int, blanks: Sequence[int] = ()) -> None:
    are_labels = _are_labels(targets, classes, blank)
    for other in blanks:
        are_labels &= targets != other
    wrong = _within(targets, lengths) & ~are_labels
    if wrong.any():
        b, u = wrong.nonzero()[0].tolist()
        label = int(targets[b, u])
        why = "that is a blank" if label in blanks else f"there are {classes} classes"
        why = "that is the blank" if label == blank else why
        others = "".join(f" or {other}" for other in blanks)
        raise TransducerError(
            f"targets[{b}, {u}] is {label}, but {why}: a label must be in 0..{classes - 1} and not {blank}{others}"
        )
