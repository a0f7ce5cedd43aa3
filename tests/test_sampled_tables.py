"""The tables of docs/sampled_softmax.md: means, extremes, differences at the same seeds, and what is said of a busy machine."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]
CTC = {"size": 14, "scope": "batch", "negatives": "ctc", "correction": None}


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sampled_tables", ROOT / "scripts" / "sampled_tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def line(sampling, seed: int, wer: float, load: float = 2.0) -> dict:
    return {
        "variant": "full" if sampling is None else "ctc-batch-14",
        "sampling": sampling,
        "seed": seed,
        "steps": 100,
        "classes": 28,
        "parameters": 1_200_000,
        "training_cpu_seconds": 180.0,
        "step_cpu_seconds": 0.12,
        "test": {"wer": wer, "nats_per_label": 2 * wer, "utterances": 130, "words": 773},
        "memory": {"peak_bytes": 10 * 2**20},
        "machine": {"threads": 1, "cpus": 2},
        "versions": {"torch": "2.13.0"},
        "commit": "0123456789abcdef",
        "load_average": load,
    }


def made(tables, path: Path, lines: list[dict]) -> str:
    path.write_text("\n".join(map(json.dumps, lines)))
    return tables.table(path)


def test_a_table_over_seeds(tables, tmp_path):
    lines = [line(CTC, 2, 0.14), line(None, 1, 0.08), line(CTC, 1, 0.10), line(None, 2, 0.10)]
    rows = made(tables, tmp_path / "a.jsonl", lines).splitlines()
    assert rows[0].count("|") == rows[1].count("|") == rows[2].count("|") == 8
    assert rows[2] == "| full softmax | 28 | 1, 2 | 9.00 (8.00 to 10.00) % | 0.180 (0.160 to 0.200) | 10.0 MiB | 120 ms |"
    assert rows[3].startswith("| CTC-guided, per batch | 14 | 1, 2 | 12.00 (10.00 to 14.00) %, +3.00 | ")
    assert "4 runs of 100 steps, 28 classes" in rows[5] and "3.0 CPU minutes on 1 thread" in rows[5]
    assert "[runs](results/sampled/a.jsonl)" in rows[5] and "0123456789ab" in rows[5]


def test_a_sample_that_grew_is_told_of(tables, tmp_path):
    grown = {**line(CTC, 1, 0.1), "sampled_classes": 25.8}
    assert "| CTC-guided, per batch | 14 (on average 25.8) | 1 |" in made(tables, tmp_path / "a.jsonl", [grown])


def test_differences_are_taken_at_seeds_that_both_have(tables, tmp_path):
    rows = made(tables, tmp_path / "a.jsonl", [line(None, 1, 0.08), line(None, 2, 0.50), line(CTC, 1, 0.10)])
    assert "| 10.00 %, +2.00 |" in rows


def test_a_busy_machine_is_told_of(tables, tmp_path):
    quiet = made(tables, tmp_path / "a.jsonl", [line(None, 1, 0.08, load=2.2)])
    busy = made(tables, tmp_path / "a.jsonl", [line(None, 1, 0.08, load=3.5)])
    assert "Other work" not in quiet and "mean load 3.5 to 3.5 on 2 cores" in busy


def test_runs_from_changed_trees_are_named_and_counted(tables, tmp_path):
    commit = "0123456789abcdef0123"
    lines = [
        {**line(None, seed, 0.1), "commit": name}
        for seed, name in ((1, commit), (2, f"{commit}-dirty"), (3, f"{commit}-dirty"))
    ]
    text = made(tables, tmp_path / "a.jsonl", lines)
    assert "commit 0123456789ab, 0123456789ab-dirty; **2 of 3 runs came from changed trees (-dirty)**" in text
    clean = made(tables, tmp_path / "a.jsonl", lines[:1])
    assert "commit 0123456789ab (" in clean and "changed" not in clean


def test_a_run_without_a_figure_stands_for_none(tables, tmp_path):
    """Files of runs hold null for what was not finite."""
    nothing = {**line(CTC, 1, 0.1), "test": {**line(CTC, 1, 0.1)["test"], "wer": None, "nats_per_label": None}}
    rows = made(tables, tmp_path / "a.jsonl", [line(None, 1, 0.08), nothing]).splitlines()
    assert rows[3].startswith("| CTC-guided, per batch | 14 | 1 | no figure | no figure | ")


def test_committed_runs_are_in_the_document(tables):
    text = (ROOT / "docs" / "sampled_softmax.md").read_text(encoding="utf-8")
    for path in (ROOT / "docs" / "results" / "sampled").glob("*.jsonl"):
        assert tables.table(path) in text, f"python scripts/fill_docs.py has to be run for {path.name}"
