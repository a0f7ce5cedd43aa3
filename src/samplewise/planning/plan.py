"""What a call would do, without doing it: method, tiles, groups, memory and time, and the largest batch that fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from samplewise.checks import check_choice, check_topology
from samplewise.choices import Method, TopologyName
from samplewise.errors import TransducerError
from samplewise.planning.budget import parse_budget, show_bytes
from samplewise.planning.costs import Amounts, FunctionCost, function_costs
from samplewise.planning.devices import default_budget, device_of
from samplewise.planning.expected import expected_bytes
from samplewise.planning.methods import EXACT_METHODS, METHODS, NAMES, schedule_of
from samplewise.planning.planner import Schedule, Sizes, bound_choices, guide_pays
from samplewise.topology import Topology

TYPICAL_SHARE = 0.1  # of the nodes carry the occupancy once a model is trained; about 0.4 at random weights


@dataclass(frozen=True)
class Plan:
    """How one batch would be computed. `print(plan)` shows it as a table."""

    sizes: Sizes
    schedule: Schedule
    dtype: torch.dtype
    share: float
    budget: int
    reason: str

    @property
    def method(self) -> str:
        """The method that runs."""
        return self.schedule.method

    @property
    def workspace(self) -> int:
        """Bytes beyond inputs, outputs and gradients."""
        return self.schedule.workspace

    @property
    def expected_workspace(self) -> int:
        """Bytes of the workspace that are expected to be touched if `share` of the nodes carry the occupancy."""
        return expected_bytes(self.sizes, self.schedule, self.share)

    @property
    def tile_rows(self) -> int:
        """Nodes that a matrix product takes at a time."""
        return self.schedule.tile_rows

    @property
    def groups(self) -> int:
        """Groups of utterances, one after the other."""
        return len(self.schedule.groups)

    @property
    def tensors(self) -> int:
        """Bytes of the encodings, the output layer and the gradients of both."""
        s = self.sizes
        rows = len(s.frames) * (max(s.frames) + max(s.labels) + 1)
        return 2 * s.compute_bytes * (rows * s.dim + s.classes * (s.dim + 1))

    @property
    def full_logits(self) -> int:
        """Bytes of the padded 4-D logits, which this method never builds."""
        s = self.sizes
        return len(s.frames) * max(s.frames) * (max(s.labels) + 1) * s.classes * s.compute_bytes

    def costs(self, method: str | None = None) -> list[FunctionCost]:
        """Time and space of every function of the transducer for this plan's method, or for another."""
        s, schedule = self.sizes, self.schedule
        nodes, padded = sum(s.nodes), len(s.frames) * max(s.frames) * (max(s.labels) + 1)
        method, most = method or self.method, max(schedule.group_nodes)
        formulas = METHODS[method]
        alive = formulas.alive(s, schedule, padded)
        guide = min(s.classes, bound_choices(s.classes)[0] + 3)
        amounts = Amounts(nodes, padded, s.classes, s.dim, schedule.tile_rows, most, alive, self.share, guide)
        return function_costs(formulas.times, formulas.spaces, amounts)

    def multiply_adds(self, method: str | None = None) -> int:
        """Multiply-adds of the matrix products of a step, by far most of its time."""
        return sum(cost.time for cost in self.costs(method) if "D V" in cost.time_formula or "D S" in cost.time_formula)

    def largest_batch(self, memory: int | str, method: str | None = None) -> int:
        """The most utterances like the longest of this batch whose tensors, gradients and workspace fit `memory` bytes."""
        limit, method = parse_budget(memory), method or self.method
        assert limit is not None
        s = self.sizes
        t, u = max(s.frames), max(s.labels)

        def fits(batch: int) -> bool:
            sizes = replace(s, frames=[t] * batch, labels=[u] * batch)
            schedule = schedule_of(method, sizes, None, self.budget, t, u + 1)
            return replace(self, sizes=sizes, schedule=schedule).tensors + schedule.workspace <= limit

        low, high = 0, 1
        while fits(high) and high < 1 << 16:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low

    def __str__(self) -> str:
        lines = [
            f"method      {self.method}: {self.reason}",
            f"workspace   {show_bytes(self.workspace)} beyond {show_bytes(self.tensors)} of encodings, output layer, gradients",
            f"instead of  {show_bytes(self.full_logits)} for the 4-D logits alone",
            f"tiles       {self.tile_rows} nodes a tile; {sum(self.sizes.nodes)} nodes in {self.groups} group(s) of utterances",
            "",
            f"{'':34}" + "".join(f"{method:>14}" for method in EXACT_METHODS),
            f"{'matrix products (multiply-adds)':34}" + "".join(f"{self.multiply_adds(m):14.2e}" for m in EXACT_METHODS),
        ]
        by_method = {method: self.costs(method) for method in EXACT_METHODS}
        lines += ["", "time (operations)"]
        for i, cost in enumerate(by_method["tiled"]):
            lines.append(f"  {cost.name:32}" + "".join(f"{by_method[m][i].time:14.2e}" for m in EXACT_METHODS))
        lines += ["", "space (elements of the result)"]
        for i, cost in enumerate(by_method["tiled"]):
            lines.append(f"  {cost.name:32}" + "".join(f"{by_method[m][i].space:14.2e}" for m in EXACT_METHODS))
        return "\n".join(lines)


