"""What a schedule is expected to take, phase by phase; its `workspace` is the bound, with all phases' buffers at once."""

from __future__ import annotations

from samplewise.plan.planner import (
    PACKED_DEPTH,
    PROBES,
    STRETCHES_AT_ONCE,
    Schedule,
    Sizes,
    guide_classes,
    kept_bytes,
    lattice_bytes,
    stretch_height,
)

SMALL = 3 << 18  # small tensors, and what the allocator rounds up; measured
ROUNDED_UP = 1.04  # an estimate errs on the safe side
HISTOGRAM_TOUCHED = 1 << 17  # of a histogram of occupancies, whose pages come when they are written; measured


def expected_bytes(sizes: Sizes, schedule: Schedule, share: float) -> int:
    """Bytes that the schedule is expected to take where `share` of the nodes carry the occupancy."""
    if schedule.method not in ("tiled", "guided") or sizes.device.at_once:  # on a GPU nothing was measured yet
        return schedule.workspace
    return min(schedule.workspace, round(ROUNDED_UP * phases(sizes, schedule, share)))


def phases(sizes: Sizes, schedule: Schedule, share: float) -> int:
    """The largest of the phases of "tiled" or "guided": emission and lattice, selection, gradient."""
    most = max(schedule.group_nodes)
    together = max(stop - first for first, stop in schedule.groups)
    active = min(most, max(1, round(share * most)))
    rows = min(schedule.tile_rows, most if schedule.method == "tiled" else active)
    index = 8 * active if sizes.gradient else 0
    threads = min(sizes.threads, together)
    lattice = lattice_bytes(sizes, together)
    select = threads * HISTOGRAM_TOUCHED + 2 * index
    gradient = index
    if sizes.gradient:
        gradient += sizes.compute_bytes * sizes.dim * min(rows, active) + sizes.threads * sizes.classes * sizes.real_bytes
    tile = sizes.compute_bytes * (sizes.classes + sizes.dim) * rows
    kept = kept_bytes(sizes) * min(schedule.kept_rows, most if schedule.method == "tiled" else active)
    copied = sizes.compute_bytes * (sizes.classes + sizes.dim) * min(rows, active)  # from what is kept
    base = SMALL + weight_bytes(sizes, schedule.method) + 32 * rows
    if schedule.method == "tiled":
        floats = most * (8 + 2 * sizes.real_bytes)
        if kept:
            return base + floats + kept + max(lattice, select, gradient + copied)
        return base + floats + tile + max(lattice, select, gradient)
    floats = most * (8 + 4 * sizes.real_bytes + 1)
    guide = guide_bytes_expected(sizes)
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


def guide_bytes_expected(sizes: Sizes) -> int:
    """Joint encodings and logits of a stretch over the drawn classes and a few labels, and the probes of some stretches."""
    nodes = max(sizes.nodes)
    height = stretch_height(nodes)
    classes = min(sizes.classes, guide_classes(sizes.classes) + 16)
    stretches = min(STRETCHES_AT_ONCE, -(-nodes // height))
    probes = stretches * (PROBES * 2 + 3) * sizes.classes * sizes.real_bytes
    return sizes.compute_bytes * (height * (classes + sizes.dim) + classes * sizes.dim) + probes
