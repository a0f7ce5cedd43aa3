"""Tables of docs/sampled_softmax.md, made from the files that `samplewise compare` writes."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from samplewise.planning.budget import show_bytes

IDLE = 2.3  # load average of a machine of two cores on which two runs of one thread have been alone
DIRTY = "-dirty"
COLUMNS = (
    "loss trained on", "classes", "seeds", "WER on the test set", "full loss on it, nats a label", "joint and loss, peak",
    "CPU time a step",
)  # fmt: skip
Line = dict[str, Any]


def table(path: Path) -> str:
    """Each way of training, over its seeds, with a line that says what the runs were."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    groups: dict[str, list[Line]] = {}
    for line in sorted(lines, key=order):
        groups.setdefault(line["variant"], []).append(line)
    full = groups.get("full")
    rows = [row(group, full) for group in groups.values()]
    return "\n".join([f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS), *rows, "", *notes(path, lines)])


def order(line: Line) -> tuple:
    sampling = line["sampling"] or {"scope": "", "negatives": "", "size": 0, "correction": None}
    kinds = ["", "uniform", "unigram", "ctc"]
    keys = (sampling["size"], kinds.index(sampling["negatives"]), sampling["scope"] == "batch", sampling["correction"] or "")
    return (line["sampling"] is not None, *keys, line["seed"])


def row(group: Sequence[Line], full: Sequence[Line] | None) -> str:
    first = group[0]
    wer, nats = figures(group, percent), figures(group, lambda line: line["test"]["nats_per_label"])
    seconds = [line["step_cpu_seconds"] for line in group]
    memory = [line["memory"]["peak_bytes"] for line in group if line["memory"] and line["memory"]["peak_bytes"] is not None]
    cells = [
        way(first["sampling"]),
        classes(group),
        ", ".join(str(line["seed"]) for line in group),
        f"{spread(wer, 2)} %" + against(group, full, percent) if wer else "no figure",
        spread(nats, 3) if nats else "no figure",
        show_bytes(round(statistics.median(memory))) if memory else "not measured",
        f"{1000 * statistics.median(seconds):.0f} ms",
    ]
    return "| " + " | ".join(cells) + " |"


def percent(line: Line) -> float | None:
    """The word error rate; null in the files where there was none."""
    return None if line["test"]["wer"] is None else 100 * line["test"]["wer"]


def figures(group: Sequence[Line], value: Callable[[Line], float | None]) -> list[float]:
    return [found for line in group if (found := value(line)) is not None]


def classes(group: Sequence[Line]) -> str:
    """All, or the size that was asked for, and what it was on average where blank and labels alone are more."""
    first = group[0]
    if first["sampling"] is None:
        return str(first["classes"])
    size = first["sampling"]["size"]
    found = [line["sampled_classes"] for line in group if line.get("sampled_classes")]
    mean = statistics.fmean(found) if found else size
    return str(size) if mean < size + 0.5 else f"{size} (on average {mean:.1f})"


def way(sampling: dict[str, Any] | None) -> str:
    if sampling is None:
        return "full softmax"
    kinds = {"uniform": "uniform", "ctc": "CTC-guided", "unigram": "unigram"}
    scope = {"utterance": "per utterance", "batch": "per batch"}[sampling["scope"]]
    return f"{kinds[sampling['negatives']]}, {scope}" + (", log q" if sampling["correction"] == "logq" else "")


def spread(values: Sequence[float], digits: int) -> str:
    """The mean, and the extremes if there are several."""
    mean = f"{statistics.fmean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def against(group: Sequence[Line], full: Sequence[Line] | None, value: Any) -> str:
    """Mean difference to the full loss, over the seeds that both have."""
    if full is None or group is full:
        return ""
    base = {line["seed"]: value(line) for line in full if value(line) is not None}
    differences = [value(line) - base[line["seed"]] for line in group if line["seed"] in base and value(line) is not None]
    return f", {statistics.fmean(differences):+.2f}" if differences else ""


def notes(path: Path, lines: Sequence[Line]) -> list[str]:
    """What the runs were, and how far their times can be relied on."""
    one = lines[0]
    steps, threads = same(line["steps"] for line in lines), same(line["machine"]["threads"] for line in lines)
    loads = [line["load_average"] for line in lines if line["load_average"] is not None]
    crowded = max(loads, default=0) > IDLE
    minutes = statistics.median(line["training_cpu_seconds"] for line in lines) / 60
    found = [
        f"{len(lines)} runs of {steps} steps, {one['classes']} classes, {one['parameters'] / 1e6:.2f} M parameters, "
        f"a median of {minutes:.1f} CPU minutes on {threads} thread each; test: {one['test']['utterances']} utterances, "
        f"{one['test']['words']} words; torch {one['versions']['torch']}, {commits(lines)} "
        f"([runs](results/sampled/{path.name})). Signed numbers: mean difference to the full softmax at the same seeds."
    ]
    if crowded:
        found.append(
            f"Other work ran beside these (mean load {min(loads):.1f} to {max(loads):.1f} on {one['machine']['cpus']} cores): "
            "compare the times within the table only, and roughly."
        )
    return found


def commits(lines: Sequence[Line]) -> str:
    """What the runs were made by, and how many of them by files that differ from their commit, which nobody else has."""
    names = sorted({short(line["commit"]) for line in lines})
    dirty = sum(str(line["commit"]).endswith(DIRTY) for line in lines)
    return f"commit {', '.join(names)}" + (
        f"; **{dirty} of {len(lines)} runs came from changed trees ({DIRTY})**" if dirty else ""
    )


def short(commit: str | None) -> str:
    text = str(commit)
    return text.removesuffix(DIRTY)[:12] + (DIRTY if text.endswith(DIRTY) else "")


def same(values: Iterable[Any]) -> str:
    """The value that all have, or all different ones."""
    return " or ".join(str(value) for value in sorted(set(values)))
