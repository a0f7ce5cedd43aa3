"""Lattices of which each frame has an interval of nodes, against whole ones whose other nodes have probability 0."""

import math

import pytest
import torch

from samplewise.kernels import eager
from samplewise.kernels import numba as compiled
from samplewise.kernels.layout import START, STRIDE, packed_table

SHAPES = [((1,), (0,)), ((1, 9), (4, 0)), ((12, 5, 7), (6, 9, 3)), ((60, 2), (40, 1))]


def case(frames, labels, seed=0, dtype=torch.float64, scale=2.0):
    """Emissions of whole utterances, their table, and intervals around a random alignment."""
    g = torch.Generator().manual_seed(seed)
    table, nodes = packed_table(frames, labels, max(frames), max(labels) + 1, max(labels), torch.device("cpu"))
    blank, label = (-scale * torch.rand(nodes, generator=g, dtype=torch.float64) for _ in range(2))
    intervals = []
    for T, U in zip(frames, labels, strict=True):
        at = 0
        for t in range(T):
            reach = U if t == T - 1 else min(U, at + int(torch.randint(0, 4, (), generator=g)))
            wider = torch.randint(0, 3, (2,), generator=g).tolist()
            intervals.append((max(0, at - wider[0]), min(U + 1, reach + 1 + wider[1])))
            at = reach
    for b, U in enumerate(labels):
        start = int(table[b, START])
        label[start : start + frames[b] * (U + 1)].view(frames[b], U + 1)[:, U] = -math.inf
    return blank.to(dtype), label.to(dtype), table, intervals


def packed(table, intervals, gap=3):
    """rows (R, 3) of intervals that lie one after the other with gaps between utterances, and the place of each node that
    is in one (-1 otherwise)."""
    rows, places, at, r = [], torch.full((int((table[:, 3] * table[:, 1]).sum()),), -1), 1, 0
    for start, stride, _, frames, *_ in table.tolist():
        for t in range(frames):
            low, high = intervals[r]
            rows.append((at, low, high))
            node = start + t * stride
            places[node + low : node + high] = torch.arange(at, at + high - low)
            at, r = at + high - low, r + 1
        at += gap
    return torch.tensor(rows), places


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_against_a_whole_lattice_without_the_other_nodes(shape, seed, dtype):
    blank, label, table, intervals = case(*shape, seed, dtype)
    rows, places = packed(table, intervals)
    outside, size = places < 0, int(places.max()) + 5
    blank[outside], label[outside] = -math.inf, -math.inf
    ones = torch.ones(len(table), dtype=torch.float64)
    right, gammas = torch.empty_like(ones), [torch.empty_like(blank) for _ in range(2)]
    eager.lattice(blank, label, table, ones, right, *gammas)
    inside = ~outside
    mine = [torch.full((size,), math.nan, dtype=dtype) for _ in range(4)]
    mine[0][places[inside]], mine[1][places[inside]] = blank[inside], label[inside]
    losses = torch.empty_like(ones)
    compiled.interval_lattice(*mine[:2], table, rows, losses, *mine[2:])
    torch.testing.assert_close(losses, right, rtol=1e-13, atol=1e-13)
    for got, gamma in zip(mine[2:], gammas, strict=True):
        torch.testing.assert_close(
            got[places[inside]], gamma[inside], rtol=1e-6 if dtype == torch.float32 else 1e-11, atol=1e-30
        )
        assert got[0].isnan() and got[-1].isnan()  # nothing is written beside the intervals
    alone = torch.empty_like(ones)
    compiled.interval_lattice(*mine[:2], table, rows, alone, None, None)
    assert torch.equal(alone, losses)


def test_whole_intervals_are_the_lattice(kernels):
    blank, label, table, _ = case((17, 8), (5, 11))
    widths = table[:, STRIDE].repeat_interleave(table[:, 3])
    rows = torch.stack((widths.cumsum(0) - widths, torch.zeros_like(widths), widths), 1)
    losses, right = torch.empty(2, dtype=torch.float64), torch.empty(2, dtype=torch.float64)
    compiled.interval_lattice(blank, label, table, rows, losses, None, None)
    kernels.lattice(blank, label, table, torch.ones(2, dtype=torch.float64), right, None, None)
    torch.testing.assert_close(losses, right, rtol=1e-12, atol=0)


@pytest.mark.parametrize("broken", [[(0, 1), (2, 3)], [(0, 1), (1, 1)], [(1, 3), (1, 3)], [(0, 2), (0, 2)]])
def test_without_a_path_there_is_no_occupancy(broken):
    """Intervals that no path goes through from end to end: a gap, none at all, no start, no end."""
    _, _, table, _ = case((2,), (2,))
    rows, _ = packed(table, broken)
    emissions = torch.zeros(2, 12, dtype=torch.float64)
    losses, gammas = torch.empty(1, dtype=torch.float64), torch.full((2, 12), math.nan, dtype=torch.float64)
    compiled.interval_lattice(*emissions, table, rows, losses, *gammas)
    assert math.isinf(losses)
    for first, low, high in rows.tolist():
        assert (gammas[:, first : first + high - low] == 0).all()


def test_a_loss_of_hundreds_of_nats_is_right_and_a_larger_one_is_none():
    for each, finite in ((-4.0, True), (-5.0, True), (-6.0, False)):
        blank, label, table, _ = case((101,), (10,))
        blank, label = torch.full_like(blank, each), torch.full_like(label, each)
        rows, places = packed(table, [(0, 11)] * 101)
        emissions = torch.zeros(2, int(places.max()) + 1, dtype=torch.float64)
        emissions[:, places] = torch.stack((blank, label))
        losses = torch.empty(1, dtype=torch.float64)
        compiled.interval_lattice(*emissions, table, rows, losses, None, None)
        right = -each * 111 - math.lgamma(111) + math.lgamma(11) + math.lgamma(101)
        assert float(losses) == pytest.approx(right, rel=1e-12) if finite else math.isinf(losses)
