"""The types of arguments that are names have the names that there are."""

from typing import get_args

from samplewise import choices, topology
from samplewise.checks import ACTIVATION_NAMES
from samplewise.planning.methods import NAMES


def test_names():
    assert get_args(choices.Activation) == ACTIVATION_NAMES
    assert set(get_args(choices.Method)) == set(NAMES)
    assert get_args(choices.TopologyName) == tuple(topology.BUILDERS)
