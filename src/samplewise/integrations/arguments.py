"""The arguments of other libraries' losses: their names in errors, and their reductions."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from samplewise.errors import TransducerError

REDUCTIONS = ("none", "mean", "sum")  # what nearly all of them have; "mean" is over utterances


@contextlib.contextmanager
def called(**theirs: str) -> Iterator[None]:
    """Errors of the core that are raised in here name its arguments as the caller does: `called(targets="labels")`."""
    try:
        yield
    except TransducerError as error:
        words = {re.sub("_is$", " is", ours): name for ours, name in theirs.items()}  # blank_is: where it is an argument
        pattern = "|".join(map(re.escape, words))
        raise type(error)(re.sub(rf"\b({pattern})\b", lambda found: words[found[1]], str(error))) from None
