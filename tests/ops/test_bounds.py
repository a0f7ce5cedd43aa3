"""`ops.bounds.bound` from end to end: no exact emission, as rounded as it is, ever rises above its bound."""

import pytest
import torch

from samplewise.checks import ACTIVATIONS, check_values
from samplewise.ops.bounds import Slack, Whole, bound, choose, gather
from samplewise.ops.problem import Inputs
from samplewise.ops.tiles import Tile, emission_pass, no_emissions
from samplewise.ops.transducer import Options, problem_of
from tests.problems import make
from tests.structured import structured

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
EVERY_DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=str)
ROWS = 512  # of a tile
PART = 25  # seeds of a test


def call_of(problem, activation):
    """The problem as the passes see it."""
    p = problem
    integers = p.targets, p.encoder_lengths, p.target_lengths
    shapes = {"frames": p.encoder_out.shape[1], "tokens": p.predictor_out.shape[1], "classes": len(p.weight)}
    inputs = Inputs(p.encoder_out, p.predictor_out, p.weight, p.bias, *integers, None, None)
    options = Options(p.blank, activation, "guided", 0, -1.0, 0.0, p.weight.dtype, "zero")
    return problem_of(inputs, check_values(*integers, **shapes, blank=p.blank), options)


def emissions(problem, activation, exponentials=True):
    """Bounds (2, N) and exact emissions (2, N) in the problem's dtype."""
    call = call_of(problem, activation)
    group, tile = call.group(0, problem.batch, exponentials), Tile.of(call, ROWS, gradient=False)
    upper = torch.full((2, group.nodes), torch.nan, dtype=call.real)
    whole, most = Whole.of(call), max(call.lengths.frames)
    half = -(-most // 2)
    bound(call, group, whole, Slack.of(call, group, whole), tile, (0, half), group.table, None, *upper)
    assert upper.isnan().any() == (most > half), "of the frames that were asked for and no others"
    if most > half:
        bound(call, group, whole, Slack.of(call, group, whole), tile, (half, most), group.table, None, *upper)
    exact = no_emissions(group.nodes, call)
    emission_pass(call, group, None, tile, exact)
    return upper, exact.entries


def complaint(problem, activation, said, **options) -> list[str]:
    upper, exact = emissions(problem, activation, **options)
    assert exact.isfinite().sum() > 0 and not exact.isnan().any(), f"there is no truth to compare with: {said}"
    wrong = ~(upper >= exact)  # NaN, too
    return [f"{said}: {int(wrong.sum())} of them, by {float((exact - upper)[wrong].max()):.2g}"] if wrong.any() else []


@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_structured_joints(dtype, part):
    found = []
    for seed in range(60_000 + PART * part, 60_000 + PART * (part + 1)):
        problem, activation, said = structured(seed)
        found += complaint(problem.to(dtype), activation, said, exponentials=bool(seed % 2))
    assert not found, "\n".join(found)


@EVERY_DTYPE
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_any_depth_and_norms(scale, activation, dtype):
    """Where scores are hundreds, rounding is what decides."""
    found = []
    for seed, dim in enumerate((1, 2, 3, 8, 31, 64, 200, 512)):
        for vocab in (3, 7, 130):
            problem = make((9, 4, 1), (3, 0, 2), vocab, dim, seed=seed, dtype=torch.float64)
            problem = problem.replace(weight=problem.weight * scale, bias=problem.bias * scale).to(dtype)
            found += complaint(problem, activation, f"D {dim}, V {vocab}", exponentials=bool(seed % 2))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_less_precise_products(precision):
    """Where PyTorch may round float32 factors: on some CPUs it does."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        for activation in ("tanh", "identity"):
            for dim in (1, 64, 512):
                problem = make((40, 4, 1), (8, 0, 2), 300, dim, seed=dim)
                problem = problem.replace(weight=problem.weight * 30)
                assert not complaint(problem, activation, f"D {dim}")
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(
    "dtype, most",
    [(torch.float64, 4e-12), (torch.float32, 2e-3), (torch.bfloat16, 2.0), (torch.float16, 0.25)],
    ids=str,
)
def test_slack_is_little(dtype, most):
    """Where every class is among those of a stretch, it is all that parts bounds from the truth."""
    problem = make((30, 20), (8, 3), 4, 64, dtype=dtype)
    upper, exact = emissions(problem, "tanh")
    apart = (upper - exact)[exact.isfinite()]
    assert 0 <= float(apart.max()) < most


@pytest.mark.parametrize("masked", [False, True])
def test_slack_of_the_mean_is_that_of_the_classes_it_stands_for(masked):
    """Few large rows among small ones, or among many that are masked."""
    problem = make((9,), (3,), 40, 16, dtype=torch.float32)
    weight, bias = torch.randn(40, 16) / 100, torch.zeros(40)
    weight[-3:] *= 1e5
    bias[9:-3] = -torch.inf if masked else 0.0
    call = call_of(problem.replace(weight=weight, bias=bias, targets=torch.tensor([[1, 2, 3]])), "tanh")
    group, whole = call.group(0, 1), Whole.of(call)
    slack = Slack.of(call, group, whole)
    classes = torch.arange(7)[None]
    others = [v for v in range(7, 40) if bias[v] == 0]
    found = gather(call, whole, torch.tensor([[0, 0, 9]]), classes, slack)
    assert int(found[2]) == len(others)
    assert float(found[3]) >= 2 * float(slack.of_class[others].mean()) > 10 * float(slack.of_class[:7].max())


@pytest.mark.parametrize(("vocab", "masked", "few"), [(12, 6, 6), (16, 10, 14), (40, 35, 30)])
def test_no_class_is_chosen_twice_where_most_are_masked(vocab, masked, few):
    """Their bias is -inf; were blank chosen in their place, it would count twice in the denominator."""
    problem = make((30,), (6,), vocab=vocab, dim=8)
    problem.bias[vocab - masked :] = -torch.inf
    problem = problem.replace(targets=problem.targets.clamp(1, vocab - masked - 1), blank=0)
    call = call_of(problem, "tanh")
    group, tile = call.group(0, 1), Tile.of(call, ROWS, gradient=False)
    stretches = torch.tensor([[0, 0, 15], [0, 15, 30]])
    chosen = torch.cat([classes for _, classes, _ in choose(call, group, stretches, tile, few)])
    assert all(len(set(row)) == len(row) for row in chosen.tolist())
