"""Fill a part of a document: what stands between <!-- OPENING --> and <!-- /CLOSING -->."""

from __future__ import annotations

import re
from pathlib import Path


def fill(path: Path, opening: str, closing: str, content: str) -> None:
    text, pattern = path.read_text(), re.compile(rf"(<!-- {opening} -->\n).*?(<!-- /{closing} -->)", re.DOTALL)
    filled, count = pattern.subn(lambda match: f"{match[1]}{content}\n{match[2]}", text)
    if count != 1:
        raise SystemExit(f"{path} has {count} places <!-- {opening} --> ... <!-- /{closing} -->; it must have one")
    path.write_text(filled)
