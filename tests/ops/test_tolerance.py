"""What the gradients may leave out: never more than the tolerance says, and as much of it as possible."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

import samplewise
from samplewise.checks import Lengths
from samplewise.kernels import eager
from samplewise.ops.problem import SUREST, Problem, share_of
from samplewise.planning import planner
from samplewise.reference import arcs, log_likelihood
from tests.judge import insisting
from tests.ops.test_pieces import least
from tests.problems import assert_close, error, make, ours, planted, truth

METHODS = ("tiled", "guided")


def joint(problem):
    """z (B, T, U+1, D) of a tanh joint."""
    return torch.tanh(problem.encoder_out[:, :, None] + problem.predictor_out[:, None]).double()


def posteriors(problem) -> list[torch.Tensor]:
    """The occupancy (T_b, U_b+1) of every utterance, from the derivatives of the likelihood by its arcs."""
    logits = joint(problem) @ problem.weight.T.double() + problem.bias.double()
    found = []
    for b, (t, u) in enumerate(zip(problem.encoder_lengths.tolist(), problem.target_lengths.tolist(), strict=True)):
        both = arcs(logits[b, :t, : u + 1].log_softmax(2), problem.targets[b, :u], problem.blank)
        blank, label = (x.detach().requires_grad_() for x in both)
        by_blank, by_label = torch.autograd.grad(log_likelihood(blank, label), (blank, label), materialize_grads=True)
        found.append(by_blank + torch.nn.functional.pad(by_label, (0, 1)))
    return found


def assert_within_the_bound(problem, method, tolerance):
    """Section by section of what an omitted occupancy s can do: an element of d_bias moves by at most s, one of d_weight by
    s max|z|, one of d_encoder_out or d_predictor_out by s times the largest |W^T dh| with |dh|_1 <= 2."""
    _, got = ours(problem, method=method, reduction="sum", tolerance=tolerance)
    _, right = truth(problem, reduction="sum")
    total = (problem.encoder_lengths + problem.target_lengths).sum().item()
    largest = joint(problem).abs().max().item()
    reach = problem.weight.abs().max().item() * 2
    for name, most in {"bias": 1.0, "weight": largest, "encoder_out": reach, "predictor_out": reach}.items():
        difference = (got[name] - right[name]).abs().max().item()
        assert difference <= tolerance * total * most + 1e-11, f"{name}: {difference:.3g}"


@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(0, 9)), min_size=1, max_size=4),
    st.sampled_from([1e-9, 1e-6, 1e-3, 0.05, 0.4]),
    st.sampled_from([make, planted]),
    st.sampled_from(METHODS),
    st.integers(0, 10**6),
)
def test_the_bound_holds(sizes, tolerance, maker, method, seed):
    frames, labels = [t for t, _ in sizes], [min(u, t) for t, u in sizes]
    assert_within_the_bound(maker(frames, labels, 12, 8, seed=seed, dtype=torch.float64), method, tolerance)


@pytest.mark.parametrize("maker", [make, planted])
@pytest.mark.parametrize("method", METHODS)
def test_the_bound_is_used(method, maker):
    """A large tolerance does leave something out, so the test of the bound can fail."""
    problem = maker((40, 30), (9, 5), 12, 8, dtype=torch.float64)
    _, right = truth(problem, reduction="sum")
    _, all_but_a_third = ours(problem, method=method, reduction="sum", tolerance=0.3)
    assert error(all_but_a_third["weight"], right["weight"]) > 1e-3
    _, everything = ours(problem, method=method, reduction="sum", tolerance=0.0)
    assert error(everything["weight"], right["weight"]) < 1e-11


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("tolerance", [0.0, 1e-7, 0.3])
@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_the_loss_does_not_depend_on_it(method, tolerance, reduction):
    problem = planted((40, 30), (9, 5), 200, 8, dtype=torch.float64)
    value, _ = ours(problem, method=method, reduction=reduction, tolerance=tolerance)
    right, _ = truth(problem, reduction=reduction)
    assert_close("loss", value, right, 1e-12 if method == "tiled" else max(1e-12, tolerance))


def test_each_utterance_has_its_own_share():
    """A tolerance is a share of each utterance's occupancy: upstream gradients do not move it, nor batch mates unless they are
    very sure."""
    problem, scales = planted((40, 9, 30), (9, 2, 5), 12, 8, dtype=torch.float64), (1.0, 2.0**-20, -(2.0**20))
    together = ours(problem, method="tiled", reduction="none", tolerance=0.2, upstream=torch.tensor(scales).double())[1]
    for b, scale in enumerate(scales):
        one = {name: problem.inputs[name][b : b + 1] for name in ("encoder_out", "predictor_out", "targets", "target_lengths")}
        alone = problem.replace(**one, encoder_lengths=problem.encoder_lengths[b : b + 1])
        _, gradients = ours(alone, method="tiled", reduction="sum", tolerance=0.2)
        assert error(together["encoder_out"][b] / scale, gradients["encoder_out"][0]) < 1e-10


@pytest.mark.parametrize("tolerance", [1e-3, 0.05, 0.5])
def test_as_few_frames_as_possible(tolerance):
    """The nodes that stay are those of largest occupancy, and one fewer would be too few: seen from outside, a frame has a
    gradient if and only if it holds one of them."""
    problem = planted((60, 25), (9, 5), 12, 8, sharpness=9.0, dtype=torch.float64)
    _, gradients = ours(problem, method="tiled", reduction="sum", tolerance=tolerance)
    for b, occupancy in enumerate(posteriors(problem)):
        ascending, order = occupancy.flatten().sort()
        stays = ascending.cumsum(0) > tolerance * occupancy.sum()
        active = torch.zeros_like(stays).index_put_((order,), stays).view_as(occupancy)
        t, u = occupancy.shape
        assert torch.equal((gradients["encoder_out"][b, :t] != 0).any(1), active.any(1))
        assert torch.equal((gradients["predictor_out"][b, :u] != 0).any(1), active.any(0))
        assert tolerance < 0.05 or not active.all()


@pytest.mark.parametrize("maker", [make, planted])
def test_occupancies_sum_to_frames_and_labels(maker):
    """Every path leaves a frame by one blank and takes every label once."""
    problem = maker((40, 9, 1), (9, 2, 1), 12, 8)
    lengths = zip(problem.encoder_lengths.tolist(), problem.target_lengths.tolist(), strict=True)
    for occupancy, (t, u) in zip(posteriors(problem), lengths, strict=True):
        assert occupancy.sum().item() == pytest.approx(t + u, rel=1e-12)
        assert occupancy.sum(1).min() >= 1 - 1e-12
    _, gradients = ours(problem, method="tiled", reduction="sum", tolerance=0.0)
    assert gradients["bias"].sum().abs() < 1e-4  # softmax minus what it should be: rows sum to 0


def test_tolerance_of_the_eager_kernels_is_the_same():
    gamma = torch.rand(2, 50, dtype=torch.float64) ** 8
    table = torch.tensor([[0, 5, 4, 6, 0, 0, 0], [30, 2, 1, 10, 0, 0, 0]])
    kept = eager.select(*gamma, table, torch.zeros(2, dtype=torch.float64), 0.25)
    for nodes in (slice(0, 30), slice(30, 50)):
        occupancy = gamma.sum(0)
        here = kept[(kept >= nodes.start) & (kept < nodes.stop)]
        share = occupancy[here].sum() / occupancy[nodes].sum()
        smallest = occupancy[here].min() / occupancy[nodes].sum()
        assert share >= 0.75 and share - smallest < 0.75


def test_default_is_machine_epsilon_or_less():
    problem = planted((60, 40), (12, 7), 50, 8)
    default = ours(problem, method="tiled", reduction="sum")[1]
    explicit = ours(problem, method="tiled", reduction="sum", tolerance=torch.finfo(torch.float32).eps)[1]
    everything = ours(problem, method="tiled", reduction="sum", tolerance=0.0)[1]
    assert all(error(default[name], everything[name]) <= 2e-6 for name in default)
    assert all(error(default[name], explicit[name]) <= 2e-6 for name in default)
    assert samplewise.transducer_loss(**problem.inputs, tolerance=None).isfinite()


def sure(frames, labels, vocab, dim, sharpness):
    """A problem that is solved, with hardly a loss: predictors take back what the label before was told by."""
    problem = make(frames, labels, vocab, dim, dtype=torch.float64)
    g = torch.Generator().manual_seed(1)
    weight = torch.nn.functional.normalize(torch.randn(vocab, dim, generator=g, dtype=torch.float64), dim=1)
    encoder_out, predictor_out, targets = problem.encoder_out * 0.02, problem.predictor_out * 0.02, problem.targets.clone()
    encoder_out += weight[0]
    for b, (t, u) in enumerate(zip(frames, labels, strict=True)):
        for i in range(1, u):  # no label twice in a row
            targets[b, i] = targets[b, i] % (vocab - 1) + 1 if targets[b, i] == targets[b, i - 1] else targets[b, i]
        told = 1.5 * (weight[targets[b, :u]] - weight[0])
        encoder_out[b, torch.randperm(t, generator=g)[:u].sort().values] += told
        predictor_out[b, 1 : u + 1] -= told
    weight, bias = weight * sharpness, torch.zeros_like(problem.bias)
    return problem.replace(encoder_out=encoder_out, predictor_out=predictor_out, weight=weight, bias=bias, targets=targets)


@pytest.mark.parametrize("method", METHODS)
def test_what_is_left_out_shows_in_no_gradient_of_a_sure_model(method):
    """Its gradients are small, so the default leaves out less: errors are those that rounding makes by itself."""
    problem = sure((120, 80), (20, 12), 40, 128, 17.0)
    options = {"activation": "identity", "reduction": "sum"}
    value, right = truth(problem, **options)
    assert value / problem.target_lengths.sum() < 0.005
    with insisting(), samplewise.observe() as seen:
        default = ours(problem.to(torch.float32), method=method, **options)[1]
    assert seen.methods[method] == 1
    everything = ours(problem.to(torch.float32), method=method, tolerance=0.0, **options)[1]
    for name, gradient in default.items():
        assert error(gradient, right[name]) <= 1.3 * error(everything[name], right[name]) + 1e-7, name


def test_pieces_leave_out_their_utterances_share(monkeypatch):
    problem = planted((40, 30), (9, 5), 12, 8, dtype=torch.float64)
    _, right = truth(problem, reduction="sum")
    monkeypatch.setattr(planner, "PIECE", 100)
    options = {"method": "tiled", "reduction": "sum", "memory_budget": least(problem, method="tiled"), "tolerance": 0.3}
    assert error(ours(problem, **options)[1]["weight"], right["weight"]) > 1e-3
    monkeypatch.setattr(Problem, "share", lambda *arguments: 0.0)
    assert error(ours(problem, **options)[1]["weight"], right["weight"]) < 1e-11


def test_the_share_follows_the_surest_loss():
    lengths = Lengths([30, 10], [10, 0])
    assert share_of(0.1, torch.tensor([80.0, 20.0]), lengths) == pytest.approx(0.1)
    assert share_of(0.1, torch.tensor([20.0, 20.0]), lengths) == pytest.approx(0.05)
    assert share_of(0.1, torch.tensor([20.0, 1.0]), lengths) == pytest.approx(0.01)
    assert share_of(0.1, torch.tensor([1e-9, 20.0]), lengths) == pytest.approx(0.1 * SUREST)
    assert share_of(0.1, torch.tensor([float("nan"), 5.0]), lengths) == pytest.approx(0.05)
    assert share_of(0.1, torch.tensor([float("inf"), float("nan")]), lengths) == pytest.approx(0.1)
    assert share_of(0.0, torch.tensor([1.0, 1.0]), lengths) == 0.0
