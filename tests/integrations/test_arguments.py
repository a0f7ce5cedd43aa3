"""Errors under the names of the caller."""

from __future__ import annotations

import pytest

from samplewise import TransducerError
from samplewise.errors import BackwardError
from samplewise.integrations.arguments import called


def test_names_are_whole_words_and_are_replaced_at_once():
    with pytest.raises(TransducerError) as caught, called(targets="labels", labels="targets", blank_is="blank_index is"):
        raise TransducerError("targets[0, 1] is 3, target_targets 2 labels; blank is 3, that is the blank")
    assert str(caught.value) == "labels[0, 1] is 3, target_targets 2 targets; blank_index is 3, that is the blank"
    assert caught.value.__suppress_context__


def test_other_errors_pass():
    with pytest.raises(KeyError, match="targets"), called(targets="labels"):
        raise KeyError("targets")
    with pytest.raises(BackwardError, match="labels"), called(targets="labels"):
        raise BackwardError("targets")
    with called(targets="labels"):
        pass
