"""`locate` and `select` of every backend: where a node lies, and which nodes carry the occupancy."""

import sys

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from samplewise.kernels import eager
from samplewise.kernels.layout import packed_table

CPU = torch.device("cpu")
FINITE = torch.zeros(3, dtype=torch.float64)


@pytest.mark.parametrize("integers", [1, 17, 600])
def test_locate(kernels, integers):
    """Rows and labels of some nodes, against loops over utterances, frames and labels."""
    frames, labels, T, rows, U = (5, 40, 1, 9), (3, 7, 2, 0), 41, 9, 8
    table, nodes = packed_table(frames, labels, T, rows, U, CPU)
    targets = torch.randint(1, 100, (4, U))
    right = [
        (b * T + t, b * rows + u, int(targets[b, u]) if u < labels[b] else -1)
        for b in range(4)
        for t in range(frames[b])
        for u in range(labels[b] + 1)
    ]
    assert len(right) == nodes
    node = torch.randperm(nodes)[:integers].sort().values
    out = torch.full((3, len(node)), -7)
    kernels.locate(node, table, targets.flatten(), *out)
    assert out.T.tolist() == [list(right[n]) for n in node.tolist()]


def test_locate_without_labels(kernels):
    table, nodes = packed_table((2, 3), (0, 0), 3, 1, 0, CPU)
    out = torch.full((3, nodes), -7)
    kernels.locate(torch.arange(nodes), table, torch.zeros(0, dtype=torch.int64), *out)
    assert out.tolist() == [[0, 1, 3, 4, 5], [0, 0, 1, 1, 1], [-1] * 5]


