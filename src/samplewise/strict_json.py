"""JSON as its standard has it, which every reader takes: NaN and infinity are null in it, and it says which these were."""

from __future__ import annotations

import json
import math
from typing import Any

NOT_FINITE = "not_finite"


def text(values: Any, **options: Any) -> str:
    """`json.dumps` of values whose NaN and infinities are null."""
    return json.dumps(finite(values), allow_nan=False, **options)


def told(values: dict[str, Any]) -> dict[str, Any]:
    """The values with null for NaN and infinities; if there were any, the key `not_finite` says where, and what they were.

    >>> told({"loss": float("inf"), "test": {"wer": 0.5}})
    {'loss': None, 'test': {'wer': 0.5}, 'not_finite': {'loss': 'inf'}}
    """
    found = not_finite(values)
    return finite(values) | ({NOT_FINITE: found} if found else {})


def finite(values: Any) -> Any:
    if isinstance(values, dict):
        return {key: finite(value) for key, value in values.items()}
    if isinstance(values, (list, tuple)):
        return [finite(value) for value in values]
    return None if isinstance(values, float) and not math.isfinite(values) else values


def not_finite(values: Any, where: str = "") -> dict[str, str]:
    """Dotted names of the numbers that are none, with what they are: nan, inf or -inf."""
    if isinstance(values, dict):
        parts = [not_finite(value, f"{where}.{key}" if where else str(key)) for key, value in values.items()]
    elif isinstance(values, (list, tuple)):
        parts = [not_finite(value, f"{where}[{i}]") for i, value in enumerate(values)]
    else:
        return {where: str(float(values))} if isinstance(values, float) and not math.isfinite(values) else {}
    return {name: found for part in parts for name, found in part.items()}
