"""Joints of plain structure on which a method that leaves nodes out may err: none of them tells "guided" from "tiled".

scripts/fuzz_guided.py runs as many more of them as one likes.
"""

import contextlib
import itertools
import math

import pytest
import torch

from samplewise import observe, sample_vocabulary
from samplewise.ops import guided
from samplewise.reference import log_likelihood
from tests import judge as judging
from tests.judge import judge, share_outside, true_emissions, true_share_outside
from tests.problems import assert_close, make, ours
from tests.structured import KINDS, issue_example, structured

PARTS, SEEDS = 20, 100  # of the fuzz, and of each part of it
OPTION_SEEDS, BOUND_SEEDS = range(30_000, 30_025), range(40_000, 40_030)


def complaints(seeds, alter=lambda problem: problem, **options) -> list[str]:
    """What is wrong with which seed. An option may be a function of problem and seed."""
    found = []
    for seed in seeds:
        problem, activation, said = structured(seed)
        problem = alter(problem)
        given = {name: x(problem, seed) if callable(x) else x for name, x in options.items()}
        usual = {"reduction": "sum" if seed % 2 else "none", "insist": seed % 4 < 2, "corridors": seed % 4 == 1}
        missed = judge(problem, activation, **(usual | given))
        if missed:
            found.append(f"seed {seed}: {missed}\n  {said}")
    return found


# --- the fuzz ------------------------------------------------------------------------------------------------------------


def test_the_example_of_estimates_that_bury_the_alignment():
    """Its loss is 42.81 nats; estimates from drawn classes gave 54.78, and gradients off by 42 to 130%."""
    problem = issue_example()
    T, U = int(problem.encoder_lengths), int(problem.target_lengths)
    right = -log_likelihood(*true_emissions(problem, "identity", 0, T, U))
    assert abs(float(right) - 42.81) < 0.01
    value, gradients = ours(problem, method="guided", activation="identity")
    _, right_gradients = ours(problem.to(torch.float64), method="tiled", tolerance=0.0, activation="identity")
    assert_close("loss", value, right, 1e-5)
    for name in gradients:
        assert_close(name, gradients[name], right_gradients[name], 2e-4)


@pytest.mark.parametrize("part", range(PARTS))
def test_no_joint_is_missed(part):
    assert not (found := complaints(range(part * SEEDS, (part + 1) * SEEDS))), "\n".join(found)


