"""When "guided" stops growing its exact nodes, and when it gives up and makes every node exact: number by number."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch

from samplewise.ops import guided
from samplewise.ops.tiles import Tile
from samplewise.planning.planner import CERTAIN_WORK, LATTICE_WORK, NODE_WORK, SMALL_WORK, WIDE
from tests.ops.test_bounds import call_of
from tests.problems import make, ours, planted

NODES, FRAMES = 1000, 100


@dataclass
class Band:
    """A group of one utterance: so many nodes are missing in each round, and so much occupancy is outside the exact ones."""

    missed: list[int]
    occupancy: list[float]
    work: int = 20_000
    problem: SimpleNamespace = None
    group: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(nodes=NODES, first=0, stop=1))
    exact_nodes: int = 0
    rounds: int = -1

    def __post_init__(self):
        self.problem = SimpleNamespace(
            weight=torch.empty(self.work, 1), lengths=([FRAMES], [NODES // FRAMES - 1]), lattice=SimpleNamespace(work=1)
        )

    def lattices(self, losses):
        self.rounds += 1
        yield 0, []

    def outside(self, i, views, losses):
        return torch.tensor([self.occupancy[self.rounds - 1]])

    def note(self, i, views):
        pass

    def missing(self, i, views, losses, share):
        self.share = share
        return torch.empty(self.missed[min(self.rounds, len(self.missed) - 1)])

    def make_exact(self, i, nodes):
        self.exact_nodes += nodes.numel()


def settle(band: Band, limit=1e-6, most=NODES, loss=1.0):
    return guided.settle(band, torch.tensor([loss]), limit, most)


def test_it_stops_where_the_occupancy_outside_is_within_the_limit():
    assert settle(Band([100, 10], [1e-6]), limit=torch.tensor(1e-6).item())[0] == 1
    assert settle(Band([100, 10], [1.01e-6, 0.9e-6])) == (2, pytest.approx(0.9e-6))
    assert settle(Band([100, 1], [1.01e-6] * guided.MOST_ROUNDS)) is None


def test_what_a_selection_leaves_out_is_within_the_limit():
    """An utterance's occupancies sum to T + U: a share of 1 / (T + U) of the limit is at most the limit."""
    band = Band([100, 10], [0.0])
    settle(band)
    assert 0 < band.share * (FRAMES + NODES // FRAMES - 1) <= 1e-6


def largest(rounds: int, work: int) -> int:
    """The most exact nodes whose work, with that of the lattices, is no more than a share of that of every node."""
    node = work + NODE_WORK
    return int((WIDE * NODES * node - rounds * NODES * LATTICE_WORK) / node + 1e-9)


@pytest.mark.parametrize("work", [2000, 20_000, 1_000_000])
@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_it_gives_up_where_every_node_is_no_more_work(work, rounds):
    assert 0.5 < WIDE < 1 and 500 < LATTICE_WORK < 10_000 and 500 < NODE_WORK < 10_000, "measured on a CPU"
    most, few = largest(rounds, work), 10
    assert rounds * few < most, "this case tests nothing"
    missed = [few] * rounds + [most - rounds * few, 0]
    occupancy = [1.0] * rounds + [0.0]
    assert settle(Band(missed, occupancy, work)) == (rounds + 1, 0.0)
    missed[rounds] += 1
    assert settle(Band(missed, occupancy, work)) is None


def test_it_gives_up_where_there_is_no_room():
    assert settle(Band([100, 0], [0.0]), most=100) is not None
    assert settle(Band([101, 0], [0.0]), most=100) is None
    assert settle(Band([60, 41], [1.0, 0.0]), most=100) is None


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_is_for_exact_emissions(loss):
    assert settle(Band([0, 0], [0.0]), loss=loss) is None


@pytest.mark.parametrize("amount", [0.0, 3.0])
def test_what_a_call_may_leave_out(monkeypatch, amount):
    """A quarter of the tolerance outside the exact nodes, half of it by the gradients; label arcs count 1 + lambda times."""
    seen = {}
    settle, gradient = guided.settle, guided.gradient

    def spy_settle(band, losses, limit, most):
        seen["limit"] = limit
        return settle(band, losses, limit, most)

    def spy_gradient(band, weights, losses, gradients, tolerance):
        seen["tolerance"] = tolerance
        return gradient(band, weights, losses, gradients, tolerance)

    monkeypatch.setattr(guided, "settle", spy_settle)
    monkeypatch.setattr(guided, "gradient", spy_gradient)
    monkeypatch.setattr(guided, "WIDE", 1e9)
    monkeypatch.setattr(guided, "knows_nothing", lambda *arguments: False)
    ours(planted((200, 180), (30, 25), 600, 32, sharpness=12.0), method="guided", tolerance=1e-3, fastemit_lambda=amount)
    assert seen == {"limit": pytest.approx(1e-3 / 4 / (1 + amount)), "tolerance": pytest.approx(1e-3 / 2)}


def sure(likeliest: float, layer: int) -> bool:
    """Whether bounds are in vain where the likeliest class has this probability at every node."""
    problem = make((40,), (9,), vocab=layer // 20, dim=20)
    others = (1 - likeliest) / (layer // 20 - 1)
    bias = torch.full((layer // 20,), others).log()
    bias[0] = torch.tensor(likeliest).log()
    call = call_of(problem.replace(weight=torch.zeros(layer // 20, 20), bias=bias), "tanh")
    return guided.knows_nothing(call, call.group(0, 1), Tile.of(call, 50, gradient=False))


@pytest.mark.parametrize("layer, least", [
    (SMALL_WORK - 20, guided.SURE), (SMALL_WORK, guided.LIKELY), (CERTAIN_WORK - 20, guided.LIKELY), (CERTAIN_WORK, 0.0),
])  # fmt: skip
def test_how_sure_a_model_must_be(layer, least):
    """The smaller its output layer, for the less there is to save; of a large one nothing is asked."""
    assert 0.2 < guided.LIKELY < guided.SURE < 0.95
    assert sure(least - 0.05, layer) if least else not sure(0.01, layer)
    assert not sure(least + 0.05, layer)
