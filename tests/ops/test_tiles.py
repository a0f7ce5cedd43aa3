"""Passes over tiles: what is kept of the emission pass is what the gradient pass would make again, however much of it fits."""

import pytest
import torch

from samplewise.ops.lattices import Occupancy
from samplewise.ops.problem import BIAS, ENCODER, PREDICTOR, WEIGHT, Gradients
from samplewise.ops.tiles import Kept, Tile, add_product, emission_pass, gradient_pass, no_emissions
from tests.ops.test_bounds import call_of
from tests.problems import make

ROWS = 8


def passes(capacity, chosen=None, packed=False):
    """Gradients of both passes with room for so many rows between them (None: nothing is kept), and what was kept."""
    problem = make((7, 4, 1), (3, 0, 2), vocab=11, dim=6, dtype=torch.float64)
    call = call_of(problem, "tanh")
    group, tile = call.group(0, 3), Tile.of(call, ROWS, gradient=True)
    kept = None if capacity is None else Kept(call, capacity)
    every = torch.arange(group.nodes)
    nodes = every if chosen is None else every[chosen].contiguous()
    out = no_emissions(nodes.numel() if packed else group.nodes, call)
    emission_pass(call, group, nodes if packed else None, tile, out, kept, packed=packed)
    gamma = torch.rand(2, group.nodes, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    gradients = Gradients.of(
        problem.encoder_out, problem.predictor_out, problem.weight, torch.float64, ENCODER | PREDICTOR | WEIGHT | BIAS
    )
    by_arc = gamma[:, nodes] if packed else gamma
    gradient_pass(call, group, nodes, tile, Occupancy(out.denominators, by_arc), gradients, kept, packed=packed)
    return gradients, kept, group.nodes


def assert_same(found, right):
    for name in ("encoder", "predictor", "weight", "bias"):
        torch.testing.assert_close(getattr(found, name), getattr(right, name), rtol=1e-12, atol=1e-12, msg=name)


@pytest.mark.parametrize("chosen", [None, slice(1, None, 3), slice(20, 30)])
@pytest.mark.parametrize("capacity", [0, 7, 8, 9, 16, 34, 35, 100])
def test_what_fits_is_kept_and_the_rest_made_again(capacity, chosen):
    right, _, nodes = passes(None, chosen)
    found, kept, _ = passes(capacity, chosen)
    assert nodes == 35 and kept.held <= min(capacity, nodes)
    assert kept.whole == (kept.held == nodes) == (capacity >= nodes)
    assert_same(found, right)


@pytest.mark.parametrize("capacity", [0, 5, 9, 100])
def test_kept_rows_of_some_nodes(capacity):
    """The nodes of a list are never all that there are, even where all of them are kept."""
    right, _, _ = passes(None, slice(1, None, 3), packed=True)
    found, kept, _ = passes(capacity, slice(1, None, 3), packed=True)
    assert not kept.whole
    assert_same(found, right)
    assert_same(found, passes(None, slice(1, None, 3))[0])


def test_a_sum_of_float16_is_made_in_float32():
    """Products of a tile may be beyond the largest float16 number, 65504, and are rounded to 11 bits there."""
    h, z = torch.full((512, 2), 16.0, dtype=torch.float16), torch.full((512, 3), 9.0, dtype=torch.float16)
    total = torch.ones(2, 3)
    add_product(total, h, z)
    assert torch.equal(total, torch.full((2, 3), 1.0 + 512 * 16 * 9))
