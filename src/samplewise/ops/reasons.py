"""Which tensor makes the loss of an utterance infinite or NaN, in words: for an error that is raised anyway."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call

from samplewise.kernels.activations import activate
from samplewise.ops.problem import Inputs
from samplewise.topology import Topology

LARGE = 1 << 20  # nodes of an utterance through which no path is looked for


def of_joint_sum(inputs: Inputs, b: int, activation: str, compute: torch.dtype) -> str:
    """Of utterance b of `transducer_loss`, whose joint and products are in the dtype `compute`; "" if no tensor is to blame."""
    frames, labels = int(inputs.encoder_lengths[b]), int(inputs.target_lengths[b])
    encoder_out, predictor_out = inputs.encoder_out[b, :frames].detach(), inputs.predictor_out[b, : labels + 1].detach()
    weight = inputs.weight.detach()
    found = of_tensors(**{f"encoder_out[{b}]": encoder_out, f"predictor_out[{b}]": predictor_out, "weight": weight})
    found = found or (of_tensors(bias=inputs.bias.detach()) if inputs.bias is not None else "")
    if found:
        return found
    bias = 0.0 if inputs.bias is None else inputs.bias.detach().double()
    largest = beyond("weight", weight, compute)
    for t, row in enumerate(encoder_out.double()):
        if largest:
            break
        z = activate(row + predictor_out.double(), activation)  # (U+1, D)
        largest = beyond(f"the joint encoding act(encoder_out + predictor_out) at frame {t}", z, compute)
        logits = z.to(compute).double() @ weight.double().t()  # (U+1, V)
        largest = largest or beyond(f"the scores weight @ act(encoder_out + predictor_out) at frame {t}", logits, compute)
        largest = largest or beyond(f"the logits at frame {t}", logits + bias, torch.float64)
    return largest


def of_path(topology: Topology, frames: int, labels: int, alignment: Tensor | None, b: int) -> str:
    """That there is no path through utterance b, whose labels an alignment (U, 2) may hold to some frames; "" if there is, or
    if it would take long to find out."""
    if frames * (labels + 1) > LARGE:
        return ""
    spans = [(0, frames - 1)] * labels if alignment is None else alignment[:labels].tolist()
    reached, waiting = {(0, 0)}, [(0, 0)]
    while waiting:
        t, u = waiting.pop()
        for arc in topology.arcs:
            if arc.labels and (u == labels or not spans[u][0] <= t <= spans[u][1]):
                continue
            place = t + arc.frames, u + arc.labels
            if place == (frames, labels) and (topology.label_ends or not arc.labels):
                return ""
            if place[0] < frames and place not in reached:
                reached.add(place)
                waiting.append(place)
    held = "" if alignment is None else f" with alignment[{b}]"
    return f"no path of {topology} leads through {frames} frames and {labels} labels{held}"


def of_module(joint: nn.Module, tensors: dict[str, Tensor], encodings: tuple[Tensor, Tensor], b: int) -> str:
    """Of utterance b of `joint_loss`: its encodings, a parameter, or the first module that gives what is not finite."""
    found = of_tensors(**{f"encoder_out[{b}]": encodings[0], f"predictor_out[{b}]": encodings[1]})
    found = found or of_tensors(**{f"joint.{name}": parameter for name, parameter in joint.named_parameters()})
    if found:
        return found
    guilty: list[str] = []

    def look(name: str):
        def hook(module, inputs, output):
            if isinstance(output, Tensor) and not bool(torch.isfinite(output).all()):
                label = f"joint.{name}" if name else "joint"
                guilty.append(f"the output of {label} ({type(module).__name__}), {_extent(output)}")

        return hook

    hooks = [module.register_forward_hook(look(name)) for name, module in joint.named_modules()]
    try:
        with torch.no_grad():
            functional_call(joint, tensors, encodings, tie_weights=False)
    finally:
        for hook in hooks:
            hook.remove()
    return guilty[0] if guilty else ""


def of_tensors(**tensors: Tensor) -> str:
    """The first number that is not finite, and its place."""
    for name, tensor in tensors.items():
        wrong = ~torch.isfinite(tensor.detach())
        if bool(wrong.any()):
            place = wrong.nonzero()[0].tolist()
            return f"{name} is {float(tensor[tuple(place)])} at {place}"
    return ""


def beyond(name: str, tensor: Tensor, dtype: torch.dtype) -> str:
    """That a number of the tensor, in a wider format, does not fit into the dtype."""
    top, largest = torch.finfo(dtype).max, float(tensor.double().abs().max())
    if largest <= top:
        return ""
    return (
        f"in {name} are numbers up to {largest:.4g}, and {dtype} ends at {top:.6g}: use bfloat16 or float32, or smaller numbers"
    )


def _extent(output: Tensor) -> str:
    held = "NaN" if bool(output.isnan().any()) else "inf"
    top = torch.finfo(output.dtype).max
    return f"{output.dtype}, holds {held}: {output.dtype} ends at {top:.6g}; use bfloat16 or float32, or smaller numbers"
