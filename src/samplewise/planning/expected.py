"""What a schedule is expected to take, phase by phase; its `workspace` is the bound, with all phases' buffers at once."""

from __future__ import annotations

from samplewise.planning.planner import (
    PACKED_DEPTH,
    Schedule,
    Sizes,
    bounds_bytes,
    exponential_bytes,
    kept_bytes,
    lattice_bytes,
)

SMALL = 3 << 18  # small tensors, and what the allocator rounds up; measured
ROUNDED_UP = 1.04  # an estimate errs on the safe side
HISTOGRAM_TOUCHED = 1 << 17  # of a histogram of occupancies, whose pages come when they are written; measured


def expected_bytes(sizes: Sizes, schedule: Schedule, share: float) -> int:
    """Bytes that the schedule is expected to take where `share` of the nodes carry the occupancy."""
    if schedule.method not in ("tiled", "guided") or sizes.device.at_once or schedule.whole < max(sizes.nodes):  # not measured
        return schedule.workspace
    return min(schedule.workspace, round(ROUNDED_UP * phases(sizes, schedule, share)))


def phases(sizes: Sizes, schedule: Schedule, share: float) -> int:
    """The largest of the phases of "tiled" or "guided": emission and lattice, selection, gradient."""
    most = max(schedule.group_nodes)
    together = max(stop - first for first, stop in schedule.groups)
    active = min(most, max(1, round(share * most)))
    entries, heads = len(sizes.topology.entries), len(sizes.topology.heads)
    rows = min(schedule.tile_rows, most if schedule.method == "tiled" else active)
    index = 8 * active if sizes.gradient else 0
    threads = min(sizes.threads, together)
    lattice = lattice_bytes(sizes, together, schedule.whole)
    select = threads * HISTOGRAM_TOUCHED + 2 * index
    gradient = index
    if sizes.gradient:
        gradient += sizes.compute_bytes * sizes.dim * min(rows, active) + sizes.threads * sizes.classes * sizes.real_bytes
    tile = sizes.compute_bytes * (sizes.classes + sizes.dim) * rows
    kept = kept_bytes(sizes) * min(schedule.kept_rows, most if schedule.method == "tiled" else active)
    copied = sizes.compute_bytes * (sizes.classes + sizes.dim) * min(rows, active)  # from what is kept
    made = [group for group, exponentials in zip(schedule.groups, schedule.exponentials, strict=True) if exponentials]
    tables = max((exponential_bytes(sizes, *group) for group in made), default=0)
    base = SMALL + weight_bytes(sizes, schedule.method) + tables + 32 * rows
    if schedule.method == "tiled":
        floats = most * (8 * heads + entries * sizes.real_bytes)
        if kept:
            return base + floats + kept + max(lattice, select, gradient + copied)
        return base + floats + tile + max(lattice, select, gradient)
    floats = most * ((2 * entries + 1) * sizes.real_bytes + 1) + active * (8 + 8 * heads + entries * sizes.real_bytes)
    guide = bounds_bytes(sizes)
    exact = kept + (copied if kept else tile)
    if len(schedule.groups) > 1:  # what the group before has touched is still there
        return base + floats + exact + max(guide, lattice, select, gradient)
    return base + floats + max(guide, exact + max(lattice, select + 8 * most, gradient))


def weight_bytes(sizes: Sizes, method: str) -> int:
    """The weight in the compute dtype and its gradient in the real one, where these are copies; what products pack of it."""
    low_precision = sizes.compute_bytes < sizes.real_bytes
    a_column = sizes.classes * sizes.compute_bytes
    beyond = max(0, sizes.dim - PACKED_DEPTH) * a_column * (2 if method == "guided" else 1)
    weight = sizes.dim * a_column * 2 if low_precision else 0  # oneDNN's order of it
    if low_precision or sizes.gathered:
        weight += sizes.classes * sizes.dim * (sizes.compute_bytes + 2 * sizes.real_bytes)
    return weight + min(sizes.dim, PACKED_DEPTH) * a_column + beyond
