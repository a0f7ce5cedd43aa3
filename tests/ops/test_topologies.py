"""Every topology through every method: losses and gradients equal the truth, which equals the sum over all alignments."""

import itertools

import pytest
import torch

import samplewise
from samplewise import TransducerError, topology
from samplewise.checks import Lengths
from samplewise.kernels import backend
from samplewise.ops import guided
from samplewise.ops.bounds import Slack, Whole
from samplewise.ops.entry_bounds import Vocabulary, bound_entries
from samplewise.ops.problem import Inputs
from samplewise.ops.tiles import Tile, emission_pass, no_emissions
from samplewise.ops.transducer import Options, problem_of
from samplewise.planning import planner
from samplewise.reference import reference_loss
from samplewise.reference_topologies import entries, enumerated
from tests.ops.test_pieces import least
from tests.problems import FLOATS, Problem

TOPOLOGIES = [
    topology.regular(), topology.modified(), topology.constrained(), topology.hat(),
    topology.multi_blank((2, 3), sigma=0.05), topology.multi_blank((4,), (3,)), topology.tdt(sigma=0.02),
    topology.tdt((1, 2)), topology.tdt((2, 3)), topology.tdt((0, 3)),
]  # fmt: skip
METHODS = ("batched", "samplewise", "tiled", "guided")
EVERY = pytest.mark.parametrize("kind", TOPOLOGIES, ids=str)


@pytest.fixture(autouse=True)
def insisting(monkeypatch):
    """Let "guided" go on with bounds however much work that is."""
    monkeypatch.setattr(guided, "LATTICE_WORK", 0)
    monkeypatch.setattr(guided, "knows_nothing", lambda *_: False)


def blank_of(kind, vocab):
    return vocab - 1 if kind.name == "multi_blank" else 0


def make(kind, frames, labels, vocab=9, dim=7, dtype=torch.float64, scale=1.0, seed=0):
    """A problem whose labels are no blanks."""
    generator = torch.Generator().manual_seed(seed)
    batch, most, width = len(frames), max(frames) + 1, max(labels) + 1

    def normal(*shape, by=1.0):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).mul(by).to(dtype)

    blank = blank_of(kind, vocab)
    usual = [label for label in range(vocab) if label not in kind.blanks(blank)]
    targets = torch.tensor(usual)[torch.randint(len(usual), (batch, max(labels)), generator=generator)]
    rows = vocab + kind.extra
    return Problem(
        normal(batch, most, dim), normal(batch, width, dim), normal(rows, dim, by=scale), normal(rows), targets,
        torch.tensor(frames), torch.tensor(labels), blank,
    )  # fmt: skip


def both(problem, kind, upstream, method="tiled", mask=None, **options):
    """Losses (B,) and gradients of their weighted sum: ours, and those of the truth in float64."""
    found = []
    for ours in (True, False):
        floats = [getattr(problem, name).detach().clone() for name in FLOATS]
        floats = [(x if ours else x.double()).requires_grad_() for x in floats]
        integers = problem.targets, problem.encoder_lengths, problem.target_lengths
        own = {"blank": problem.blank, "topology": kind, "reduction": "none"}
        if ours:
            losses = samplewise.transducer_loss(*floats, *integers, method=method, **own, **options)
        else:
            known = {name: x for name, x in options.items() if name in ("fastemit_lambda", "delay_penalty", "alignment")}
            losses = reference_loss(*floats, *integers, **own, **known, mask=mask, activation=options.get("activation", "tanh"))
        usable = torch.isfinite(losses)
        total = (losses.double() * upstream).masked_fill(~usable, 0.0).sum()
        found.append((losses.detach(), torch.autograd.grad(total, floats)))
    return found


def compare(found, truth, rtol=1e-11):
    torch.testing.assert_close(found[0].double(), truth[0], rtol=rtol, atol=rtol)
    for name, gradient, right in zip(FLOATS, found[1], truth[1], strict=True):
        error, scale = float((gradient.double() - right).abs().max()), float(right.abs().max())
        assert error <= rtol * max(scale, 1.0), f"{name} is off by {error}"


SHAPES = ((7, 1, 5, 3, 4, 2), (3, 0, 5, 4, 0, 1))  # U = T, U > T, U = 0, T = 1, T below the longest duration
UPSTREAM = torch.tensor([1.0, 0.5, 2.0, -1.0, 0.25, 1.5], dtype=torch.float64)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kernels", ["eager", "numba"])
@EVERY
def test_methods_and_backends(kind, kernels, method):
    problem = make(kind, *SHAPES)
    with backend.use(kernels):
        found, truth = both(problem, kind, UPSTREAM, method=method, fastemit_lambda=0.3)
    assert torch.equal(torch.isinf(found[0]), torch.isinf(truth[0]))
    compare(found, truth)


