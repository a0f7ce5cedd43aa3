"""What our methods say about a call: what they did, and what the plan foretold."""

from __future__ import annotations

from typing import Any

import torch

import samplewise
from samplewise.bench.cases import Case
from samplewise.choices import Method


def told(seen: samplewise.Observation) -> dict[str, Any]:
    """The shares of active and of exact nodes, the most rounds, the proved bound of the occupancy outside the exact nodes, and
    the methods that ran."""
    if not seen.groups:
        return {}
    active = {} if seen.active_share is None else {"active_share": seen.active_share}
    return {
        **active,
        "exact_share": seen.exact_share,
        "rounds": seen.rounds,
        "outside": seen.bound,
        "ran": "+".join(seen.methods),
    }


def foretold(
    case: Case, method: Method, budget: int | None, *, gradient: bool, dtype: torch.dtype, share: float
) -> dict[str, Any]:
    """The method that `samplewise.plan` announces, its bound of the workspace, and what it expects of it where the occupancy is
    on `share` of the nodes."""
    found = samplewise.plan(
        case.batch, *case.lengths(), case.classes, case.dim, method=method, memory_budget=budget, gradient=gradient,
        dtype=dtype, share=share,
    )  # fmt: skip
    return {"predicted_workspace": found.expected_workspace, "bound": found.workspace, "chosen": found.method}
