"""The table of costs, counted by hand for one batch; what "guided" is said to cost is what its passes do."""

import pytest

from samplewise.planning.costs import FUNCTIONS, Amounts, function_costs
from samplewise.planning.methods import METHODS

#                 N     P           V          D      R        G         F         r            S
AMOUNTS = Amounts(1000, padded=1500, classes=100, dim=20, tile=64, group=400, alive=128, share=0.25, guide=5)
TIMES = {  # in the order of FUNCTIONS
    "batched": [30_000, 3_000_000, 150_000, 1000, 1, 150_000, 3_000_000, 3_000_000, 60_000],
    "samplewise": [20_000, 2_000_000, 100_000, 1000, 1, 100_000, 2_000_000, 2_000_000, 40_000],
    "tiled": [25_000, 2_500_000, 100_000, 1000, 1, 25_000, 500_000, 500_000, 10_000],
    # Joint encodings of all nodes for the bounds, and of a quarter twice; scores of 5 classes everywhere, and of 100 on these.
    "guided": [30_000, 1_100_000, 30_000, 2000, 1, 25_000, 500_000, 500_000, 10_000],
}
SPACES = {
    "batched": [30_000, 150_000, 1500, 3000, 1, 0, 2000, 30_000, 0],
    "samplewise": [2560, 12_800, 400, 800, 1, 0, 2000, 2560, 0],
    "tiled": [2560, 12_800, 400, 800, 1, 0, 2000, 1280, 0],
    "guided": [2560, 12_800, 400, 1600, 1, 0, 2000, 1280, 0],
}


@pytest.mark.parametrize("method", TIMES)
def test_every_function(method):
    found = function_costs(METHODS[method].times, METHODS[method].spaces, AMOUNTS)
    assert [(cost.name, cost.symbol) for cost in found] == list(FUNCTIONS)
    assert [cost.time for cost in found] == TIMES[method]
    assert [cost.space for cost in found] == SPACES[method]


def test_a_trained_model_is_where_guided_is_cheaper():
    """Once few nodes carry the occupancy its time goes with these; "tiled" scores every node."""

    def products(method: str, share: float) -> int:
        costs = function_costs(
            METHODS[method].times, METHODS[method].spaces, Amounts(1000, 1000, 2048, 512, 64, 1000, 64, share, 5)
        )
        return sum(cost.time for cost in costs if "D V" in cost.time_formula or "D S" in cost.time_formula)

    one = 1000 * 512 * 2048
    assert products("tiled", 0.0) == one and products("guided", 0.0) == 1000 * 512 * 5
    assert products("tiled", 0.1) == pytest.approx(1.3 * one) and products("guided", 0.1) == pytest.approx(0.4 * one, rel=0.01)
