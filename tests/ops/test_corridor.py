"""The corridor: the nodes that it holds, what left it, and that losses and gradients are those of all nodes."""

import contextlib
import math

import pytest
import torch

import samplewise
from samplewise.checks import ACTIVATIONS
from samplewise.kernels import eager
from samplewise.ops import corridor, guided
from samplewise.ops.bounds import Slack, Whole, bound
from samplewise.ops.tiles import Tile
from tests.judge import insisting, judge
from tests.ops.test_bounds import ROWS, call_of
from tests.problems import Problem, make, ours
from tests.structured import structured

NARROWEST = math.exp(-3)


def confident(frames=(420, 60), labels=(260, 20), vocab=40, seed=0, dtype=torch.float32, sure=9.0) -> Problem:
    """A model that knows at which frame each label begins, as all do in the end: feature u says whether label u + 1 is due, and
    is seen by predictor row u alone. Losses are small, here a few nats."""
    g, dim = torch.Generator().manual_seed(seed), max(labels)
    problem = make(frames, labels, vocab, dim, seed=seed, dtype=torch.float64)
    encoder_out, predictor_out = problem.encoder_out * 0.02, problem.predictor_out * 0.02 - 9.0
    weight = torch.zeros(vocab, dim, dtype=torch.float64)
    for b, (T, U) in enumerate(zip(frames, labels, strict=True)):
        begins = torch.randperm(T, generator=g)[:U].sort().values
        for u, at in enumerate(begins.tolist()):
            encoder_out[b, :, u] += (torch.arange(max(frames)) - at + 0.5).clamp(-3, 3)
            predictor_out[b, u, u] += 9.0
            weight[problem.targets[b, u], u] = sure
    bias = weight.sum(1) - sure  # of a class whose labels are due nowhere: - sure
    bias[0] = 0.0
    return problem.replace(encoder_out=encoder_out, predictor_out=predictor_out, weight=weight, bias=bias).to(dtype)


class Swept:
    """A sweep over a whole batch, and the bounds of all nodes with the same classes."""

    def __init__(self, problem, activation, level, relative=False, known=None):
        call = call_of(problem, activation)
        self.group, tile = call.group(0, problem.batch, True), Tile.of(call, ROWS, gradient=False)
        whole = Whole.of(call)
        slack = Slack.of(call, self.group, whole)
        sweeps = corridor.Sweeps(call, self.group, whole, slack, tile)
        self.upper = torch.full((2, self.group.nodes), torch.nan, dtype=call.real)
        bound(call, self.group, whole, slack, tile, (0, 1 << 62), self.group.table, sweeps.classes, *self.upper)
        sizes = self.group.table[:, 3] * self.group.table[:, 1]
        room = torch.stack((sizes.cumsum(0) - sizes, sizes.cumsum(0)), 1)
        self.out = torch.full_like(self.upper, torch.nan)
        none = torch.zeros(sum(sweeps.frames), 3, dtype=torch.int64), self.out[0, :0], self.out[1, :0]
        levels = torch.full((problem.batch,), level, dtype=torch.float64)
        floor = torch.zeros_like(levels) if relative else None
        self.found = sweeps.run(levels, floor, room, known or none, list(self.out))

    def losses(self):
        """Under bounds, of all paths."""
        found = torch.empty(len(self.group.table), dtype=torch.float64)
        eager.lattice(*self.upper, self.group.table, torch.ones_like(found), found, None, None)
        return found

    def by_hand(self, level, relative):
        """Intervals, and what has left them, node by node."""
        rows, left = [], []
        for start, stride, labels, frames, *_ in self.group.table.tolist():
            blank, label = (x[start : start + frames * stride].view(frames, stride).double().exp() for x in self.upper)
            down, low, high, lost = [1.0] + [0.0] * labels, 0, 1, 0.0
            for t in range(frames):
                least = level * max(down[low:high]) if relative else level
                while low < high and down[low] < least:
                    lost, low = lost + down[low], low + 1
                while high > low and down[high - 1] < least:
                    high -= 1
                    lost, down[high] = lost + down[high], 0.0
                along, u = 0.0, low
                while u <= labels and (u < high or along >= least):
                    x = down[u] + along
                    down[u], along, u = x * float(blank[t, u]), x * float(label[t, u]), u + 1
                lost += along if u <= labels else 0.0
                rows.append((low, u))
                high = u
            left.append(lost)
        return rows, left


