"""Time and space of every function of the transducer, for every method (the rows of Table 1 of arXiv 2211.16270).

Time is in multiply-adds for matrix products and in elementary operations elsewhere; space is what a function's result takes, in
elements. N = sum_b T_b (U_b + 1) counts nodes without padding and P = B T (U+1) with it, R the rows of a tile, G the nodes of
the largest group, F those whose logits are alive at once, r the share of nodes that carries the occupancy, S the classes of a
guide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Amounts:
    """The numbers that the formulas speak of."""

    nodes: int  # N
    padded: int  # P
    classes: int  # V
    dim: int  # D
    tile: int  # R
    group: int  # G
    alive: int  # F
    share: float  # r
    guide: int  # S


@dataclass(frozen=True)
class FunctionCost:
    """One function: its name, the paper's symbol, time and space as formulas and as numbers."""

    name: str
    symbol: str
    time_formula: str
    space_formula: str
    time: int
    space: int


FUNCTIONS = (  # name, the paper's symbol
    ("joint", "f^J"),
    ("output layer", "f^O"),
    ("softmax denominator", "f^W_1"),
    ("forward and backward variables", "f^W_2"),
    ("loss", "f^W_3"),
    ("gradient of the scores", "f^W_4, dh"),
    ("gradient of the output layer", "d theta^O"),
    ("gradient of the joint encodings", "dz"),
    ("gradient of the encodings", "dh^A, dh^L"),
)


def evaluate(formula: str, amounts: Amounts) -> int:
    """The number that a formula stands for: a sum of products of single letters and numbers."""
    values = {
        "N": amounts.nodes, "P": amounts.padded, "V": amounts.classes, "D": amounts.dim, "R": amounts.tile, "G": amounts.group,
        "F": amounts.alive, "S": amounts.guide, "r": amounts.share, "2r": 2 * amounts.share, "(1+r)": 1 + amounts.share,
        "(1+2r)": 1 + 2 * amounts.share,
    }  # fmt: skip
    total = 0.0
    for term in formula.split(" + "):
        product = 1.0
        for factor in term.split():
            product *= values[factor] if factor in values else float(factor)
        total += product
    return round(total)


def function_costs(times: Sequence[str], spaces: Sequence[str], amounts: Amounts) -> list[FunctionCost]:
    """Every row of the table, for the formulas of one method."""
    rows = zip(FUNCTIONS, times, spaces, strict=True)
    return [
        FunctionCost(name, symbol, time, space, evaluate(time, amounts), evaluate(space, amounts))
        for (name, symbol), time, space in rows
    ]
