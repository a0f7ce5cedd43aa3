"""What a command needs beyond the library: all that is missing at once, and the one line that installs it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution, requires

NAME = "samplewise"


def advice(extras: Sequence[str], error: ImportError) -> str:
    """What to install, after an import failed."""
    lacking = ", ".join(missing(extras))
    return f"this command needs packages that are missing: pip install '{NAME}[{','.join(extras)}]' ({lacking or error})"


def missing(extras: Sequence[str]) -> list[str]:
    """The distributions of some extras, and of those that these name, which are not installed; none if ours is not either."""
    try:
        lines = [line.partition(";") for line in requires(NAME) or []]
    except PackageNotFoundError:
        return []
    found: dict[str, bool] = {}
    for requirement in (line for line, _, marker in lines if (extra := extra_of(marker)) and extra in extras):
        nested = re.match(rf"{NAME}\[([\w,-]+)\]", requirement)
        names = missing(nested[1].split(",")) if nested else [re.match(r"[\w.-]+", requirement)[0]]  # type: ignore[index]
        found |= {name: True for name in names if nested or not is_installed(name)}
    return list(found)


def extra_of(marker: str) -> str | None:
    match = re.search(r"extra == ['\"]([\w-]+)['\"]", marker)
    return match[1] if match else None


def is_installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True