def plan(
    batch: int, frames: int | Sequence[int], labels: int | Sequence[int], vocab: int, dim: int, *,
    dtype: torch.dtype = torch.float32, method: Method = "auto", memory_budget: int | str | None = None,
    share: float = TYPICAL_SHARE, gradient: bool = True, device: str | torch.device = "cpu",
    topology: Topology | TopologyName = "regular",
) -> Plan:  # fmt: skip
    """What `transducer_loss` would do with such a batch: method, tile, groups, memory, operations. Nothing is computed.

    Args:
        batch: B, utterances.
        frames, labels: T and U of every utterance, or one number an utterance.
        vocab: V, classes with blank.
        dim: D, joint dimension.
        dtype: of the matrix products.
        method, memory_budget: as in `transducer_loss`.
        share: share of nodes that carry the occupancy, for the estimate of the time: 0.4 is usual at random weights, 0.1 and
            less after training.
        gradient: False plans an evaluation of the loss alone.
        device: whose memory and threads count.
        topology: as in `transducer_loss`.

    Raises:
        TransducerError: a size is not positive, the numbers of lengths and of utterances differ, or nothing fits the budget;
            the message says the least that works.

    >>> import samplewise
    >>> p = samplewise.plan(batch=32, frames=400, labels=60, vocab=2048, dim=512)
    >>> p.method, p.workspace <= 64 << 20
    ('guided', True)
    """
    check_choice("method", method, NAMES)
    lattice = check_topology(topology)
    for name, size in (("batch", batch), ("vocab", vocab), ("dim", dim)):
        if size <= 0:
            raise TransducerError(f"{name} is {size}; it must be positive")
    every_frames, every_labels = _each("frames", frames, batch, 1), _each("labels", labels, batch, 0)
    device = torch.device(device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise TransducerError(f'device is "{device}", but there is no GPU here that PyTorch can use')
    compute = dtype.itemsize
    threads = torch.get_num_threads() if device.type == "cpu" else 1
    sizes = Sizes(
        every_frames, every_labels, vocab + lattice.extra, dim, compute, max(compute, 4), gradient, threads,
        device=device_of(device), exponentials=device.type == "cpu" and dtype != torch.float64, topology=lattice,
    )  # fmt: skip
    budget, default = parse_budget(memory_budget), default_budget(device)
    schedule = schedule_of(method, sizes, budget, default, max(every_frames), max(every_labels) + 1)
    return Plan(sizes, schedule, dtype, share, budget or default, _reason(method, sizes, schedule))


def _each(name: str, value: int | Sequence[int], batch: int, least: int) -> list[int]:
    values = [value] * batch if isinstance(value, int) else list(value)
    if len(values) != batch:
        raise TransducerError(f"{name} has {len(values)} lengths, but batch is {batch}")
    for b, length in enumerate(values):
        if length < least:
            raise TransducerError(f"{name}[{b}] is {length}; it must be at least {least}")
    return values


def _reason(method: str, sizes: Sizes, schedule: Schedule) -> str:
    if method != "auto":
        return "as asked for"
    if schedule.method == "guided":
        return "bounds from a few classes find the nodes that matter, and prove that the others do not"
    if not guide_pays(sizes):
        return "the matrix products are too small for bounds to save time; every node is exact"
    if sizes.device.at_once:
        return "bounds have not been measured on a GPU; every node is exact"
    return "there is too little memory for bounds beside the exact emissions; every node is exact"
