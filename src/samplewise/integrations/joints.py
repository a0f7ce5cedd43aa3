"""Joint networks as toolkits write them, on their way to `transducer_loss`: two projections, their sum, an activation, a
linear layer."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

import samplewise
from samplewise.choices import Activation, Reduction
from samplewise.errors import TransducerError
from samplewise.integrations.arguments import called

logger = logging.getLogger("samplewise")

ACTIVATIONS: dict[type[nn.Module], Activation] = {
    nn.Tanh: "tanh", nn.ReLU: "relu", nn.Sigmoid: "sigmoid", nn.SiLU: "silu", nn.GELU: "gelu", nn.LeakyReLU: "leaky_relu",
    nn.Identity: "identity",
}  # fmt: skip
SLOPE = 0.01  # of the core's leaky_relu


def activation_of(module: object) -> Activation | None:
    """The core's name of what a joint has for an activation; None if it has none of exactly this.

    Toolkits have a class Swish of their own: it is taken for "silu" where it is x sigmoid(x).
    """
    name = ACTIVATIONS.get(type(module)) if isinstance(module, nn.Module) and not _hooked(module) else None
    if isinstance(module, nn.LeakyReLU) and module.negative_slope != SLOPE:
        return None
    if isinstance(module, nn.GELU) and module.approximate != "none":
        return None
    if name is None and isinstance(module, nn.Module) and type(module).__name__ == "Swish" and _is_silu(module):
        return "silu"
    return name


def _is_silu(module: nn.Module) -> bool:
    """Whether it is x sigmoid(x), where one with another slope is not: at points all over."""
    if _hooked(module) or any(True for _ in module.parameters()):
        return False
    with torch.no_grad():
        x = torch.linspace(-30.0, 30.0, 121, dtype=torch.float64)
        return torch.allclose(module(x), x * torch.sigmoid(x), rtol=1e-12, atol=1e-12)


def linear_of(module: object) -> nn.Linear | None:
    """The layer x weight^T + bias that a module is and no more, or that it holds as `w` (SpeechBrain's Linear); None for what
    has hooks, other weights than these (LoRA, quantisation), or another forward."""
    if isinstance(module, nn.Module) and not isinstance(module, nn.Linear) and not _hooked(module):
        whole = not getattr(module, "combine_dims", False) and getattr(module, "max_norm", None) is None
        module = getattr(module, "w", None) if whole and type(module).__name__ == "Linear" else None
    return module if is_linear(module) and not _hooked(module) else None


def is_linear(layer: object) -> TypeGuard[nn.Linear]:
    """Whether its class computes x weight^T + bias, by PyTorch's own forward."""
    return isinstance(layer, nn.Linear) and type(layer).forward is nn.Linear.forward


def _hooked(module: nn.Module) -> bool:
    """Whether calling it does more than its class says."""
    return bool(module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))


def joint_reason(joint: nn.Module, activation: object, *layers: object) -> str:
    """Why a joint does not fit `transducer_loss`, "" if it does: its forward would do what ours does not."""
    for module in (joint, *joint.children(), *layers):
        if isinstance(module, nn.parallel.DistributedDataParallel):
            raise TransducerError(
                f"{type(module.module).__name__} is wrapped in DistributedDataParallel on its own, so gradients made outside of"
                " its forward would not be those of all processes: wrap a module that holds the joint and calls this loss"
            )
    if any(_hooked(module) for module in joint.modules()):
        return "it has forward hooks"
    if activation_of(activation) is None:
        return f"its activation is {activation}, which is not among {', '.join(sorted(set(ACTIVATIONS.values())))}"
    for layer in layers:
        if linear_of(layer) is None:
            return f"its {type(layer).__name__} has more than a weight and a bias, or hooks"
    return ""


def sum_loss(
    joint: nn.Module, project: tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]], activation: object,
    output: object, encoder_out: Tensor, predictor_out: Tensor, targets: Tensor, encoder_lengths: Tensor,
    target_lengths: Tensor, *, blank: int, reduction: Reduction, **options,
) -> Tensor:  # fmt: skip
    """The loss of output(activation(project[0](encoder_out) + project[1](predictor_out))), without these scores where the core
    has the activation; of another `joint`, or one with hooks or LoRA, by `samplewise.joint_loss`, an utterance at a time.

    encoder_out (B, T, E), predictor_out (B, U+1, P); `options` are those of `transducer_loss`.
    """
    integers = (targets, encoder_lengths, target_lengths)
    why, name, layer = joint_reason(joint, activation, output), activation_of(activation), linear_of(output)
    if why or name is None or layer is None:
        return any_joint_loss(joint, why, encoder_out, predictor_out, *integers, blank=blank, reduction=reduction, **options)
    return samplewise.transducer_loss(
        project[0](encoder_out), project[1](predictor_out), layer.weight, layer.bias, *integers, blank=blank,
        activation=name, reduction=reduction, **options,
    )  # fmt: skip


def joint_network_loss(
    joint_network: Any, encoder_out: Tensor, decoder_out: Tensor, target: Tensor, t_len: Tensor, u_len: Tensor, **options
) -> Tensor:
    """`sum_loss` of a `JointNetwork` of ESPnet or FunASR, errors under the names that both give their arguments."""
    with called(
        predictor_out="decoder_out", targets="target", encoder_lengths="t_len", target_lengths="u_len", blank_is="blank_id is",
    ):  # fmt: skip
        return sum_loss(
            joint_network, (joint_network.lin_enc, joint_network.lin_dec), joint_network.joint_activation,
            joint_network.lin_out, encoder_out, decoder_out, target, t_len, u_len, **options,
        )  # fmt: skip


def any_joint_loss(
    joint: nn.Module, why: str, encoder_out: Tensor, predictor_out: Tensor, *integers: Tensor, **options
) -> Tensor:
    """`samplewise.joint_loss`, after it was said why."""
    known = inspect.signature(samplewise.joint_loss).parameters
    for name in options:
        if name not in known:
            raise TransducerError(f"{name} is an option of transducer_loss, which does not take this joint: {why}")
    _say_once(type(joint).__name__, why)
    return samplewise.joint_loss(joint, encoder_out, predictor_out, *integers, **options)


@functools.cache
def _say_once(joint: str, why: str) -> None:
    logger.warning(
        "%s goes through joint_loss, which makes the scores of an utterance at a time: transducer_loss does not take it, as %s",
        joint, why,
    )  # fmt: skip