@pytest.fixture
def everywhere(monkeypatch):
    monkeypatch.setattr(corridor, "CORRIDOR", 2.0)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("maker", [make, confident])
def test_intervals_and_what_left_them(maker, relative, activation, everywhere):
    """In float64, where no rounding decides whether a node stays."""
    problem = maker((70, 1, 43), (50, 1, 0), 30, dtype=torch.float64)
    level = NARROWEST if relative else 1e-3 * math.exp(-Swept(problem, activation, 0.0).losses().max())
    swept = Swept(problem, activation, level, relative)
    rows, left = swept.by_hand(level, relative)
    assert swept.found.rows[:, 1:].tolist() == [list(row) for row in rows]
    torch.testing.assert_close(swept.found.left, torch.tensor(left, dtype=torch.float64), rtol=1e-9, atol=1e-300)
    assert (maker, activation) != (confident, "tanh") or any(low > 0 or high < 51 for low, high in rows[:70]), (
        "nothing was left out"
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)  # each is compiled, half a minute
def test_bounds_are_those_of_the_kernel_bounds(dtype, everywhere):
    swept = Swept(confident((70, 30), (50, 20), 30, dtype=dtype), "tanh", 1e-9)
    places = torch.cat([torch.arange(first, stop) for first, stop in swept.found.places.tolist()])
    nodes = swept.found.nodes_of(places)
    assert torch.equal(swept.out[:, places], swept.upper[:, nodes])
    assert torch.equal(swept.found.places_of(nodes), places)
    others = torch.ones(swept.group.nodes, dtype=torch.bool)
    others[nodes] = False
    assert others.any() and (swept.found.places_of(others.nonzero()[:, 0]) == -1).all()
    beside = torch.ones(swept.group.nodes, dtype=torch.bool)
    beside[places] = False
    assert swept.out[:, beside].isnan().all()


@pytest.mark.parametrize("level", [1e-3, 1e-9, 1e-40])
def test_what_left_is_no_less_than_what_the_paths_outside_have(level, everywhere):
    for seed in range(20):
        problem, activation, _ = structured(70_000 + seed)
        swept = Swept(problem.to(torch.float64), activation, level)
        if swept.found is None:
            continue
        everything = swept.losses()
        places = torch.cat([torch.arange(first, stop) for first, stop in swept.found.places.tolist()])
        swept.upper.fill_(-torch.inf)
        swept.upper[:, swept.found.nodes_of(places)] = swept.out[:, places]
        outside = (-everything).exp() - (-swept.losses()).exp()
        assert (outside <= swept.found.left * (1 + 1e-9) + 1e-12 * (-everything).exp()).all()


@pytest.mark.parametrize("labels", [14, 15, 30, 31, 32, 47, 62, 63, 95])
@pytest.mark.parametrize("level", [0.0, 1e-12])
def test_where_the_last_label_ends_a_panel(labels, level, everywhere):
    """Nothing is read or written beyond it."""
    swept = Swept(confident((40, 9), (labels, 3), 30, dtype=torch.float64), "tanh", level)
    rows, left = swept.by_hand(level, False)
    assert swept.found.rows[:, 1:].tolist() == [list(row) for row in rows]
    torch.testing.assert_close(swept.found.left, torch.tensor(left, dtype=torch.float64), rtol=1e-9, atol=1e-300)


def test_parts_of_a_sweep_are_in_order_and_full():
    stretches = [(g, t, t + 4) for g, count in enumerate((5, 0, 17, 1)) for t in range(0, 4 * count, 4)]
    parts = corridor.in_turns(stretches, 4, 6)
    assert sorted(torch.cat(parts).tolist()) == list(range(len(stretches)))
    assert max(map(len, parts)) <= 6 and len(parts) == 5, "the places of utterances that have ended go to the others"
    for g in range(4):
        assert (found := [stretches[i][1] for part in parts for i in part if stretches[i][0] == g]) == sorted(found)


