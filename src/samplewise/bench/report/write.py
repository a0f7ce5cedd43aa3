"""Everything that a report consists of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from samplewise.asr.writing import make_directory, write_text
from samplewise.bench.errors import BenchError
from samplewise.bench.records import Row
from samplewise.bench.report.markers import insert
from samplewise.bench.report.page import write_page
from samplewise.bench.report.plots import all_plots
from samplewise.bench.report.results import Results
from samplewise.bench.report.tables import all_tables

TITLES = {
    "trained": "The joints of trained models", "trained-sampled": "The exact loss beside sampled classes",
    "summary": "In short", "targets": "What was wanted", "accuracy": "Errors against float64",
    "headline": "Batches from 1 to 1024", "libraries": "Every library on one batch",
    "active": "What our methods say of themselves", "machine": "Measured on",
    "peers": "Other libraries",
}  # fmt: skip


def write_report(rows: Iterable[Row], directory: Path, fill: Sequence[Path]) -> list[Path]:
    """tables.md, plots and index.html in `directory`; tables in the markers of the files to fill. Returns what was written."""
    results = Results(rows)
    if not results.rows:
        raise BenchError("there is no measurement in these files")
    make_directory(directory)
    made = all_tables(results)
    tables = {name: made[name] for name in (*TITLES, *results.cases) if name in made}
    plots = all_plots(results, directory)
    text = directory / "tables.md"
    sections = [f"## {TITLES.get(name, name)}\n\n{table}\n" for name, table in tables.items()]
    write_text(text, "# Measurements\n\nMade by `samplewise bench report`; not to be edited.\n\n" + "\n".join(sections))
    page = directory / "index.html"
    write_page(page, TITLES, tables, plots)
    for path in fill:
        missing = insert(path, tables)
        if missing:
            raise BenchError(f"{path}: no measurement for {', '.join(missing)}")
    return [text, page, *plots, *fill]
