"""Bars are for terminals only, and change nothing."""

from __future__ import annotations

import io

from samplewise.asr.progress import bar, reading


def test_items_pass_through_and_nothing_is_printed_without_a_terminal(capfd):
    assert list(bar([1, 2, 3], "counting")) == [1, 2, 3]
    with reading(io.BytesIO(b"abc"), 3, "reading") as file:
        assert file.read() == b"abc"
    output, errors = capfd.readouterr()
    assert output == "" and "counting" not in errors and "reading" not in errors
