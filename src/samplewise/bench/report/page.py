"""One HTML page with all tables and plots inside it."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence
from pathlib import Path

from samplewise.asr.writing import write_text

STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
th, td { padding: .25rem .75rem; border-bottom: 1px solid #8884; text-align: left; white-space: nowrap; }
td:not(:first-child) { font-variant-numeric: tabular-nums; }
img { max-width: 100%; background: white; }
"""


def write_page(path: Path, titles: Mapping[str, str], tables: Mapping[str, str], plots: Sequence[Path]) -> None:
    parts = [f"<h2>{html.escape(titles.get(name, name))}</h2>\n{table_html(table)}" for name, table in tables.items()]
    pictures = [
        f'<img alt="{plot.stem}" src="data:image/png;base64,{base64.b64encode(plot.read_bytes()).decode()}">' for plot in plots
    ]
    write_text(
        path,
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">\n'
        f"<title>samplewise bench</title><style>{STYLE}</style></head><body>\n<h1>samplewise bench</h1>\n"
        + "\n".join([*pictures, *parts])
        + "\n</body></html>\n",
    )


def table_html(table: str) -> str:
    """HTML of one of our own Markdown tables and the note below it."""
    rows, notes = [], []
    for number, line in enumerate(table.splitlines()):
        if line.startswith("| "):
            cell = "th" if number == 0 else "td"
            cells = (html.escape(text.strip()).replace("`", "") for text in line.strip("| ").split(" | "))
            rows.append("<tr>" + "".join(f"<{cell}>{text}</{cell}>" for text in cells) + "</tr>")
        elif line and not line.startswith("|-"):
            notes.append(f"<p>{html.escape(line)}</p>")
    return "<table>" + "".join(rows) + "</table>" + "".join(notes)
