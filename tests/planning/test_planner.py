"""The planner's numbers, one by one: what a lattice keeps, where groups end, and from which sizes on bounds are worth while."""

from dataclasses import replace

import pytest

from samplewise.planning import planner
from samplewise.planning.budget import gpu
from samplewise.planning.methods import schedule_of
from samplewise.planning.planner import (
    PIECE,
    TINY,
    TINY_LAYER,
    Sizes,
    alpha_bytes,
    bounds_bytes,
    choose,
    cut,
    exact_node_bytes,
    guide_pays,
    held_bytes,
    kept_bytes,
    lattice_bytes,
    node_bytes,
    piece_frames,
    row_bytes,
    schedule_tiled,
)

SIZES = Sizes([300] * 40, [60] * 40, 1000, 256, 4, 4, gradient=True, threads=2)


def test_what_the_lattice_keeps_is_what_its_kernel_allocates():
    lattice = pytest.importorskip("samplewise.kernels.numba.lattice")
    for frames in (1, 15, 16, 17, 100, 1000, 5000):
        for labels in (0, 1, 14, 15, 16, 40, 300):
            allocated = 8 * lattice._kept(labels, frames)
            assert allocated <= alpha_bytes(frames, labels) <= 1.3 * allocated + 4096, (frames, labels)


def test_lattices_of_as_many_utterances_as_run_at_once():
    one = alpha_bytes(300, 60)
    kept = [lattice_bytes(SIZES, together, 1 << 62) for together in (1, 2, 3, 4, 40)]
    assert [(bytes - kept[0]) / one for bytes in kept] == [0, 1, 2, 2, 2]  # fewer than two a thread run side by side
    kept = [lattice_bytes(replace(SIZES, threads=4), together, 1 << 62) for together in (1, 7, 40)]
    assert [(bytes - kept[0]) / one for bytes in kept] == [0, 6, 6]


def test_a_group_may_fill_its_room_to_the_last_byte():
    assert cut([6, 6, 1], 12) == [(0, 2), (2, 3)]
    assert cut([6, 7, 6], 12) == [(0, 1), (1, 2), (2, 3)]
    assert cut([12, 12], 12) == [(0, 1), (1, 2)]
    assert cut([4, 4, 4, 4], 12) == [(0, 3), (3, 4)]


@pytest.mark.parametrize(("nodes", "dim", "classes", "pays"), [
    (TINY // 2000, 40, 50, True), (TINY // 2000 - 1, 40, 50, False),  # the call: 20 million multiply-adds
    (TINY, 20, TINY_LAYER // 20, True), (TINY, 1, TINY_LAYER - 1, False),  # a node: 2000 of them
])  # fmt: skip
def test_from_where_on_bounds_are_made(nodes, dim, classes, pays):
    """As measured on a CPU; docs/performance.md has the table. On a GPU nothing is measured, and so none are."""
    assert 10_000_000 < TINY < 100_000_000 and 1000 < TINY_LAYER < 4000
    sizes = Sizes([nodes], [0], classes, dim, 4, 4, gradient=True)
    assert guide_pays(sizes) == pays
    assert choose(sizes, None, 64 << 20).method == ("guided" if pays else "tiled")
    assert choose(replace(sizes, device=gpu(50 << 20)), None, 64 << 20).method == "tiled"


def test_too_little_memory_for_bounds_is_no_error():
    with pytest.raises(planner.TransducerError, match="needs at least") as error:
        schedule_tiled(SIZES, 1, 1, "tiled")
    least = int(str(error.value).split("needs at least ")[1].split()[0])
    assert choose(SIZES, least, 64 << 20).method == "tiled"
    with pytest.raises(planner.TransducerError, match='method "tiled" needs at least'):
        choose(SIZES, least - 1, 64 << 20)


def test_bytes_of_a_row_and_of_a_node():
    """z, h and dz of 256, 1000 and 256 floats; a node's denominator in float64, two emissions, a place in the list."""
    alone = replace(SIZES, gradient=False)
    assert row_bytes(SIZES) == 4 * (256 + 1000 + 256) + 32 and row_bytes(alone) == 4 * (256 + 1000) + 32
    assert node_bytes(SIZES, "tiled") == 8 + 4 + 4 + 8 and node_bytes(alone, "tiled") == 8 + 4 + 4
    assert node_bytes(SIZES, "guided") == 4 * 5 + 1 + 40 // 10  # two bounds, two occupancies, their sum, a mark; exact nodes
    assert node_bytes(replace(SIZES, device=gpu(0)), "tiled") == 32
    assert kept_bytes(SIZES) == 4 * (256 + 1000) + 16


def test_pieces_of_a_long_utterance():
    """All of it where it fits; else as many frames as hold PIECE nodes, or as there are pieces, if that is more."""
    assert piece_frames(1000, 99, 100_000) == 1000
    assert piece_frames(5000, 99, 100_000) == PIECE // 100
    assert piece_frames(10**8, 99, 100_000) == 10_000
    assert piece_frames(5, PIECE * 2, 1) == 2
    sizes = replace(SIZES, frames=[5000], labels=[99])
    rows = PIECE // 100
    assert held_bytes(sizes, 24, 1 << 62) == [24 * 5000 * 100]
    assert held_bytes(sizes, 24, PIECE) == [24 * rows * 100 + 8 * 100 * (-(-5000 // rows) + 2)]


def test_what_is_left_of_the_budget_keeps_rows_for_the_gradient():
    """Everything or nothing for "tiled", where there are classes enough for it to be worth while."""
    sizes = replace(SIZES, frames=[100] * 4, labels=[20] * 4)
    assert schedule_tiled(sizes, 1 << 30, 1 << 26).kept_rows == sum(sizes.nodes)
    assert schedule_tiled(replace(sizes, classes=511), 1 << 30, 1 << 26).kept_rows == 0
    assert schedule_tiled(replace(sizes, classes=512), 1 << 30, 1 << 26).kept_rows == sum(sizes.nodes)
    assert schedule_tiled(replace(sizes, gradient=False), 1 << 30, 1 << 26).kept_rows == 0
    assert schedule_tiled(sizes, 24 << 20, 1 << 26).kept_rows < sum(sizes.nodes)


@pytest.mark.parametrize("method", ["tiled", "guided", "samplewise", "batched"])
@pytest.mark.parametrize("gradient", [True, False])
@pytest.mark.parametrize("low", [True, False])
def test_the_workspace_holds_what_the_schedule_says(method, gradient, low):
    """A tile, the floats of the largest group and the rows that are kept: none of them is forgotten in the sum."""
    sizes = replace(SIZES, gradient=gradient, compute_bytes=2 if low else 4)
    found = schedule_of(method, sizes, None, 64 << 20, 300, 61)
    parts = row_bytes(sizes) * found.tile_rows + kept_bytes(sizes) * found.kept_rows
    parts += node_bytes(sizes, method) * max(found.group_nodes)
    if method == "guided":
        parts += bounds_bytes(sizes) + exact_node_bytes(sizes) * (found.exact_nodes - max(found.group_nodes) // 10)
    if method == "batched":
        parts += 2 * 256 * 4 * max(found.group_nodes)  # joint encodings and their gradients
    if low:
        parts += 1000 * 256 * (2 + 2 * 4)  # the weight again, and sums of its gradient
    parts += lattice_bytes(sizes, 1, found.whole)
    assert parts <= found.workspace <= parts + (6 << 20)
