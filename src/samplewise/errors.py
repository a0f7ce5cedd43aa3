"""What bad input raises."""

from __future__ import annotations


class TransducerError(ValueError):
    """An argument cannot be used; the message names the argument, the utterance and the numbers that disagree."""


class BackwardError(TransducerError, RuntimeError):
    """A backward that the loss does not have. A RuntimeError, too, as PyTorch's own errors of that kind are."""
