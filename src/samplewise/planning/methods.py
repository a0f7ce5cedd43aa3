"""The methods: the schedule of each, and what every function of the transducer costs with it. A new one is an entry here, and
its passes an entry of `ops/methods.py`; all of them take every topology.

The formulas' letters are explained in `costs.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from samplewise.planning.planner import Schedule, Sizes, choose, schedule_batched, schedule_samplewise, schedule_tiled

Scheduler = Callable[[Sizes, int | None, int, int, int], Schedule]  # of sizes, budget, default budget, padded T and U + 1


@dataclass(frozen=True)
class Method:
    """How it cuts a batch up; time and space of each of `costs.FUNCTIONS`; and the nodes whose logits are alive at once."""

    schedule: Scheduler
    times: tuple[str, ...]
    spaces: tuple[str, ...]
    alive: Callable[[Sizes, Schedule, int], int]  # of the padded nodes, too


METHODS = {
    "batched": Method(
        lambda sizes, budget, default, frames, width: schedule_batched(sizes, budget, frames, width),
        ("P D", "P D V", "P V", "N", "1", "P V", "P D V", "P D V", "2 P D"),
        ("P D", "P V", "P", "2 P", "1", "0", "D V", "P D", "0"),
        lambda sizes, schedule, padded: padded,
    ),
    "samplewise": Method(
        lambda sizes, budget, default, frames, width: schedule_samplewise(sizes, budget, default),
        ("N D", "N D V", "N V", "N", "1", "N V", "N D V", "N D V", "2 N D"),
        ("F D", "F V", "G", "2 G", "1", "0", "D V", "F D", "0"),
        lambda sizes, schedule, padded: max(sizes.nodes),
    ),
    "tiled": Method(
        lambda sizes, budget, default, frames, width: schedule_tiled(sizes, budget, default, "tiled"),
        ("(1+r) N D", "(1+r) N D V", "N V", "N", "1", "r N V", "r N D V", "r N D V", "2r N D"),
        ("F D", "F V", "G", "2 G", "1", "0", "D V", "R D", "0"),
        lambda sizes, schedule, padded: max(schedule.tile_rows, schedule.kept_rows),
    ),
    "guided": Method(
        lambda sizes, budget, default, frames, width: schedule_tiled(sizes, budget, default, "guided"),
        ("(1+2r) N D", "N D S + 2r N D V", "N S + r N V", "2 N", "1", "r N V", "r N D V", "r N D V", "2r N D"),
        ("F D", "F V", "G", "4 G", "1", "0", "D V", "R D", "0"),
        lambda sizes, schedule, padded: max(schedule.tile_rows, schedule.kept_rows),
    ),
}  # fmt: skip
EXACT_METHODS = tuple(METHODS)
NAMES = ("auto", *METHODS)


def schedule_of(method: str, sizes: Sizes, budget: int | None, default: int, padded_frames: int, padded_width: int) -> Schedule:
    """The schedule of a method by its name, or of the one that suits. The padded sizes are T and U + 1."""
    if method == "auto":
        return choose(sizes, budget, default)
    return METHODS[method].schedule(sizes, budget, default, padded_frames, padded_width)
