"""How a batch is cut: which utterances form a group, and how many nodes a tile. Integers in, integers out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from samplewise.errors import TransducerError
from samplewise.plan.budget import CPU, Device, show_bytes

LANES = 16  # frames side by side in the lattice of a CPU
RECORDS = 960 * 34  # of the steps of a segment, a thread
GPU_SUMS = 2 << 20  # of columns of dL/dh, a program of a GPU
HISTOGRAM = 33000 * 16  # of occupancies, a thread
PACKED_DEPTH = 295  # matrix products on a CPU pack so many columns of the weight at a time; measured
LONGEST_STRETCH = 2048  # nodes of a guide that share their classes
STRETCHES, SHORTEST_STRETCH = 16, 64  # of an utterance, and in nodes
PROBES, STRETCHES_AT_ONCE = 8, 16  # whole softmaxes of a stretch, and stretches whose probes are computed together
SLACK = 5 << 18  # small tensors, what the allocator rounds up, what else a matrix product packs; measured
SMALLEST_TILE = 128
NODES_A_KEPT_ROW = 24  # of a guided group: about so many nodes have one among them that carries occupancy, once trained
SMALLEST_GUIDED = 1 << 13  # nodes of a guided group, if not all that there are
LEAST_STRETCH = 100_000_000  # multiply-adds of all classes for a stretch; of less, the steps of a guide take longer; measured
WORTHWHILE_GUIDE = 0.4  # of all classes; above it a guide costs more than it saves


@dataclass(frozen=True)
class Sizes:
    """What the cost of a call depends on. Lengths are those of the utterances; bytes of a compute and a real element."""

    frames: Sequence[int]
    labels: Sequence[int]
    classes: int
    dim: int
    compute_bytes: int
    real_bytes: int
    gradient: bool
    threads: int = 1
    gathered: bool = False  # the weight's rows are copied, and its gradient goes on from a sum of its own: sampled softmax
    device: Device = CPU

    @property
    def nodes(self) -> list[int]:
        return [t * (u + 1) for t, u in zip(self.frames, self.labels, strict=True)]


@dataclass(frozen=True)
class Schedule:
    """Groups of consecutive utterances (first, stop), their node counts, the rows of a tile, and the bytes that this takes."""

    method: str
    groups: list[tuple[int, int]]
    group_nodes: list[int]
    tile_rows: int
    kept_rows: int
    workspace: int


def row_bytes(sizes: Sizes) -> int:
    """A row of a tile: z, h, dz where there are gradients, and four indices."""
    return sizes.compute_bytes * (sizes.classes + sizes.dim * (2 if sizes.gradient else 1)) + 32


def node_bytes(sizes: Sizes, method: str) -> int:
    """A node of a group: three floats, and its place in the list of active nodes. A guide keeps both emissions and occupancies,
    and marks exact nodes. Where all utterances run at once, so do their alphas."""
    alpha = 8 if sizes.device.at_once and (sizes.gradient or method == "guided") else 0
    if method == "guided":
        return 8 + 4 * sizes.real_bytes + 8 + 8 + 2 + alpha
    return 8 + 2 * sizes.real_bytes + (8 if sizes.gradient else 0) + alpha


def alpha_bytes(frames: int, labels: int) -> int:
    """What the lattice keeps of an utterance: alpha and beta of every sixteenth frame, two float64 each, and the state between
    segments of 32 steps, 80 float64."""
    width = max(labels + 1, LANES)
    steps = -(-frames // LANES) * width + LANES
    return 32 * (steps + width) + 640 * (steps // 32 + 4)


def lattice_bytes(sizes: Sizes, together: int) -> int:
    """What the lattices of a group of so many utterances take on a CPU: of few all run at once, of many one a thread."""
    longest = max(map(alpha_bytes, sizes.frames, sizes.labels))
    return longest * min(2 * sizes.threads - 1, together) + RECORDS * sizes.threads


def fixed_bytes(sizes: Sizes) -> int:
    """What does not depend on the batch: the weight in the compute dtype, sums in the real one, lattice and select a thread."""
    low_precision = sizes.compute_bytes < sizes.real_bytes
    weight = sizes.classes * sizes.dim * (sizes.compute_bytes + 2 * sizes.real_bytes) if low_precision or sizes.gathered else 0
    lattice = 0 if sizes.device.at_once else lattice_bytes(sizes, len(sizes.frames))
    packed = sizes.classes * min(sizes.dim, PACKED_DEPTH) * sizes.compute_bytes
    by_thread = sizes.threads * (sizes.classes * sizes.real_bytes + HISTOGRAM) if sizes.gradient else 0
    by_program = GPU_SUMS if sizes.device.at_once and sizes.gradient else 0
    return weight + lattice + packed + SLACK + by_thread + by_program


def guide_bytes(sizes: Sizes, rows: int) -> int:
    """The guide's own logits, weight rows and probes; its joint encodings lie where those of exact nodes will."""
    classes = round(guide_share(sizes) * sizes.classes)
    looked_at = STRETCHES_AT_ONCE * (PROBES * 2 + 3) * sizes.classes * sizes.real_bytes
    return sizes.compute_bytes * (rows * (classes + sizes.dim) + 2 * classes * sizes.dim) + looked_at


