"""Fill the parts of README.md and docs/ that are made from code and from files of results.

Usage: python scripts/fill_docs.py [docs/results/digits.json]

Costs come from samplewise.planning.costs, the table of reductions from samplewise.functional, the recogniser's figures from the
results.json of a training run, those of sampled softmax from docs/results/sampled/*.jsonl. `samplewise bench report --insert`
fills the benchmarks' tables.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from documents import fill
from sampled_tables import table
from samplewise.functional import reduction_weights
from samplewise.planning.budget import show_bytes
from samplewise.planning.costs import FUNCTIONS
from samplewise.planning.methods import METHODS

ROOT = Path(__file__).resolve().parent.parent
FORMULAS = {
    "none": "loss_b",
    "sum": "Σ loss_b",
    "mean": "Σ loss_b / B",
    "mean_volume": "Σ loss_b / Σ U_b",
    "mean_target": "Σ loss_b / max(1, U_b) / B",
}


def costs() -> str:
    return "\n".join(
        f"| {name} | {symbol} | " + " | ".join(f"{method.times[i]}; {method.spaces[i]}" for method in METHODS.values()) + " |"
        for i, (name, symbol) in enumerate(FUNCTIONS)
    )


def reductions() -> str:
    losses, lengths = torch.tensor([6.0, 3.0, 2.0], dtype=torch.float64), torch.tensor([4, 1, 0])
    rows = []
    for name, formula in FORMULAS.items():
        weights = reduction_weights(name, lengths)
        shown = "6, 3, 2" if weights is None else f"{(losses * weights).sum():.4g}"
        rows.append(f"| `{name!r}` | {formula} | {shown} |".replace("'", '"'))
    return "\n".join(rows)


def digits(path: Path) -> str:
    """What a training run of the digits recipe reached, in one paragraph."""
    r = json.loads(path.read_text())
    test, memory = r["test"], r["memory"]
    return (
        f"`{r['command']}`: word error rate {100 * test['wer']:.2f}% on {test['utterances']} strings of held-out recordings "
        f"({test['words']} words; {test['insertions']} insertions, {test['deletions']} deletions, {test['substitutions']} "
        f"substitutions), {test['nats_per_label']:.4f} nats a label, after {r['training_seconds'] / 60:.1f} minutes on "
        f"{r['machine']['cpus']} CPU cores with {r['parameters'] / 1e6:.2f} M parameters. Joint and loss of the largest batch "
        f'took {show_bytes(memory["peak_bytes"])}; with 4-D tensors (`method="batched"`) the same step takes '
        f"{show_bytes(memory['batched_peak_bytes'])} ([results file](docs/results/digits.json))."
    )


def training(path: Path) -> str:
    """The same run as a table."""
    r = json.loads(path.read_text())
    test, memory = r["test"], r["memory"]
    rows = {
        "command, seed": f"`{r['command']}`, {r['seed']}",
        "WER on the held-out strings": f"{100 * test['wer']:.2f}% ({test['insertions']} insertions, {test['deletions']} "
        f"deletions, {test['substitutions']} substitutions in {test['words']} words of {test['utterances']} strings)",
        "loss on them": f"{test['nats_per_label']:.4f} nats per label",
        "parameters": f"{r['parameters']:,}",
        "steps, seconds of training, cores": f"{r['steps']}, {r['training_seconds']:.0f}, {r['machine']['cpus']}",
        "joint and loss, forward and backward, peak on the largest batch": show_bytes(memory["peak_bytes"]),
        "the same the ordinary way": show_bytes(memory["batched_peak_bytes"]),
        f"one copy of the 4-D logits {tuple(memory['logits_shape'])}, and of the joint encodings under them": (
            f"{show_bytes(memory['logits_bytes'])}, {show_bytes(memory['joint_bytes'])}"
        ),
    }
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])


def active(path: Path) -> str:
    """Active share at each checkpoint of a recipe's run."""
    found = json.loads(path.read_text())
    rows = [f"| {r['steps']} | {r['nats_per_label']:.4f} | {100 * r['active_share']:.1f}% |" for r in found["rows"]]
    return "\n".join(["| steps of training | nats per label | active share |", "|---|---|---|", *rows])


def main(results: list[str]) -> None:
    fill(ROOT / "docs/methods.md", "reductions", "reductions", reductions())
    fill_costs(ROOT / "docs/methods.md")
    for name in results:
        fill(ROOT / "README.md", "results:digits", "results", digits(Path(name)))
        fill(ROOT / "docs/training.md", "results:training", "results", training(Path(name)))
    for path in sorted((ROOT / "docs/results/sampled").glob("*.jsonl")):
        fill(ROOT / "docs/sampled_softmax.md", f"sampled:{path.stem}", "sampled", table(path))
    fill(ROOT / "docs/performance.md", "results:active", "results", active(ROOT / "docs/results/digits_active.json"))


def fill_costs(path: Path) -> None:
    fill(path, "costs", "costs", costs())


if __name__ == "__main__":
    main(sys.argv[1:])
