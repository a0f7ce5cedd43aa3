"""Errors under the names that a tool gives its arguments."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from samplewise.errors import TransducerError


@contextlib.contextmanager
def renamed(**names: str) -> Iterator[None]:
    """Errors from within speak of our arguments; outside they speak of the tool's, given by ours."""
    try:
        yield
    except TransducerError as error:
        pattern = rf"\b({'|'.join(map(re.escape, names))})\b"
        raise type(error)(re.sub(pattern, lambda match: names[match[1]], str(error))) from None
