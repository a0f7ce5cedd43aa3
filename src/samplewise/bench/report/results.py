"""Rows by case and method, and the comparisons that tables and targets are made of."""

from __future__ import annotations

from collections.abc import Iterable

from samplewise.bench.figures import pairwise
from samplewise.bench.names import BASES, OURS, VARIANTS, Method
from samplewise.bench.records import Row, latest

ORDER = {f"{base}:{variant}" if variant else base: (BASES.index(base), variant) for base in BASES for variant in VARIANTS}


class Results:
    """The last row of each case and method, cases in the order in which they were first measured."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.rows = latest(rows)
        self.by_key = {(row["case"], row["method"]): row for row in self.rows}
        self.cases = list(dict.fromkeys(row["case"] for row in self.rows))

    def of_case(self, case: str) -> list[Row]:
        """The rows of a case: ours first, then what they are compared with."""
        return sorted((row for row in self.rows if row["case"] == case), key=lambda row: ORDER[row["method"]])

    def row(self, case: str, method: str) -> Row | None:
        """The row, if it has figures."""
        row = self.by_key.get((case, method))
        return row if row and row["status"] == "ok" else None

    def seconds(self, case: str, method: str) -> float | None:
        row = self.row(case, method)
        return row["seconds"]["median"] if row and row["seconds"] else None

    def ratio(self, case: str, method: str) -> float | None:
        """Time as a multiple of the three matrix products'."""
        row = self.row(case, method)
        return row["ratio"]["median"] if row and row["ratio"] else None

    def workspace(self, case: str, method: str) -> int | None:
        row = self.row(case, method)
        return row["memory"]["workspace"] if row and row["memory"] else None

    def quotient(self, case: str, method: str, other: str) -> float | None:
        """Time of one method over another's: pairs of the same round where both were timed in turns."""
        a, b = self.row(case, method), self.row(case, other)
        if not a or not b or not a["times"] or not b["times"]:
            return None
        if a["session"] == b["session"]:
            return pairwise(a["times"], b["times"])["median"]
        if a["ratio"] and b["ratio"]:
            return a["ratio"]["median"] / b["ratio"]["median"]
        return a["seconds"]["median"] / b["seconds"]["median"]

    def best_exact_peer(self, case: str) -> str | None:
        """The fastest other library whose loss is the exact one."""
        timed = {row["method"]: self.seconds(case, row["method"]) for row in self.of_case(case) if is_exact_peer(row["method"])}
        found = {method: seconds for method, seconds in timed.items() if seconds is not None}
        return min(found, key=found.__getitem__) if found else None

    def best_fixed(self, case: str) -> str | None:
        """The fastest of our methods that is not "auto"."""
        timed = {method: self.seconds(case, method) for method in OURS if method != "auto"}
        found = {method: seconds for method, seconds in timed.items() if seconds is not None}
        return min(found, key=found.__getitem__) if found else None

    @property
    def busy(self) -> bool:
        return any(row["busy"] for row in self.rows)


def is_exact_peer(text: str) -> bool:
    method = Method.parse(text)
    return method.kind == "peer" and not method.approximate and not method.variant
