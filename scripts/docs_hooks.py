"""What `make docs` changes in the pages: links to files of the repository that are not pages become their names.

The pages are read in the repository, too, where such links work.
"""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"
LINK = re.compile(r"(?<!!)\[([^\]\[]+)\]\(([^)\s]+)\)")


def on_page_markdown(markdown: str, page, **_) -> str:
    """mkdocs calls it with the text of every page."""
    here = (DOCS / page.file.src_path).parent

    def rewrite(match: re.Match[str]) -> str:
        text, target = match[1], match[2].partition("#")[0]
        if not target or "://" in target:
            return match[0]
        path = (here / target).resolve()
        if not path.exists():
            return match[0]  # mkdocs warns of it
        inside = path.is_relative_to(DOCS) and path.is_file()
        return match[0] if inside else text

    return LINK.sub(rewrite, markdown)
