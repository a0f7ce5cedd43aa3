"""Time and memory against the sizes, as PNG."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from samplewise.asr.writing import write_bytes
from samplewise.bench.cases import AXES, AXES_BASE, Case, suite
from samplewise.bench.errors import BenchError
from samplewise.bench.joints import joints
from samplewise.bench.names import OURS, YARDSTICK
from samplewise.bench.report.results import ORDER, Results
from samplewise.planning.budget import MIB

LETTERS = {"batch": "batch B", "frames": "frames T", "labels": "labels U", "classes": "classes V"}
LABELS = {
    "auto": "samplewise", "guided": "samplewise, guided", "tiled": "samplewise, tiled",
    "tiled-exact": "samplewise, tiled, tolerance 0",
    "samplewise": "one utterance at a time", "batched": "4-D tensors, ours", "plain": "4-D tensors, plain PyTorch",
    YARDSTICK: "three matrix products", "fast-rnnt-pruned": "fast_rnnt, pruned (biased)", "fast-rnnt": "fast_rnnt",
    "optimized-transducer": "optimized_transducer", "warprnnt-numba": "NeMo's numba loss",
}  # fmt: skip
# of Okabe and Ito, whom colour-blind readers can thank: each told apart from the others by all
PALETTE = {
    "auto": "#0072B2", "plain": "#D55E00", "tiled": "#56B4E9", "batched": "#999999", YARDSTICK: "#000000",
    "optimized-transducer": "#009E73", "fast-rnnt": "#CC79A7", "torchaudio": "#E69F00", "warprnnt-numba": "#B8A300",
}  # fmt: skip
OTHERS = plt.get_cmap("tab20")
METHODS = list(ORDER)
MACHINES = (8, 24, 80)  # GiB of GPUs that people have
Value = Callable[[Results, str, str], float | None]


def all_plots(results: Results, directory: Path) -> list[Path]:
    """Write every plot that has points; return the files."""
    paths = [axis_plot(results, axis, directory / f"against-{axis}.png") for axis in AXES]
    paths.append(memory_plot(results, directory / "memory.png"))
    paths.append(sweep_plot(results, directory / "sweep.png"))
    paths.append(scaling_plot(results, directory / "scaling.png"))
    return [path for path in paths if path is not None]


def axis_plot(results: Results, axis: str, path: Path) -> Path | None:
    """Time and workspace against one size, the others as in the base case."""
    others = [name for name in AXES if name != axis]
    cases = [case for case in suite("axes") if all(getattr(case, name) == getattr(AXES_BASE, name) for name in others)]
    cases = sorted((case for case in cases if case.name in results.cases), key=lambda case: getattr(case, axis))
    if not cases:
        return None
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    sizes = [getattr(case, axis) for case in cases]
    lines(left, results, cases, sizes, lambda r, case, method: r.seconds(case, method))
    lines(right, results, cases, sizes, mebibytes)
    dress(left, LETTERS[axis], "seconds for the loss and all gradients")
    dress(right, LETTERS[axis], "workspace, MiB")
    below(figure, left)
    rest = ", ".join(f"{LETTERS[name]} {getattr(AXES_BASE, name)}" for name in others)
    figure.suptitle(f"planted alignments, {rest}, D {AXES_BASE.dim}", fontsize=10)
    return save(figure, path)


def memory_plot(results: Results, path: Path) -> Path | None:
    """Workspace against the nodes of an utterance, T x (U + 1)."""
    cases = [case for case in suite("lattice") if case.name in results.cases]
    if not cases:
        return None
    figure, axes = plt.subplots(figsize=(7, 4.6), layout="constrained")
    nodes = [case.frames * (case.labels + 1) for case in cases]
    lines(axes, results, cases, nodes, mebibytes, [f"{case.frames}×{case.labels}" for case in cases])
    dress(axes, "frames × labels of each utterance", "memory of the loss, MiB", scale=1.15)
    low, high = axes.get_ylim()
    axes.set_ylim(low, max(high, 1.6 * 1024 * max(MACHINES)))
    for size in MACHINES:
        axes.axhline(1024 * size, color="grey", linewidth=0.8, linestyle=":")
        axes.annotate(f"a GPU of {size} GiB ends here", (nodes[0], 1024 * size), fontsize=9, color="grey", va="bottom")
    axes.legend(fontsize=9, frameon=False, loc="center left", bbox_to_anchor=(0.0, 0.58))
    what = f"{cases[0].batch} utterances, {cases[0].classes} classes, joint dimension {cases[0].dim}"
    axes.set_title(f"Loss and gradients, beyond inputs and outputs\n{what}", fontsize=10)
    return save(figure, path)


def sweep_plot(results: Results, path: Path) -> Path | None:
    """Time a node and workspace against the batch, of the longest audio that was measured."""
    cases = [case for case in suite("sweep") if case.name in results.cases]
    if not cases:
        return None
    longest = max(case.frames for case in cases)
    cases = [case for case in cases if case.frames == longest]
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    batches = [case.batch for case in cases]
    nodes = {case.name: case.nodes for case in cases}

    def a_node(results: Results, case: str, method: str) -> float | None:
        seconds = results.seconds(case, method)
        return None if seconds is None else 1e9 * seconds / nodes[case]

    lines(left, results, cases, batches, a_node)
    lines(right, results, cases, batches, mebibytes)
    dress(left, "batch B", "nanoseconds a node")
    dress(right, "batch B", "workspace, MiB")
    below(figure, left)
    case = cases[0]
    figure.suptitle(f"{case.frames} frames, {case.labels} labels, V {case.classes}, D {case.dim}, random weights", fontsize=10)
    return save(figure, path)


def scaling_plot(results: Results, path: Path) -> Path | None:
    """Time a node of one trained model against U and against V: lines without a cliff."""
    cases = [case for case in suite("scaling") if case.name in results.cases] if has_joints() else []
    if not cases:
        return None
    figure, panels = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    nodes = {case.name: case.nodes for case in cases}

    def a_node(results: Results, case: str, method: str) -> float | None:
        seconds = results.seconds(case, method)
        return None if seconds is None else 1e9 * seconds / nodes[case]

    for axes, axis in zip(panels, ("labels", "classes"), strict=True):
        some = [case for case in cases if case.name.startswith(f"scaling-{axis}")]
        if some:
            lines(axes, results, some, [getattr(case, axis) for case in some], a_node)
        dress(axes, LETTERS[axis], "nanoseconds a node, loss and all gradients")
    below(figure, panels[0])
    what = f"the joint of {cases[0].source}, D {cases[0].dim}; utterances cut or joined, classes thinned out or copied"
    figure.suptitle(what, fontsize=10)
    return save(figure, path)


def has_joints() -> bool:
    try:
        return bool(joints())
    except BenchError:
        return False


def mebibytes(results: Results, case: str, method: str) -> float | None:
    workspace = results.workspace(case, method)
    return None if workspace is None else max(workspace, 1 << 16) / MIB


def lines(
    axes: Axes, results: Results, cases: Sequence[Case], sizes: Sequence[int], value_of: Value, ticks: Sequence[str] = ()
) -> None:
    """A line a method; a cross on its last point where larger cases ran out of memory."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    crossed = False
    methods = dict.fromkeys(row["method"] for case in cases for row in results.of_case(case.name))
    for method in sorted(methods, key=METHODS.index):
        points = [(size, value_of(results, case.name, method)) for size, case in zip(sizes, cases, strict=True)]
        there = [(size, value) for size, value in points if value is not None]
        if not there:
            continue
        colour = PALETTE.get(method) or OTHERS(METHODS.index(method) // 3 % 20)
        style = "-" if method.partition(":")[0] in OURS else ":" if method == YARDSTICK else "--"
        axes.plot(*zip(*there, strict=True), style, marker="o", markersize=3.5, color=colour, label=LABELS.get(method, method))
        lost = [status(results, case, method) == "out of memory" for case in cases]
        if any(lost):
            axes.plot(*there[-1], "x", color=colour, markersize=10, markeredgewidth=2)
            crossed = True
    if crossed:
        axes.plot([], [], "x", color="grey", markersize=10, markeredgewidth=2, linestyle="none", label="out of memory beyond")
    axes.set_xticks(sizes, ticks or [str(size) for size in sizes], minor=False)
    axes.xaxis.set_minor_locator(NullLocator())


def status(results: Results, case: Case, method: str) -> str:
    row = results.by_key.get((case.name, method))
    return row["status"] if row else ""


def dress(axes: Axes, x: str, y: str, scale: float = 1.0) -> None:
    axes.set_xlabel(x, fontsize=10 * scale)
    axes.set_ylabel(y, fontsize=10 * scale)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, position: f"{value:g}"))
    axes.grid(True, which="major", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def below(figure: Figure, axes: Axes) -> None:
    """One legend for the whole figure, outside its panels."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=8, frameon=False)


def save(figure: Figure, path: Path) -> Path:
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=130)
    write_bytes(path, drawn.getbuffer())
    plt.close(figure)
    return path