def kept_bytes(sizes: Sizes) -> int:
    """A node whose z and h stay in the workspace until the gradient pass, and its place there."""
    return sizes.compute_bytes * (sizes.classes + sizes.dim) + 16


def schedule_tiled(sizes: Sizes, budget: int | None, default: int, method: str = "tiled") -> Schedule:
    """Tiles near the caches; what is left of the budget keeps z and h for the gradient pass, or else holds more utterances."""
    nodes = sizes.nodes
    row, node, fixed = row_bytes(sizes), node_bytes(sizes, method), fixed_bytes(sizes)
    if method == "guided":
        fixed += guide_bytes(sizes, min(LONGEST_STRETCH, max(nodes)))
    wanted = max(SMALLEST_TILE, min(sizes.device.most_rows, sizes.device.cache // row))
    wanted = min(wanted, sum(nodes))
    floor = fixed + node * max(nodes)
    if budget is None:
        budget = max(default, floor + row * wanted)
    least = floor + row * min(wanted, 16)
    if budget < least:
        refuse(method, budget, least, sizes)
    tile = min(wanted, (budget - floor) // row)
    left = budget - fixed - row * tile
    capacity, kept = left // node, 0
    if sizes.gradient and method == "tiled":
        together = left // (node + kept_bytes(sizes))
        enough = sum(nodes) if sizes.device.at_once else max(nodes)  # a GPU wants many utterances in a group
        if together >= enough:  # then every group keeps all that it has
            capacity = together
            kept = min(capacity, sum(nodes))
    if sizes.gradient and method == "guided":
        capacity = min(capacity, max(SMALLEST_GUIDED, NODES_A_KEPT_ROW * (left // kept_bytes(sizes))))
    groups = cut(nodes, capacity)
    counts = [sum(nodes[first:stop]) for first, stop in groups]
    if sizes.gradient and method == "guided":
        kept = min(max(counts), (left - node * max(counts)) // kept_bytes(sizes))
    used = fixed + row * tile + node * max(counts) + kept_bytes(sizes) * min(kept, max(counts))
    return Schedule(method, groups, counts, tile, min(kept, max(counts)), used)


def choose(sizes: Sizes, budget: int | None, default: int) -> Schedule:
    """The schedule of method "auto", the cheapest that fits.

    "guided" pays where the guide's classes are few beside all of them; "tiled" everywhere else, which includes what
    "samplewise" does for utterances whose logits fit the budget, and on a GPU, where the guide's many small steps have not been
    measured. The reason is said in the plan.
    """
    if guide_pays(sizes) and not sizes.device.at_once:
        try:
            return schedule_tiled(sizes, budget, default, "guided")
        except TransducerError:
            pass  # too little memory for the occupancies beside the emissions
    return schedule_tiled(sizes, budget, default, "tiled")


def guide_pays(sizes: Sizes) -> bool:
    """Whether the guide's classes are few beside all, and the matrix products that it saves more than what it does itself."""
    height = stretch_height(sum(sizes.nodes) // len(sizes.nodes))
    return guide_share(sizes) <= WORTHWHILE_GUIDE and height * sizes.dim * sizes.classes >= LEAST_STRETCH


def stretch_height(nodes: int) -> int:
    """Nodes of a guide's stretch, in an utterance of so many."""
    return min(nodes, LONGEST_STRETCH, max(SHORTEST_STRETCH, -(-nodes // STRETCHES)))


def guide_share(sizes: Sizes) -> float:
    """Classes of the guide over all classes: K drawn ones, the labels of the largest utterance, and blank."""
    largest = max(range(len(sizes.nodes)), key=sizes.nodes.__getitem__)
    return min(1.0, (guide_classes(sizes.classes) + sizes.labels[largest] + 1) / sizes.classes)


def schedule_samplewise(sizes: Sizes, budget: int | None, default: int) -> Schedule:
    """As many utterances in flight as the budget holds with their logits; at least one."""
    nodes = sizes.nodes
    per_node, fixed = row_bytes(sizes) + node_bytes(sizes, "samplewise"), fixed_bytes(sizes)
    least = fixed + per_node * max(nodes)
    if budget is None:
        budget = max(default, least)
    if budget < least:
        refuse("samplewise", budget, least, sizes)
    groups = cut(nodes, (budget - fixed) // per_node)
    counts = [sum(nodes[first:stop]) for first, stop in groups]
    return Schedule("samplewise", groups, counts, max(counts), 0, fixed + per_node * max(counts))


def schedule_batched(sizes: Sizes, budget: int | None, padded_frames: int, padded_width: int) -> Schedule:
    """Everything at once, padding included."""
    batch = len(sizes.frames)
    nodes = batch * padded_frames * padded_width
    least = fixed_bytes(sizes) + nodes * (row_bytes(sizes) + node_bytes(sizes, "batched") + 2 * sizes.dim * sizes.real_bytes)
    if budget is not None and budget < least:
        refuse("batched", budget, least, sizes)
    return Schedule("batched", [(0, batch)], [nodes], nodes, 0, least)


def guide_classes(classes: int) -> int:
    """How many classes a guide draws beside those always present."""
    return max(32, min(64, classes // 32))


def schedule_of(method: str, sizes: Sizes, budget: int | None, default: int, padded_frames: int, padded_width: int) -> Schedule:
    """The schedule of a method by its name. The padded sizes, T and U + 1, matter to "batched" alone."""
    if method == "auto":
        return choose(sizes, budget, default)
    if method == "batched":
        return schedule_batched(sizes, budget, padded_frames, padded_width)
    if method == "samplewise":
        return schedule_samplewise(sizes, budget, default)
    return schedule_tiled(sizes, budget, default, method)


def cut(nodes: Sequence[int], capacity: int) -> list[tuple[int, int]]:
    """Consecutive utterances, at least one and at most `capacity` nodes a group."""
    groups, first, held = [], 0, 0
    for b, count in enumerate(nodes):
        if b > first and held + count > capacity:
            groups.append((first, b))
            first, held = b, 0
        held += count
    groups.append((first, len(nodes)))
    return groups


def refuse(method: str, budget: int, least: int, sizes: Sizes) -> None:
    longest = max(range(len(sizes.nodes)), key=sizes.nodes.__getitem__)
    raise TransducerError(
        f'memory_budget is {budget} bytes ({show_bytes(budget)}), but method "{method}" needs at least {least} '
        f"({show_bytes(least)}) for this batch; its largest utterance is {longest}, of {sizes.frames[longest]} frames and "
        f"{sizes.labels[longest]} labels"
    )