def vocabulary(problem, seed):
    """Half of the classes."""
    size = max(len(problem.weight) // 2, min(len(problem.weight), 4 * problem.targets.shape[1] + 1))
    return sample_vocabulary(
        problem.targets, problem.target_lengths, len(problem.weight), size, blank=problem.blank,
        scope=("batch", "utterance")[seed % 2], generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip


OPTIONS = {
    "FastEmit": {"fastemit_lambda": 0.5},
    "sampled classes": {"vocabulary": vocabulary},
    "mean": {"reduction": "mean"},
    "mean_volume": {"reduction": "mean_volume"},
    "mean_target": {"reduction": "mean_target"},
    "a large tolerance": {"tolerance": 1e-3},
    "no tolerance": {"tolerance": 0.0},
    "little memory": {"memory_budget": lambda problem, seed: "32MiB"},
    "all at once": {"fastemit_lambda": 0.5, "vocabulary": vocabulary, "tolerance": 1e-4, "reduction": "none"},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options(name):
    assert not (found := complaints(OPTION_SEEDS, **OPTIONS[name])), "\n".join(found)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_dtypes(dtype):
    assert not (found := complaints(OPTION_SEEDS, lambda problem: problem.to(dtype))), "\n".join(found)


@pytest.mark.parametrize("tolerance", [1e-4, 1e-6, 1e-9])
def test_tolerances_without_rounding(tolerance):
    """In float64 nothing hides what is left out."""
    found = complaints(OPTION_SEEDS, lambda problem: problem.to(torch.float64), tolerance=tolerance)
    assert not found, "\n".join(found)


# --- the bound -----------------------------------------------------------------------------------------------------------


def exact_nodes_and_bound(problem, activation, monkeypatch, **options) -> tuple[torch.Tensor, list[torch.Tensor], float]:
    """Losses (B,); of each utterance which nodes (T, U+1) had exact emissions; the bound that is reported. Groups that turn to
    "tiled" have all nodes exact."""
    exact = [torch.ones(t, u + 1, dtype=torch.bool) for t, u in zip(*lengths(problem), strict=True)]
    settle = guided.settle

    def watched(band, *arguments):
        found = settle(band, *arguments)
        if found is not None:
            inside = torch.zeros(band.group.nodes, dtype=torch.bool)
            for piece, parts in zip(band.pieces, band.exact, strict=True):
                for part in parts:
                    inside[piece.nodes_of(part.places)] = True
            here = range(band.group.first, band.group.stop)
            for b, part in zip(here, inside.split([exact[b].numel() for b in here]), strict=True):
                exact[b] = part.view(exact[b].shape)
        return found

    with monkeypatch.context() as patch, observe() as seen:
        patch.setattr(guided, "settle", watched)
        losses, _ = ours(problem, wanted=(), method="guided", activation=activation, reduction="none", **options)
    return losses, exact, seen.bound


def lengths(problem):
    return problem.encoder_lengths.tolist(), problem.target_lengths.tolist()


def assert_bound_covers(problem, activation, losses, exact, bound, slack, rounding) -> None:
    """The bound is a share of the mass M under bounds, the truth one of the true P, and at most `bound` of M are no true paths;
    so far, too, the losses may be off. `slack` is what rounding in the emissions may have made of either share."""
    truth, bound = true_share_outside(problem, activation, exact), min(bound, 0.999)
    allowed = bound / (1 - bound) * (1 + slack) + 1e-14
    assert (truth.paths <= allowed).all(), f"{truth.paths.tolist()} of the paths touch the outside; the bound is {bound}"
    wrong = (losses.double() - truth.loss).abs()
    a_node = torch.finfo(problem.weight.dtype).eps * (problem.encoder_lengths + problem.target_lengths)
    assert (wrong <= -math.log1p(-bound) + rounding * truth.loss + a_node).all(), (
        f"losses off by {wrong.tolist()}, bound {bound}"
    )


@pytest.mark.parametrize("tolerance", [1e-3, 1e-5, 1.2e-7])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("corridors", [False, True])
def test_the_bound_is_at_least_what_is_outside(tolerance, dtype, corridors, monkeypatch):
    """True shares in float64. In float32 the emissions of a path are rounded at each of its nodes, and its mass with them."""
    slack, rounding = (1e-9, 1e-11) if dtype == torch.float64 else (0.05, 1e-5)
    for seed in BOUND_SEEDS:
        problem, activation, said = structured(seed)
        problem = problem.to(dtype)
        with judging.insisting(corridors=True) if corridors else contextlib.nullcontext():
            found = exact_nodes_and_bound(problem, activation, monkeypatch, tolerance=tolerance)
        try:
            assert_bound_covers(problem, activation, *found, slack, rounding)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, {said}: {error}") from None


# --- what judges ---------------------------------------------------------------------------------------------------------


def test_every_kind_is_drawn():
    drawn = {structured(seed)[2].split(":")[0] for seed in range(300)}
    assert drawn == set(KINDS)


def test_a_seed_is_always_the_same_joint():
    one, two = structured(7), structured(7)
    assert one[1:] == two[1:]
    for name, x in one[0].inputs.items():
        assert torch.equal(x.nan_to_num(0.0), two[0].inputs[name].nan_to_num(0.0)), name


@pytest.mark.parametrize("name", ["loss", "encoder_out", "predictor_out", "weight", "bias"])
def test_the_judge_sees_an_error(name, monkeypatch):
    """One part in a thousand of a loss, or of one element of one gradient."""
    right = judging.ours

    def wrong(problem, *, method, **options):
        value, gradients = right(problem, method=method, **options)
        if method == "guided" and name == "loss":
            value = value * 1.001
        elif method == "guided":
            flat = gradients[name].flatten()
            flat[flat.abs().nan_to_num(0.0).argmax()] *= 1.001
        return value, gradients

    problem = make((60, 90, 40), (12, 20, 0), 50, 16)
    assert not judge(problem, "tanh")
    monkeypatch.setattr(judging, "ours", wrong)
    assert list(judge(problem, "tanh")) == [name]


def test_the_share_outside_is_that_of_all_paths_one_by_one():
    problem = make((4, 3, 1), (3, 2, 2), 7, 4, dtype=torch.float64)
    g = torch.Generator().manual_seed(1)
    exact = [torch.rand(t, u + 1, generator=g) < 0.7 for t, u in zip(*lengths(problem), strict=True)]
    paths, occupancy, loss = true_share_outside(problem, "tanh", exact)
    assert ((paths > 0) & (paths < 1)).any()
    for b, (T, U) in enumerate(zip(*lengths(problem), strict=True)):
        blank, label = true_emissions(problem, "tanh", b, T, U)
        total = touching = nodes = 0.0
        for steps in itertools.combinations(range(T - 1 + U), U):
            t = u = outside = 0
            score = 0.0
            for step in range(T + U):
                outside += not exact[b][t, u]
                score += float(label[t, u] if step in steps else blank[t, u])
                t, u = (t, u + 1) if step in steps else (t + 1, u)
            p = math.exp(score)
            total, touching, nodes = total + p, touching + p * (outside > 0), nodes + p * outside
        assert abs(float(paths[b]) - touching / total) < 1e-12
        assert abs(float(occupancy[b]) - nodes / total / (T + U)) < 1e-12
        assert abs(float(loss[b]) + math.log(total)) < 1e-12


@pytest.mark.parametrize("sign", [1, -1], ids=["bounds from above", "estimates"])
def test_upper_bounds_prove_what_estimates_do_not(sign):
    """With emissions outside of the exact nodes above the true ones, the share measured with them covers the true one."""
    g = torch.Generator().manual_seed(3)
    problem = make((30,), (6,), 20, 4, dtype=torch.float64)
    covered = []
    for _ in range(20):
        exact = torch.rand(30, 7, generator=g) < 0.99
        mixed = []
        for true in true_emissions(problem, "tanh", 0, 30, 6):
            more = sign * torch.rand(true.shape, generator=g, dtype=torch.float64)
            mixed.append(torch.where(exact[:, : true.shape[1]], true, true + more))
        _, nodes, loss = share_outside(*mixed, exact)
        try:
            assert_bound_covers(problem, "tanh", torch.tensor([loss], dtype=torch.float64), [exact], nodes, 1e-9, 1e-11)
            covered.append(True)
        except AssertionError:
            covered.append(False)
    assert all(covered) if sign == 1 else not all(covered)
