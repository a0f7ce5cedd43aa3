"""Recorded cases of peers through adapters, under the peer's own arguments."""

from __future__ import annotations

from types import ModuleType

import torch

from tests.ops.test_peers import arrays, group_of
from tests.ops.test_topology_peers import same

SLACK = {"float64": (1e-9, 1e-7), "float32": (5e-6, 3e-5)}  # of losses and of gradients, by the largest


def given_of(peer: str, case: dict) -> dict[str, torch.Tensor]:
    """The arrays that the peer was given, by its own names."""
    values = arrays(peer)
    return {name: values[f"{case['id']}/inputs/{name}"] for name in case["arrays"]["inputs"]}


def call(module: ModuleType, case: dict, reduction: str, given: dict[str, torch.Tensor]) -> torch.Tensor:
    """The function of the case, or its class, as the peer's was called."""
    function = getattr(module, case["function"].split(".")[-1])
    if isinstance(function, type):
        return function(**case["init_args"], reduction=reduction)(**given, **case["args"])
    return function(**given, **case["args"], reduction=reduction)


def check(module: ModuleType, peer: str, case: dict, floats: str) -> None:
    """Losses, their shape and dtype, and gradients of every reduction."""
    values = arrays(peer)
    of_loss, of_gradient = SLACK[case["dtype"]]
    assert case["reductions"]
    for reduction in case["reductions"]:
        given, group = given_of(peer, case), group_of(case, values, reduction)
        leaf = given[floats].clone().requires_grad_()
        loss = call(module, case, reduction, {**given, floats: leaf})
        right = group["loss"]
        assert loss.shape == right.shape and loss.dtype == right.dtype, f"{reduction}: {loss}, {peer} gave {right}"
        loss.backward(group["upstream"].reshape(loss.shape).to(loss))
        same(loss.detach(), right, of_loss, f"{reduction}: {loss.tolist()}, {peer} says {right.tolist()}")
        same(leaf.grad, group[f"grad_{floats}"], of_gradient, f"gradient, {reduction}")
