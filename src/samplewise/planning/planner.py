"""How a batch is cut: which utterances form a group, and how many nodes a tile. Integers in, integers out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from samplewise.errors import TransducerError
from samplewise.planning.budget import CPU, Device, show_bytes
from samplewise.topology import Topology, regular

REGULAR = regular()

LANES = 16  # frames side by side in the lattice of a CPU
RECORDS = 960 * 34  # of the steps of a segment, a thread
GPU_SUMS = 2 << 20  # of columns of dL/dh, a program of a GPU
HISTOGRAM = 33000 * 16  # of occupancies, a thread
PACKED_DEPTH = 295  # matrix products on a CPU pack so many columns of the weight at a time; measured
STRETCH_NODES, PROBES = 1024, 4  # nodes that are bounded with the same classes, and how many of them show their whole softmax
STRETCH_BYTES = 2 << 20  # of the weights of those classes, of the stretches that are bounded together
PROBE_BYTES = 4 << 20  # of the whole softmaxes that are looked at together
PAGE = 4096
SLACK = 5 << 18  # small tensors, what the allocator rounds up, what else a matrix product packs; measured
SMALLEST_TILE = 128
NODES_A_KEPT_ROW = 24  # of a guided group: about so many nodes have one among them that carries occupancy, once trained
SMALLEST_GUIDED = 1 << 13  # nodes of a guided group, if not all that there are
KEPT_CLASSES = 512  # of fewer, z and h are made again sooner than they are written and read back; measured on a CPU
SEGMENT = 32  # frames, or more, whose alphas the general lattice of a CPU holds
PIECE = 1 << 17  # nodes of a piece of an utterance that is too long to hold floats for all of its nodes, or more
CORRIDOR = 0.3  # of the nodes: a corridor of more is no less work than all of them; measured
WIDE = 0.85  # of the nodes: exact emissions on so many are no less work than on all
CERTAIN_WORK = 100_000  # multiply-adds a node of an output layer, beside which bounds cost next to nothing
SMALL_WORK = 5000  # beside which they cost as much
NODE_WORK, LATTICE_WORK = 3000, 2000  # what takes as long of a node beside the output layer, and in a lattice; measured
TINY = 20_000_000  # multiply-adds of an output layer; of less, the steps of "guided" take longer than what they save; measured
TINY_LAYER = 2000  # multiply-adds a node


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
    exponentials: bool = False  # tanh or sigmoid is made from exponentials of the encodings, where there is room for them
    topology: Topology = REGULAR
    aligned: bool = False  # nodes are listed that an alignment leaves

    @property
    def nodes(self) -> list[int]:
        return [t * (u + 1) for t, u in zip(self.frames, self.labels, strict=True)]


@dataclass(frozen=True)
class Schedule:
    """Groups of consecutive utterances (first, stop), their node counts, the rows of a tile, the bytes that this takes, and
    which groups have exponentials of their encodings."""

    method: str
    groups: list[tuple[int, int]]
    group_nodes: list[int]
    tile_rows: int
    kept_rows: int
    workspace: int
    exponentials: list[bool]
    exact_nodes: int = 0  # of a guided group, at most: with more, every node is made exact
    whole: int = 1 << 62  # an utterance of more nodes is worked on in pieces


def row_bytes(sizes: Sizes) -> int:
    """A row of a tile: z, h, dz where there are gradients, and four indices."""
    return sizes.compute_bytes * (sizes.classes + sizes.dim * (2 if sizes.gradient else 1)) + 32


def node_bytes(sizes: Sizes, method: str) -> int:
    """A node of a group: three floats, and its place in the list of active nodes. "guided" keeps emissions and occupancies,
    sums and marks; its exact nodes come on top. Where all utterances run at once, so do their alphas."""
    at_once, regular = sizes.device.at_once, sizes.topology.name == "regular"
    alpha = 8 if at_once and (sizes.gradient or method == "guided" or not regular) else 0
    entries, heads = len(sizes.topology.entries), len(sizes.topology.heads)
    if at_once and any(arc.ahead is not None for arc in sizes.topology.arcs):
        alpha += entries * sizes.real_bytes  # a copy of the entries
    if sum(entry.head == 0 for entry in sizes.topology.entries) > 2:
        alpha += sizes.real_bytes  # the posteriors of several blanks, added up
    if sizes.aligned and method != "guided":
        alpha += 16
    if method == "guided":  # so many exact nodes there is always room for
        return (2 * entries + 1) * sizes.real_bytes + 1 + exact_node_bytes(sizes) // 10 + alpha
    return 8 * heads + entries * sizes.real_bytes + (8 if sizes.gradient else 0) + alpha


def exact_node_bytes(sizes: Sizes) -> int:
    """An exact node of "guided": in two lists, its emissions, its occupancies."""
    return 16 + 8 * len(sizes.topology.heads) + 8 * len(sizes.topology.entries)


def alpha_bytes(frames: int, labels: int) -> int:
    """What the lattice keeps of an utterance: alpha and beta of every sixteenth frame, two float64 each, and the state between
    segments of 32 steps, 80 float64."""
    width = max(labels + 1, LANES)
    steps = -(-frames // LANES) * width + LANES
    return 32 * (steps + width) + 640 * (steps // 32 + 4)


def lattice_bytes(sizes: Sizes, together: int, whole: int) -> int:
    """What the lattices of a group of so many utterances take on a CPU: of few all run at once, of many one a thread."""
    pieces = [(piece_frames(t, u, whole), u) for t, u in zip(sizes.frames, sizes.labels, strict=True)]
    if sizes.topology.name != "regular":
        return max(arcs_bytes(sizes.topology, *piece) for piece in pieces) * min(sizes.threads, together)
    longest = max(alpha_bytes(*piece) for piece in pieces)
    return longest * min(2 * sizes.threads - 1, together) + RECORDS * sizes.threads


def arcs_bytes(topology: Topology, frames: int, labels: int) -> int:
    """What the general lattice holds of an utterance: alphas of a segment, what arrives at each segment, and of a frame the
    entries, two sums and a share each, and the arcs; two float64 a number that may be of any size."""
    rows, entries, arcs = topology.reach + 1, len(topology.entries), len(topology.arcs)
    segment = max(SEGMENT, math.isqrt(frames * topology.reach))
    states = -(-frames // segment) * rows
    return 8 * (labels + 1) * (2 * (segment + states + 2 * rows + entries + arcs + 1) + entries)


def piece_frames(frames: int, labels: int, whole: int) -> int:
    """Frames of a piece of an utterance: all, unless it has more than `whole` nodes. Then about as many as there are pieces,
    for a row of alpha is kept of each."""
    if frames * (labels + 1) <= whole:
        return frames
    return min(frames, max(math.isqrt(frames), PIECE // (labels + 1), 1))


def held_bytes(sizes: Sizes, node: int, whole: int) -> list[int]:
    """Of every utterance what the nodes take that are held at once, `node` bytes each, and the rows kept between pieces."""
    found = []
    for frames, labels in zip(sizes.frames, sizes.labels, strict=True):
        rows = piece_frames(frames, labels, whole)
        edges = 8 * (labels + 1) * sizes.topology.reach * (-(-frames // rows) + 2) if rows < frames else 0
        found.append(node * rows * (labels + 1) + edges)
    return found


def fixed_bytes(sizes: Sizes, whole: int = 1 << 62) -> int:
    """What does not depend on the batch: the weight in the compute dtype, sums in the real one, lattice and select a thread."""
    low_precision = sizes.compute_bytes < sizes.real_bytes
    weight = sizes.classes * sizes.dim * (sizes.compute_bytes + 2 * sizes.real_bytes) if low_precision or sizes.gathered else 0
    lattice = 0 if sizes.device.at_once else lattice_bytes(sizes, len(sizes.frames), whole)
    packed = sizes.classes * min(sizes.dim, PACKED_DEPTH) * sizes.compute_bytes
    by_thread = sizes.threads * (sizes.classes * sizes.real_bytes + HISTOGRAM) if sizes.gradient else 0
    by_program = GPU_SUMS if sizes.device.at_once and sizes.gradient else 0
    return weight + lattice + packed + SLACK + by_thread + by_program


def bounds_bytes(sizes: Sizes) -> int:
    """Weights of the classes of stretches that are bounded together, twice, and the whole softmax of their probes, thrice."""
    few = bound_choices(sizes.classes)
    stretches = min(stretches_at_once(sizes.dim, few[0]), 1 + sum(sizes.nodes) // STRETCH_NODES + len(sizes.nodes))
    rows = min(stretches, stretches_at_once(sizes.dim, few[-1])) * (few[-1] + 2) * sizes.dim * sizes.real_bytes
    probes = min(stretches, probed_at_once(sizes.classes, sizes.real_bytes)) * PROBES
    a_thread = (2 * 32 + 2) * sizes.dim * sizes.real_bytes
    return 3 * rows + 3 * probes * sizes.classes * sizes.real_bytes + sizes.threads * a_thread + 64 * sizes.dim


def probed_at_once(classes: int, real_bytes: int) -> int:
    """Stretches whose probes are looked at together: thrice their scores are held."""
    return max(1, PROBE_BYTES // (3 * PROBES * classes * real_bytes))


def exponential_bytes(sizes: Sizes, first: int, stop: int) -> int:
    """Exponentials of the encodings of utterances first..stop-1, where they are made: float32, and two pages at whose ends rows
    of padding begin."""
    if not sizes.exponentials:
        return 0
    rows = sum(sizes.frames[first:stop]) + sum(sizes.labels[first:stop]) + stop - first
    return 4 * sizes.dim * rows + 2 * PAGE * (stop - first)


def default_exponentials(sizes: Sizes, besides: int) -> int:
    """What a default budget that has to grow for one utterance adds for its exponentials: nothing, where that is much."""
    most = max(exponential_bytes(sizes, b, b + 1) for b in range(len(sizes.frames)))
    return most if 4 * most <= besides else 0


def kept_bytes(sizes: Sizes) -> int:
    """A node whose z and h stay in the workspace until the gradient pass, and its place there."""
    return sizes.compute_bytes * (sizes.classes + sizes.dim) + 16


def schedule_tiled(sizes: Sizes, budget: int | None, default: int, method: str = "tiled") -> Schedule:
    """Tiles near the caches; what is left of the budget keeps z and h for the gradient pass, or else holds more utterances.

    Where the nodes of the largest utterance do not fit, it is worked on in pieces, whose emissions or bounds are made twice.
    """
    nodes = sizes.nodes
    row, node = row_bytes(sizes), node_bytes(sizes, method)
    wanted = max(SMALLEST_TILE, min(sizes.device.most_rows, sizes.device.cache // row))
    wanted = min(wanted, sum(nodes))
    bounds = bounds_bytes(sizes) if method == "guided" else 0
    whole = max(nodes)
    fixed = fixed_bytes(sizes) + bounds
    floor = fixed + node * whole
    fits = floor + row * wanted <= default if budget is None else floor + row * min(wanted, 16) <= budget
    if not fits and whole > PIECE:
        whole = PIECE
        fixed = fixed_bytes(sizes, whole) + bounds
        floor = fixed + max(held_bytes(sizes, node, whole))
    if budget is None:
        budget = max(default, floor + row * wanted + default_exponentials(sizes, floor + row * wanted))
    least = floor + row * min(wanted, 16)
    if budget < least:
        refuse(method, budget, least, sizes)
    tile = min(wanted, (budget - floor) // row)
    left = budget - fixed - row * tile
    each, keeps = node, False  # bytes of that for a node
    worthwhile = sizes.gradient and (sizes.classes >= KEPT_CLASSES or sizes.device.at_once)
    if worthwhile and method == "tiled" and whole == max(nodes):
        enough = sum(nodes) if sizes.device.at_once else max(nodes)  # a GPU wants many utterances in a group
        keeps = left // (node + kept_bytes(sizes)) >= enough  # then every group keeps all that it has
        each += kept_bytes(sizes) if keeps else 0
    if worthwhile and method == "guided":
        each = max(node, left // max(SMALLEST_GUIDED, NODES_A_KEPT_ROW * (left // kept_bytes(sizes))))
    held = held_bytes(sizes, node, whole)
    groups, exponentials = cut_with_exponentials(sizes, held_bytes(sizes, each, whole), held if not keeps else None, left)
    counts = [sum(nodes[first:stop]) for first, stop in groups]
    used = max_bytes(sizes, held_bytes(sizes, each, whole) if keeps else held, groups, exponentials)
    kept, exact = max(counts) if keeps else 0, 0
    if method == "guided":
        exact = round(min(WIDE * max(counts), max(counts) / 10 + (left - used) // 2 // exact_node_bytes(sizes)))
        used += max(0, exact - max(counts) // 10) * exact_node_bytes(sizes)
        kept = min(max(counts), max(0, left - used) // kept_bytes(sizes)) if worthwhile else 0
        used += kept * kept_bytes(sizes)
    return Schedule(method, groups, counts, tile, kept, fixed + row * tile + used, exponentials, exact, whole)


def choose(sizes: Sizes, budget: int | None, default: int) -> Schedule:
    """The schedule of method "auto": "guided", which turns to "tiled" group by group where bounds say that it has to visit most
    nodes; "tiled" for tiny calls, and on a GPU until "guided" has been measured there. The reason is said in the plan."""
    if guide_pays(sizes) and not sizes.device.at_once:
        try:
            return schedule_tiled(sizes, budget, default, "guided")
        except TransducerError:
            pass  # too little memory for the occupancies beside the emissions
    return schedule_tiled(sizes, budget, default, "tiled")


def guide_pays(sizes: Sizes) -> bool:
    """Whether the call is not tiny, nor its output layer."""
    return sum(sizes.nodes) * sizes.dim * sizes.classes >= TINY and sizes.dim * sizes.classes >= TINY_LAYER


def schedule_samplewise(sizes: Sizes, budget: int | None, default: int) -> Schedule:
    """As many utterances in flight as the budget holds with their logits; at least one."""
    nodes = sizes.nodes
    per_node, fixed = row_bytes(sizes) + node_bytes(sizes, "samplewise"), fixed_bytes(sizes)
    least = fixed + per_node * max(nodes)
    if budget is None:
        budget = max(default, least + default_exponentials(sizes, least))
    if budget < least:
        refuse("samplewise", budget, least, sizes)
    held = [per_node * count for count in nodes]
    groups, exponentials = cut_with_exponentials(sizes, held, None, budget - fixed)
    counts = [sum(nodes[first:stop]) for first, stop in groups]
    used = fixed + max_bytes(sizes, held, groups, exponentials)
    return Schedule("samplewise", groups, counts, max(counts), 0, used, exponentials)


def schedule_batched(sizes: Sizes, budget: int | None, padded_frames: int, padded_width: int) -> Schedule:
    """Everything at once, padding included."""
    batch = len(sizes.frames)
    nodes = batch * padded_frames * padded_width
    least = fixed_bytes(sizes) + nodes * (row_bytes(sizes) + node_bytes(sizes, "batched") + 2 * sizes.dim * sizes.real_bytes)
    if budget is not None and budget < least:
        refuse("batched", budget, least, sizes)
    return Schedule("batched", [(0, batch)], [nodes], nodes, 0, least, [False])


def bound_choices(classes: int) -> list[int]:
    """With how many classes a stretch may be bounded beside blank and a node's own label; with blank and the rest 4 to 32."""
    return [few for few in (2, 6, 14, 30) if few < classes - 1] or [max(0, classes - 1)]


