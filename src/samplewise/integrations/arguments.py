"""The arguments of other libraries' losses: their names in errors, and their reductions."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Literal, cast, get_args

from torch import Tensor

from samplewise.checks import check_choice
from samplewise.errors import TransducerError

UsualReduction = Literal["none", "mean", "sum"]  # what nearly all of them have; "mean" is over utterances
REDUCTIONS: tuple[str, ...] = get_args(UsualReduction)


def usual_reduction(reduction: str) -> UsualReduction:
    """The reduction, if it is one that nearly all of them have; they have the same names here."""
    check_choice("reduction", reduction, REDUCTIONS)
    return cast(UsualReduction, reduction)


@contextlib.contextmanager
def called(**theirs: str) -> Iterator[None]:
    """Errors of the core that are raised in here name its arguments as the caller does: `called(targets="labels")`."""
    try:
        yield
    except TransducerError as error:
        words = {re.sub("_is$", " is", ours): name for ours, name in theirs.items()}  # blank_is: where it is an argument
        pattern = "|".join(map(re.escape, words))
        raise type(error)(re.sub(rf"\b({pattern})\b", lambda found: words[found[1]], str(error))) from None


def with_emitted_value(loss: Tensor, fastemit_lambda: float) -> Tensor:
    """The loss 1 + fastemit_lambda times as large, of which gradients know nothing: FastEmit as NeMo and its kin have it."""
    return loss + fastemit_lambda * loss.detach() if fastemit_lambda else loss