def test_locate_past_two_to_the_31(kernels):
    """Indices are 64 bits wide: a node beyond 2^31 of an utterance that begins beyond it, and rows that lie there too."""
    far = 2**33
    table = torch.tensor([[0, 3, 2, far // 3, 0, 0, 0], [far, 4, 3, 10, far, far + 5, 2]])
    out = torch.full((3, 2), -7)
    kernels.locate(torch.tensor([far - 3, far + 9]), table, torch.arange(10, 16), *out)
    assert out[:, 1].tolist() == [far + 2, far + 5 + 1, 13]
    assert out[0, 0] == (far - 3) // 3 and out[1, 0] == (far - 3) % 3


def table_of(*sizes):
    """Utterances of so many nodes."""
    return packed_table(sizes, [0] * len(sizes), max(sizes), 1, 0, CPU)[0]


def smallest_set(occupancy, tolerance):
    """The largest numbers first, until what is left out is within the tolerance."""
    total, left_out, stays = occupancy.sum().item(), 0.0, []
    ascending, order = occupancy.sort(stable=True)
    for value, index in zip(ascending.tolist(), order.tolist(), strict=True):
        left_out += value
        if left_out > tolerance * total:
            stays.append(index)
    return sorted(stays)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.integers(-40, 0), min_size=1, max_size=60),
    st.sampled_from([1e-12, 1e-7, 1e-3, 0.1, 0.5, 0.99]),
    st.sampled_from([torch.float32, torch.float64]),
    st.sampled_from([1.0, -1.0, 1e-20, 1e10]),
)
def test_select_is_the_smallest_set(kernels, exponents, tolerance, dtype, weight):
    """Occupancies of all magnitudes and no ties: the smallest set that carries all but the tolerance, whatever the weight."""
    gamma = torch.exp2(torch.tensor(exponents, dtype=torch.float64)) * (1 + torch.arange(len(exponents)) / 1000)
    gamma = gamma.to(dtype).double()
    scaled = (gamma * weight).to(dtype)
    if (scaled.double() / weight - gamma).abs().max() > 0 or (scaled == 0).any():
        scaled = gamma.to(dtype)
    blank, label = scaled / 2, scaled - scaled / 2
    kept = kernels.select(blank, label, table_of(len(exponents)), FINITE[:1], tolerance)
    right = smallest_set((blank + label).abs().double(), tolerance)
    # at the very edge, sums in another order may decide otherwise by one node
    assert set(kept.tolist()) == set(right) or (
        abs(len(kept) - len(right)) <= 1 and at_the_edge(blank + label, kept, tolerance)
    )


def at_the_edge(gamma, kept, tolerance):
    occupancy = gamma.abs().double()
    left_out = (occupancy.sum() - occupancy[kept].sum()).item()
    return left_out <= tolerance * occupancy.sum().item() * (1 + 1e-6) + 1e-12 * occupancy.sum().item()


def test_select_utterance_by_utterance(kernels):
    """Each has its own share, in its own scale; nodes come in ascending order."""
    gamma = torch.cat((torch.tensor([0.5, 0.3, 0.2]) * 1e-9, torch.tensor([8.0, 1.0, 1.0, 90.0]), torch.tensor([-0.2, -0.8])))
    kept = kernels.select(gamma.double(), torch.zeros(9, dtype=torch.float64), table_of(3, 4, 2), FINITE, 0.25)
    assert kept.dtype == torch.int64 and kept.tolist() == [0, 1, 6, 8]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_select_nothing_and_everything(kernels, dtype):
    gamma = torch.tensor([0.0, 0.0, 1.0, 0.0, 3.0, 0.0, 0.0, 0.0], dtype=dtype)
    zero, table = torch.zeros_like(gamma), table_of(3, 3, 2)
    assert kernels.select(gamma, zero, table, FINITE, 0.0).tolist() == list(range(8))  # tolerance 0: all of them
    assert kernels.select(gamma, zero, table, FINITE, 1e-9).tolist() == [2, 4]  # no occupancy is never worth a visit
    losses = torch.tensor([0.0, float("inf"), float("nan")], dtype=torch.float64)
    assert kernels.select(gamma, zero, table, losses, 0.0).tolist() == [0, 1, 2]
    assert kernels.select(gamma, zero, table, losses, 0.1).tolist() == [2]
    assert kernels.select(zero, zero, table, FINITE, 0.5).tolist() == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_select_ties(kernels, dtype):
    """Of equal occupancies all may stay; never so few that the tolerance is exceeded."""
    gamma = torch.full((100,), 0.01, dtype=dtype)
    kept = kernels.select(gamma, torch.zeros_like(gamma), table_of(100), FINITE[:1], 0.3)
    assert 70 <= len(kept) <= 100


def test_select_counts_in_float64(kernels):
    """An allowance between a float64 occupancy and its float32 rounding: the others stay, not nothing."""
    x = torch.tensor(0.1, dtype=torch.float64)
    while x.float().double() <= x:
        x = x + 1e-10
    gamma = torch.stack((x, torch.tensor(1.0, dtype=torch.float64), torch.tensor(2.0, dtype=torch.float64)))
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        allowed = x + (x.float().double() - x) * share
        kept = kernels.select(gamma, torch.zeros_like(gamma), table_of(3), FINITE[:1], (allowed / gamma.sum()).item())
        assert {1, 2} <= set(kept.tolist())


def test_select_leaves_out_as_much_as_it_may(kernels):
    """An eighth of the occupancy is exactly that of the first node; the next one is hardly more."""
    gamma = torch.tensor([1.0, 1.0 + 1 / 256, 6.0 - 1 / 256])
    kept = kernels.select(gamma, torch.zeros(3), table_of(3), FINITE[:1], 0.125)
    assert kept.tolist() == [1, 2]


def test_select_adds_up_many_small_occupancies(kernels):
    """Half of 50000 of them are a quarter of all that there is; a float32 sum would lose count."""
    gamma = 1e-5 + torch.rand(50_001) * 1e-7
    gamma[777] = gamma.sum()
    left = gamma.double().sort().values.cumsum(0)
    right = int((left > 0.25 * left[-1]).sum())
    found = kernels.select(gamma, torch.zeros_like(gamma), table_of(50_001), FINITE[:1], 0.25)
    assert 777 in found and abs(len(found) - right) <= 2


def test_select_on_several_threads(kernels):
    torch.set_num_threads(3)
    gamma = torch.rand(900, dtype=torch.float64) ** 30
    table = table_of(*[30] * 30)
    kept = kernels.select(gamma, torch.zeros_like(gamma), table, torch.zeros(30, dtype=torch.float64), 0.01)
    right = [30 * b + i for b in range(30) for i in smallest_set(gamma[30 * b : 30 * b + 30], 0.01)]
    assert kept.tolist() == right


def test_eager_selects_in_pieces(monkeypatch):
    """As many utterances at a time as memory allows; the same nodes in any case."""
    gamma, sizes = torch.rand(200, dtype=torch.float64) ** 20, (50, 3, 60, 1, 86)
    losses = torch.tensor([1.0, 2.0, float("nan"), 3.0, 4.0], dtype=torch.float64)
    module = sys.modules["samplewise.kernels.eager.occupancy"]
    for tolerance in (0.0, 0.01):
        found = []
        for at_once in (1 << 20, 120, 1):
            monkeypatch.setattr(module, "AT_ONCE", at_once)
            found.append(eager.select(gamma, torch.zeros_like(gamma), table_of(*sizes), losses, tolerance).tolist())
        assert found[0] == found[1] == found[2] and 0 < len(found[0]) < 200
    assert [len(list(module.alike([1] * 10))), len(list(module.alike([3])))] == [10, 1]
