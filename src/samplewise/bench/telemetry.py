"""What our methods say about a call: the active share and the rounds of the guide from the log, the predicted workspace."""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

import samplewise
from samplewise.bench.cases import Case

NUMBER = r"([-+0-9.e]+)"
WORDS = {
    "active_share": rf"active share {NUMBER}",
    "rounds": rf"rounds {NUMBER}",
    "outside": rf"occupancy outside {NUMBER}",
    "guide_size": rf"guide(?: size)? {NUMBER}",
}


class Listener(logging.Handler):
    """Collects numbers from the debug messages of the logger "samplewise", one value a group of utterances."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.found: dict[str, list[float]] = defaultdict(list)
        self.methods: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        for key, pattern in WORDS.items():
            match = re.search(pattern, message)
            value = getattr(record, key, None) if match is None else float(match[1])
            if isinstance(value, (int, float)):
                self.found[key].append(float(value))
        method = re.match(r"(\w+):", message)
        if method and method[1] not in self.methods:
            self.methods.append(method[1])

    def summary(self) -> dict[str, Any]:
        """The mean active share, the largest of the other numbers, and the methods that spoke."""
        numbers = {key: sum(v) / len(v) if key == "active_share" else max(v) for key, v in self.found.items()}
        return {**numbers, **({"ran": "+".join(self.methods)} if self.methods else {})}


@contextmanager
def listening() -> Iterator[Listener]:
    logger, listener = logging.getLogger("samplewise"), Listener()
    level = logger.level
    logger.addHandler(listener)
    logger.setLevel(logging.DEBUG)
    try:
        yield listener
    finally:
        logger.setLevel(level)
        logger.removeHandler(listener)


def foretold(
    case: Case, method: str, budget: int | None, *, gradient: bool, dtype: torch.dtype, share: float
) -> dict[str, Any]:
    """The method that `samplewise.plan` announces, its bound of the workspace, and what it expects of it where the occupancy is
    on `share` of the nodes."""
    found = samplewise.plan(
        case.batch, *case.lengths(), case.classes, case.dim, method=method, memory_budget=budget, gradient=gradient,
        dtype=dtype, share=share,
    )  # fmt: skip
    return {"predicted_workspace": found.expected_workspace, "bound": found.workspace, "chosen": found.method}
