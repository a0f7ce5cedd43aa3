"""The one error that bad input raises."""

from __future__ import annotations


class TransducerError(ValueError):
    """An argument cannot be used; the message names the argument, the utterance and the numbers that disagree."""