def test_known_emissions_are_taken(everywhere):
    problem = confident((70,), (50,), 30, dtype=torch.float64)
    first = Swept(problem, "tanh", NARROWEST, relative=True)
    known = torch.full_like(first.out, torch.nan)
    known[:, 10:60] = torch.tensor([[-0.25], [-0.5]])
    second = Swept(problem, "tanh", 1e-30, known=(first.found.rows, *known))
    places = second.found.places_of(first.found.nodes_of(torch.arange(10, 60)))
    assert (places >= 0).all()
    assert (second.out[0, places] == -0.25).all() and (second.out[1, places] == -0.5).all()
    assert (second.out[0] == -0.25).sum() == 50


def test_there_is_room_for_every_node_and_for_no_more(everywhere):
    swept = Swept(make((9, 5), (2, 40), 30, 10), "tanh", 0.0)
    assert swept.found.visited == swept.group.nodes and (swept.found.left == 0).all()
    swept = Swept(make((9, 5), (2, 40), 30, 10), "tanh", 2.0)
    assert swept.found is None, "nothing is left"


@pytest.mark.parametrize("reduction", ["none", "sum"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_confident_models_have_most_nodes_left_out(dtype, reduction):
    with samplewise.observe() as seen:
        missed = judge(confident(dtype=dtype), "tanh", reduction=reduction, fastemit_lambda=0.2)
    assert not missed
    if dtype in (torch.float64, torch.float32):  # in half precision bounds are a nat from the truth
        group = next(group for group in seen.groups if group.method == "guided")
        assert group.visited_nodes < 0.3 * group.nodes and group.exact_nodes < group.visited_nodes
        assert 0 < group.bound <= torch.finfo(dtype).eps / 4


def test_in_place_of_pieces():
    """An utterance too long to hold floats for all of its nodes needs no pieces where the corridor is short."""
    problem = confident((1500,), (260,))
    with samplewise.observe() as seen:
        assert not judge(problem, "tanh", memory_budget="9MiB")
    assert 0 < seen.groups[0].visited_nodes < 0.3 * seen.groups[0].nodes


def test_a_corridor_that_turns_out_too_wide_gives_way(monkeypatch):
    """The bounds of all nodes take over, with the classes and exact nodes that there are."""
    problem = confident()
    for name, value in (("CORRIDOR", 0.025), ("CORRIDOR", 0.001), ("LARGE", 1e-9)):
        with monkeypatch.context() as patch, samplewise.observe() as seen:
            patch.setattr(corridor, name, value)
            patch.setattr(guided, "is_worth_it", lambda *_: True)
            assert not judge(problem, "tanh")
        assert seen.groups[0].method == "guided" and seen.groups[0].visited_nodes == seen.groups[0].nodes, name


@pytest.mark.parametrize("node", [(417, 259), (10, 250), (200, 120), (0, 0)])
@pytest.mark.parametrize("force", [False, True])
def test_one_node_that_is_no_number_is_one_too_many(node, force):
    """Infinities that cancel at one node alone, whether the corridor would visit it or not: as with every other method."""
    problem = confident()
    problem = problem.replace(
        encoder_out=torch.nn.functional.pad(problem.encoder_out, (0, 1)),
        predictor_out=torch.nn.functional.pad(problem.predictor_out, (0, 1)),
        weight=torch.nn.functional.pad(problem.weight, (0, 1)),
    )
    problem.encoder_out[0, node[0], -1], problem.predictor_out[0, node[1], -1] = math.inf, -math.inf
    right, _ = ours(problem, method="tiled", reduction="none", wanted=())
    with insisting(corridors=True) if force and node != (10, 250) else contextlib.nullcontext():
        value, gradients = ours(problem, method="guided", reduction="none")
    assert right[0].isnan() and value[0].isnan() and torch.equal(value[1], right[1])
    assert all(gradient.isfinite().all() for gradient in gradients.values())


def test_the_bound_counts_what_left_the_corridor(monkeypatch):
    """Where the level is so high that more goes over the edges than may be outside, the corridor proves nothing."""
    monkeypatch.setattr(corridor, "level_of", lambda losses, limit, arcs: torch.exp(-losses) * 1e-3)
    with samplewise.observe() as seen:
        ours(confident(), method="guided")
    assert seen.methods["guided"] == 0, "a bound that holds nowhere"