@EVERY
def test_the_truth_is_the_sum_over_all_alignments(kind):
    problem = make(kind, *SHAPES)
    z = torch.tanh(problem.encoder_out[:, :, None] + problem.predictor_out[:, None])
    scores = z @ problem.weight.t() + problem.bias
    losses = samplewise.transducer_loss(
        *(getattr(problem, name) for name in FLOATS), problem.targets, problem.encoder_lengths, problem.target_lengths,
        blank=problem.blank, topology=kind, reduction="none",
    )  # fmt: skip
    for b, (T, U) in enumerate(zip(*SHAPES, strict=True)):
        right = enumerated(entries(scores[b, :T, : U + 1], problem.targets[b, :U], problem.blank, kind), kind)
        torch.testing.assert_close(losses[b], right, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", [topology.constrained(), topology.hat(), topology.tdt(sigma=0.02)], ids=str)
def test_dtypes(kind, method, dtype):
    problem = make(kind, (30, 17), (6, 4), vocab=40, dim=16, dtype=dtype)
    found, truth = both(problem, kind, UPSTREAM[:2], method=method)
    compare(found, truth, 2e-6 if dtype == torch.float32 else 0.04)


@pytest.mark.parametrize("method", ["tiled", "guided"])
@EVERY
def test_an_utterance_in_pieces(kind, method, monkeypatch):
    monkeypatch.setattr(planner, "PIECE", 64)
    problem = make(kind, (60,), (6,), vocab=40, dim=16, scale=3.0)
    span = torch.stack((torch.arange(6) * 6, torch.arange(6) * 9 + 15), 1)[None]
    budget = least(problem, method=method, topology=kind, alignment=span)
    options = {"memory_budget": budget, "tolerance": 1e-13, "delay_penalty": 0.02, "alignment": span}
    compare(*both(problem, kind, UPSTREAM[:1], method=method, **options), 1e-10)


@EVERY
def test_bounds_are_not_below_the_entries(kind):
    """In float32 and half precision, of confident joints, whose bounds are close."""
    for dtype, activation in itertools.product((torch.float32, torch.bfloat16), ("tanh", "relu")):
        problem = make(kind, (40, 23), (9, 5), vocab=60, dim=24, dtype=dtype, scale=4.0)
        p = problem
        integers = p.targets, p.encoder_lengths, p.target_lengths
        options = Options(p.blank, activation, "guided", 0, -1.0, 0.0, dtype, "keep", kind.key, 0.0, -1.0, 0.3, 7)
        inputs = Inputs(p.encoder_out, p.predictor_out, p.weight, p.bias, *integers, None, None)
        call = problem_of(inputs, Lengths(p.encoder_lengths.tolist(), p.target_lengths.tolist()), options)
        group, tile, vocabulary = call.group(0, 2), Tile.of(call, 64, gradient=False), Vocabulary.of(call)
        whole = Whole.of(vocabulary.problem)
        upper = torch.full((call.lattice.entries, group.nodes), torch.nan)
        slack = Slack.of(vocabulary.problem, group, whole)
        bound_entries(vocabulary, call, group, whole, slack, tile, 0, (0, 1 << 62), group.table, None, upper)
        exact = no_emissions(group.nodes, call)
        emission_pass(call, group, None, tile, exact)
        assert bool((upper >= exact.entries).all()), (dtype, activation)
        near = (upper - exact.entries).nan_to_num(0.0)
        assert near[call.lattice.label_entry].median() < 30.0


@EVERY
def test_an_utterance_without_a_path_leaves_the_others_alone(kind):
    problem = make(kind, (12, 6), (4, 3), vocab=9)
    span = torch.tensor([[0, 11]]).expand(2, 4, 2).clone()
    span[1, 1] = torch.tensor([9, 3])  # nowhere
    found, truth = both(problem, kind, torch.ones(2, dtype=torch.float64), alignment=span, method="guided")
    assert found[0][1] == torch.inf and found[0][0] < torch.inf
    compare(found, truth)
    assert not bool(found[1][0][1].any())


@pytest.mark.parametrize("method", METHODS)
@EVERY
def test_delay_penalty_and_alignment(kind, method):
    problem = make(kind, (24, 11), (5, 4), vocab=20)
    span = torch.stack((torch.arange(5) * 2, torch.arange(5) * 2 + 6), 1).expand(2, 5, 2).contiguous()
    compare(*both(problem, kind, UPSTREAM[:2], method=method, delay_penalty=0.07))
    compare(*both(problem, kind, UPSTREAM[:2], method=method, alignment=span.int(), delay_penalty=-0.01))


@EVERY
def test_gradcheck(kind):
    problem = make(kind, (4,), (2,), vocab=6, dim=3)
    floats = tuple(getattr(problem, name).clone().requires_grad_() for name in FLOATS)
    integers = problem.targets, problem.encoder_lengths, problem.target_lengths

    def loss(*inputs):
        options = {"blank": problem.blank, "topology": kind, "tolerance": 0.0, "dropout": 0.2, "dropout_seed": 3}
        return samplewise.transducer_loss(*inputs, *integers, reduction="none", method="tiled", **options).sum()

    value = loss(*floats)
    if torch.isfinite(value):
        assert torch.autograd.gradcheck(loss, floats)


def test_names_and_errors():
    problem = make(topology.tdt(), (6,), (2,))
    arguments = [getattr(problem, name) for name in FLOATS]
    integers = problem.targets, problem.encoder_lengths, problem.target_lengths
    by_name = samplewise.transducer_loss(*arguments, *integers, topology="tdt")
    assert torch.equal(by_name, samplewise.transducer_loss(*arguments, *integers, topology=topology.tdt((0, 1, 2, 3, 4))))
    for wrong, said in (
        ("tdd", "topology is 'tdd'"), (3, "topology is a int"), (topology.tdt(range(14)), "takes 14 for durations"),
        (topology.multi_blank((2,), (0,)), "blank of class 0"), (topology.multi_blank((2,), (99,)), "blank of class 99"),
    ):  # fmt: skip
        with pytest.raises(TransducerError, match=said):
            samplewise.transducer_loss(*arguments, *integers, topology=wrong)
    for make_wrong, said in (
        (lambda: topology.tdt((0, 0)), "durations is"), (lambda: topology.tdt((0,)), "durations is"),
        (lambda: topology.multi_blank((1,)), "durations is"), (lambda: topology.tdt(sigma=-1.0), "sigma is"),
        (lambda: topology.multi_blank((2, 4), (1,)), "classes is"), (lambda: topology.tdt((0.5, 1)), "durations is"),
    ):  # fmt: skip
        with pytest.raises(TransducerError, match=said):
            make_wrong()
    with pytest.raises(TransducerError, match=r"targets\[0, 0\] is 3, but that is a blank"):
        targets = torch.tensor([[3, 1]])
        samplewise.transducer_loss(*arguments, targets, *integers[1:], topology=topology.multi_blank((2,), (3,)))
    with pytest.raises(TransducerError, match=r"alignment must be \(1, 2, 2\)"):
        samplewise.transducer_loss(*arguments, *integers, topology="tdt", alignment=torch.zeros(1, 2, dtype=torch.int64))


@pytest.mark.parametrize(
    ("kind", "frames", "labels", "said"),
    [
        (topology.modified(), 3, 5, r"no path of modified\(\) leads through 3 frames and 5 labels"),
        (topology.tdt((2, 3)), 1, 0, r"no path of tdt\(durations=\(2, 3\), sigma=0.0\) leads through 1 frames and 0 labels"),
        (topology.regular(), 6, 2, r"no path of regular\(\) leads through 6 frames and 2 labels with alignment\[0\]"),
    ],
)
def test_that_there_is_no_path_is_said(kind, frames, labels, said):
    problem = make(kind, (frames,), (labels,))
    alignment = torch.tensor([[[4, 5], [0, 2]]]) if kind.name == "regular" else None
    with pytest.raises(TransducerError, match=said):
        samplewise.transducer_loss(
            *(getattr(problem, name) for name in FLOATS), problem.targets, problem.encoder_lengths, problem.target_lengths,
            topology=kind, on_nonfinite="raise", alignment=alignment,
        )  # fmt: skip


def test_pieces_are_bounded_with_the_same_classes_whenever_it_is_their_turn():
    """Several blanks take turns at being the first of a stretch's classes; a loss made of other bounds than the occupancy
    outside would prove nothing."""
    kind = topology.multi_blank((2, 3, 4), (1, 2, 3))
    generator = torch.Generator().manual_seed(4)
    problem = make(kind, (60,), (19,), vocab=50, dim=8)
    problem = problem._replace(blank=0) if hasattr(problem, "_replace") else problem
    problem.bias[:4] = torch.tensor([22.0, 21.5, -60.0, -60.0])
    p = problem
    targets = torch.randint(4, 50, (1, 19), generator=generator)
    integers = targets, p.encoder_lengths, p.target_lengths
    options = Options(0, "tanh", "guided", 0, -1.0, 0.0, torch.float64, "keep", kind.key)
    inputs = Inputs(p.encoder_out, p.predictor_out, p.weight, p.bias, *integers, None, None)
    call = problem_of(inputs, Lengths([60], [19]), options)
    group, tile, vocabulary = call.group(0, 1), Tile.of(call, 64, gradient=False), Vocabulary.of(call)
    whole = Whole.of(vocabulary.problem)
    slack, classes, found = Slack.of(vocabulary.problem, group, whole), None, []
    for _ in range(3):
        upper = torch.full((call.lattice.entries, group.nodes), torch.nan, dtype=torch.float64)
        classes = bound_entries(vocabulary, call, group, whole, slack, tile, 0, (0, 60), group.table, classes, upper)
        found.append(upper)
    assert torch.equal(found[0], found[1]) and torch.equal(found[1], found[2])
