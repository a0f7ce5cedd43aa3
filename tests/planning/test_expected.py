"""What a schedule is expected to take holds what it surely touches, and little more."""

from dataclasses import replace

import pytest

import samplewise
from samplewise.planning.expected import expected_bytes
from samplewise.planning.planner import Sizes, bounds_bytes, exponential_bytes, schedule_tiled

LARGE = Sizes([300] * 8, [60] * 8, 2048, 512, 4, 4, gradient=True, threads=2)
SMALL = Sizes([300] * 8, [60] * 8, 30, 64, 4, 4, gradient=True, threads=2)
EVERY_SIZE = pytest.mark.parametrize("sizes", [LARGE, SMALL], ids=["large", "small"])


def surely(sizes: Sizes, schedule, share: float) -> int:
    """Bytes of what cannot be done without: floats of every node of a group, a tile or what is kept, the weight as matrix
    products pack it."""
    most = max(schedule.group_nodes)
    if schedule.method == "tiled":
        floats, rows = 16 * most, max(min(schedule.tile_rows, most), min(schedule.kept_rows, most))
    else:
        active = round(share * most)
        floats, rows = 21 * most + 24 * active, max(min(schedule.tile_rows, active), min(schedule.kept_rows, active))
    return floats + 4 * rows * (sizes.classes + sizes.dim) + 4 * sizes.classes * min(sizes.dim, 295)


@EVERY_SIZE
@pytest.mark.parametrize("share", [0.02, 0.1, 0.4])
@pytest.mark.parametrize("method", ["tiled", "guided"])
@pytest.mark.parametrize("budget", [24 << 20, 64 << 20, 512 << 20])
def test_it_is_what_is_touched_and_little_more(sizes, method, share, budget):
    schedule = schedule_tiled(sizes, budget, 1 << 26, method)
    found, least = expected_bytes(sizes, schedule, share), surely(sizes, schedule, share)
    assert 0.99 * least <= found <= schedule.workspace
    guide = bounds_bytes(sizes) if method == "guided" else 0
    assert found <= 1.5 * least + guide + (5 << 20), f"{found / least:.2f} times"


@pytest.mark.parametrize("method", ["tiled", "guided"])
def test_it_grows_with_the_share(method):
    schedule = schedule_tiled(LARGE, 512 << 20, 1 << 26, method)
    few, many = (expected_bytes(LARGE, schedule, share) for share in (0.02, 0.4))
    assert few < many if method == "guided" else few <= many


@pytest.mark.parametrize("method", ["tiled", "guided"])
def test_exponentials_are_part_of_it(method):
    sizes = replace(SMALL, exponentials=True, dim=512)
    both = (sizes, replace(sizes, exponentials=False))
    with_tables, without = (expected_bytes(s, schedule_tiled(s, 512 << 20, 1 << 26, method), 0.1) for s in both)
    assert with_tables - without >= exponential_bytes(sizes, 0, 8) > 0


def test_what_has_not_been_measured_is_the_bound():
    for changes in ({"method": "samplewise"}, {"method": "batched"}, {"frames": 4000, "labels": 900}):
        found = samplewise.plan(**{"batch": 2, "frames": 100, "labels": 20, "vocab": 64, "dim": 32, **changes})
        assert found.expected_workspace == found.workspace
