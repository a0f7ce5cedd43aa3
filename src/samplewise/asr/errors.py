"""The errors that are shown without a traceback."""

from __future__ import annotations


class UserError(Exception):
    """A command, a recipe or a data set that cannot be used; the message says what to do. Shown without traceback."""


class WriteError(UserError):
    """A file cannot be written: which, why, what it lacks, and how to go on."""
