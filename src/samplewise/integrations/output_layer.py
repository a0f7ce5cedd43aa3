"""Weight and bias of a joint's output layer, whatever wraps it: adapters (LoRA), parametrizations, sharding, offloading."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from samplewise.checks import check_tensors
from samplewise.errors import TransducerError

SCALE = 64.0  # of the rows that are fed in, a power of 2: in half precision a large bias costs so much less of the weight
NEAR = 0.02  # of the largest score: by how much one may differ from the weight's, for rounding's sake in half precision


def output_layer(head: nn.Module, encodings: Tensor, name: str = "joint.head") -> tuple[Tensor, Tensor | None]:
    """Weight (V, D) and bias (V,) that a linear layer's forward applies, differentiable by the layer's parameters.

    Those of a plain `nn.Linear` are its parameters. Any other module is called, once, with D + 2 rows: a unit vector for each
    feature, zero, and a row that tells whether weight and bias are all that there is. So LoRA's sum, a parametrized weight or
    one that a hook gathers (FSDP, ZeRO-3, offloading) count as what they are in the module's own forward, and the gradients
    take the module's own way back.

    Args:
        encodings: (..., D), of the dtype and device that the layer is given.
        name: what errors call the layer.

    Raises:
        TransducerError: the layer is not linear or drops out at random, or its weight is not here and nothing brings it.
    """
    if _is_plain(head):
        return head.weight, head.bias  # type: ignore[return-value]
    _check(head, encodings, name)
    width, scale = encodings.shape[-1], SCALE
    options: Any = {"dtype": encodings.dtype, "device": encodings.device}
    rows = torch.cat((torch.eye(width, **options) * scale, torch.zeros(1, width, **options), _row(width, **options)))
    scores = head(rows)
    check_tensors(**{f"what {name} gives": scores})
    if scores.dim() != 2 or len(scores) != width + 2:
        raise TransducerError(f"{name} gives {tuple(scores.shape)} for rows {tuple(rows.shape)}; it must give (rows, V)")
    bias = scores[width]
    weight = ((scores[:width] - bias) / scale).t().contiguous()
    _check_linear(scores[-1], weight, bias, rows[-1], name)
    return weight, bias


def _row(width: int, **options) -> Tensor:
    return torch.linspace(-1.0, 1.0, width, **options)[None]


def _is_plain(head: nn.Module) -> bool:
    """Whether its forward is that of a linear layer, on the parameters that are seen from outside."""
    if type(head) is not nn.Linear or "forward" in vars(head) or head._forward_pre_hooks or head._forward_hooks:
        return False
    weight = head.weight
    here = type(weight) in (nn.Parameter, Tensor) and weight.device.type != "meta" and not hasattr(weight, "ds_id")
    return here and tuple(weight.shape) == (head.out_features, head.in_features)


def _check(head: nn.Module, encodings: Tensor, name: str) -> None:
    """What would fail, or give a wrong weight, when the layer is called."""
    for part, module in head.named_modules():
        where = f"{name}.{part}" if part else name
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.training and module.p > 0:
            raise TransducerError(
                f"{where} drops out inputs of the output layer with probability {module.p}: there is no one weight then; set it"
                f" to 0 (lora_dropout=0.0), or leave {name} without an adapter"
            )
    if head._forward_pre_hooks or "forward" in vars(head):
        return  # which may gather
    for part, parameter in head.named_parameters():
        check_tensors(**{f"{name}.{part}": parameter})
        if parameter.numel() == 0 or parameter.device.type == "meta":
            raise TransducerError(
                f"{name}.{part} has shape {tuple(parameter.shape)} on {parameter.device}: its numbers are not here, and"
                f" {name} has no hook that brings them"
            )


@torch.no_grad()
def _check_linear(found: Tensor, weight: Tensor, bias: Tensor, row: Tensor, name: str) -> None:
    difference = (found.float() - torch.mv(weight.float(), row.float()) - bias.float()).abs().max()
    if not bool(difference <= NEAR * found.float().abs().max().clamp(min=1e-3)):  # not, so that NaN is no agreement
        raise TransducerError(
            f"{name} is not a linear layer: of one row its scores differ by {float(difference):.3g} from those of its weight"
            " and bias; an activation, a random mask or a mixture of experts is not part of the loss"
        )
