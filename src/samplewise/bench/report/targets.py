"""The figures that samplewise is meant to reach, each computed from the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from samplewise.bench.names import YARDSTICK
from samplewise.bench.report.results import Results
from samplewise.planning.budget import MIB, show_bytes

Value = Callable[[Results], float | None]


def plainly(value: float) -> str:
    return f"{value:.3g}"


@dataclass(frozen=True)
class Target:
    """One figure: `value` is None where it was not measured."""

    case: str
    figure: str
    value: Value
    limit: float
    at_most: bool = True
    show: Callable[[float], str] = plainly

    def met(self, value: float) -> bool:
        return value <= self.limit if self.at_most else value >= self.limit


def of_gemms(case: str, limit: float) -> Target:
    return Target(case, "`auto`, of the three GEMMs", lambda r: r.ratio(case, "auto"), limit)


def of_tiled(case: str, limit: float) -> Target:
    return Target(case, "`auto`, of `tiled`", lambda r: r.quotient(case, "auto", "tiled"), limit)


def faster_than_peers(case: str, limit: float) -> Target:
    def value(results: Results) -> float | None:
        peer = results.best_exact_peer(case)
        return results.quotient(case, peer, "auto") if peer else None

    return Target(case, "`auto` faster than the best exact peer", value, limit, at_most=False)


def workspace(case: str, limit: int) -> Target:
    return Target(case, "workspace of `auto`", lambda r: r.workspace(case, "auto"), limit, show=show_bytes)


def half_precision(case: str, method: str) -> Target:
    half = f"{method}:bf16"
    return Target(
        case, f"`{method}` faster under bf16 autocast", lambda r: r.quotient(case, method, half), 1.5, at_most=False
    )  # fmt: skip


def checked(case: str, what: str, limit: float) -> Target:
    def value(results: Results) -> float | None:
        row = results.by_key.get((case, "auto"))
        return row["check"][what] if row and row["check"] else None

    return Target(case, f"error of the {what} of `auto`", value, limit)


def a_node(results: Results, case: str, method: str) -> float | None:
    row = results.row(case, method)
    return row["seconds"]["median"] / row["nodes"] if row and row["seconds"] else None


def for_padding(ragged: str, dense: str, method: str) -> Value:
    """Time a real node of one case over that of another, each in units of the products that were timed in turns with it."""

    def value(results: Results) -> float | None:
        mine, its = results.ratio(ragged, method), results.ratio(dense, method)
        return mine / its if mine and its else None

    return value


def a_node_against(case: str, other: str, method: str) -> Value:
    def value(results: Results) -> float | None:
        mine, its = a_node(results, case, method), a_node(results, other, method)
        return mine / its if mine and its else None

    return value


def against_products(case: str, method: str, products: Iterable[str]) -> Value:
    """Time over that of the matrix products which the method has to do."""

    def value(results: Results) -> float | None:
        mine, theirs = results.seconds(case, method), [results.seconds(case, name) for name in products]
        return mine / sum(t for t in theirs if t) if mine and all(theirs) else None

    return value


def serious(results: Results) -> list[str]:
    """The cases whose figures mean something."""
    return [case for case in results.cases if not case.startswith("quick")]


def worst_auto(results: Results) -> float | None:
    """The largest quotient of `auto` and the best fixed method of a case."""
    found = []
    for case in serious(results):
        best = results.best_fixed(case)
        quotient = results.quotient(case, "auto", best) if best else None
        if quotient is not None:
            found.append(quotient)
    return max(found, default=None)


def prediction(pick: Callable[[Iterable[float]], float]) -> Value:
    def value(results: Results) -> float | None:
        rows = [row for case in serious(results) for row in results.of_case(case) if row["status"] == "ok" and row["memory"]]
        found = [(row["ours"] or {}).get("predicted_workspace", 0) / max(row["memory"]["workspace"], 1) for row in rows]
        shares = [share for share in found if share]
        return pick(shares) if shares else None

    return value


ONE, MANY = "sweep-40s-1", "sweep-40s-1024"
TARGETS = (
    of_gemms("bible_step3000", 0.08),
    of_gemms("bible_step3000-long", 0.045),
    of_gemms("bible_step1000", 0.14),
    of_tiled("bible_step250", 1.03),
    of_gemms("an4_characters_step1180", 0.6),
    of_gemms("digits_step500", 0.5),
    of_gemms("planted", 0.08),
    of_gemms("planted-long", 0.035),
    of_gemms("planted-8192", 0.12),
    of_gemms("planted-1500", 0.025),
    of_tiled("random", 1.0),
    workspace("long-20000", 96 * MIB),
    workspace("long-36000", 256 * MIB),
    of_gemms("characters", 1.0),
    *(faster_than_peers(case, 10.0) for case in ("planted", "planted-long", "planted-8192", "planted-1500")),
    faster_than_peers("random", 2.0),
    faster_than_peers("characters", 2.5),
    Target(
        "planted", "`auto`, of fast-rnnt's pruned loss", lambda r: r.quotient("planted", "auto", "fast-rnnt-pruned"), 1.0
    ),
    workspace("planted", 64 * MIB),
    workspace("characters", 64 * MIB),
    Target("ragged", "a real node, of the dense batch's", for_padding("ragged", "dense", "tiled-exact"), 1.1),
    half_precision("planted", "auto"),
    half_precision("random", "auto"),
    half_precision("random", "tiled-exact"),
    checked("accuracy", "gradient", 1e-5),
    checked("accuracy-x300", "loss", 1e-3),
    Target(
        "random", "`tiled`, tolerance 0, of its four GEMMs", against_products("random", "tiled-exact", ("gemm1", YARDSTICK)),
        1.25,
    ),
    Target("random", "loss alone, of its GEMM", against_products("random", "tiled-exact:loss", ("gemm1",)), 1.3),
    workspace(MANY, 256 * MIB),
    Target(MANY, "a node, of that at batch 1", a_node_against(MANY, ONE, "auto"), 1.1),
    Target("all", "`auto`, of the best fixed method, at worst", worst_auto, 1.1),
    Target("all", "predicted / measured workspace, least", prediction(min), 1.0, at_most=False),
    Target("all", "predicted / measured workspace, most", prediction(max), 1.15),
)  # fmt: skip