def stretch_frames(width: int) -> int:
    """Frames of a stretch, whose rows have so many nodes."""
    return max(1, STRETCH_NODES // width)


def stretches_at_once(dim: int, few: int) -> int:
    """Stretches that are bounded together, with so many classes."""
    return max(16, STRETCH_BYTES // (8 * (2 + few) * dim))


def cut_with_exponentials(
    sizes: Sizes, held: list[int], needed: list[int] | None, room: int
) -> tuple[list[tuple[int, int]], list[bool]]:
    """Groups whose utterances, of so many bytes each, and exponentials fit the room. An utterance whose exponentials do not fit
    beside the bytes `needed` for it (by default those held) is alone and without them."""
    costs = [bytes + exponential_bytes(sizes, b, b + 1) for b, bytes in enumerate(held)]
    groups = cut(costs, room)
    return groups, [sizes.exponentials and max_bytes(sizes, needed or held, [group], [True]) <= room for group in groups]


def max_bytes(sizes: Sizes, held: list[int], groups: Sequence[tuple[int, int]], exponentials: Sequence[bool]) -> int:
    """The most that a group's utterances, of so many bytes each, take with its exponentials."""
    return max(
        sum(held[first:stop]) + (exponential_bytes(sizes, first, stop) if made else 0)
        for (first, stop), made in zip(groups, exponentials, strict=True)
    )


def cut(costs: Sequence[int], capacity: int) -> list[tuple[int, int]]:
    """Consecutive utterances, at least one and at most `capacity` nodes or bytes a group."""
    groups, first, held = [], 0, 0
    for b, count in enumerate(costs):
        if b > first and held + count > capacity:
            groups.append((first, b))
            first, held = b, 0
        held += count
    groups.append((first, len(costs)))
    return groups


def refuse(method: str, budget: int, least: int, sizes: Sizes) -> None:
    longest = max(range(len(sizes.nodes)), key=sizes.nodes.__getitem__)
    raise TransducerError(
        f'memory_budget is {budget} bytes ({show_bytes(budget)}), but method "{method}" needs at least {least} '
        f"({show_bytes(least)}) for this batch; its largest utterance is {longest}, of {sizes.frames[longest]} frames and "
        f"{sizes.labels[longest]} labels"
    )
