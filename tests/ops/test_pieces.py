"""One utterance too long for floats at all of its nodes: worked on in pieces, whatever the method, with the same result."""

import itertools

import pytest
import torch

import samplewise
from samplewise.ops import guided, tiled
from samplewise.planning import planner
from tests.problems import FLOATS, make, ours, planted

SHAPES = {"frames": (130, 7), "labels": (20, 3), "vocab": 40, "dim": 16}


@pytest.fixture
def small_pieces(monkeypatch):
    """Pieces of some 200 nodes. Says how many each method cut an utterance into."""
    monkeypatch.setattr(planner, "PIECE", 200)
    counts = {"tiled": [], "guided": []}
    for method in (tiled, guided):

        def watched(group, whole, method=method, right=method.pieces_of):
            found = right(group, whole)
            counts[method.__name__.rsplit(".", 1)[1]].append(len(found))
            return found

        monkeypatch.setattr(method, "pieces_of", watched)
    return counts


def least(problem, **options) -> int:
    with pytest.raises(samplewise.TransducerError) as refusal:
        ours(problem, memory_budget=1, **options)
    return int(str(refusal.value).split("needs at least ")[1].split()[0])


@pytest.mark.parametrize("method", ["tiled", "guided"])
@pytest.mark.parametrize("reduction", ["none", "sum"])
@pytest.mark.parametrize("maker", [make, planted])
def test_pieces_give_what_the_whole_gives(kernels, small_pieces, maker, method, reduction):
    problem = maker(**SHAPES, dtype=torch.float64)
    options = {"method": method, "reduction": reduction, "fastemit_lambda": 0.3}
    right, right_gradients = ours(problem, tolerance=0.0, reduction=reduction, method="batched", fastemit_lambda=0.3)
    value, gradients = ours(problem, memory_budget=least(problem, method=method), **options)
    assert max(itertools.chain(*small_pieces.values())) > 3  # "guided" may leave a model that knows nothing to "tiled"
    torch.testing.assert_close(value, right, rtol=1e-12, atol=0)
    for name in FLOATS:
        torch.testing.assert_close(gradients[name], right_gradients[name], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_guided_stays_guided_in_pieces(small_pieces, dtype):
    """A confident model: few nodes are exact, in several pieces, with a bound."""
    problem = planted((400,), (60,), 600, 32, sharpness=20.0, dtype=dtype)
    with samplewise.observe() as seen:
        value, gradients = ours(problem, method="guided", memory_budget=least(problem, method="guided"))
    assert seen.methods["guided"] == 1 and seen.exact_share < 0.5 and max(small_pieces["guided"]) > 3
    right, right_gradients = ours(problem, method="tiled")
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(value, right, rtol=4 * torch.finfo(value.dtype).eps + eps / 16, atol=0)
    for name in FLOATS:
        scale = right_gradients[name].abs().max().float()
        assert (
            gradients[name] - right_gradients[name]
        ).abs().max() <= 16 * eps * scale  # sums over 24400 nodes in another order


def test_losses_alone_in_pieces(small_pieces):
    problem = planted(**SHAPES)
    for method in ("tiled", "guided"):
        with torch.no_grad():
            budget = least(problem, method=method, wanted=())
            value, _ = ours(problem, wanted=(), method=method, memory_budget=budget, reduction="none")
            right, _ = ours(problem, wanted=(), method="batched", reduction="none")
        torch.testing.assert_close(value, right)
        assert max(small_pieces[method]) > 3


@pytest.mark.parametrize("method", ["tiled", "guided"])
def test_what_is_not_finite_stays_in_its_utterance(small_pieces, method):
    problem = planted(**SHAPES)
    clean, _ = ours(problem, method=method, reduction="none")
    problem.encoder_out[0, 60, 3] = torch.nan
    value, gradients = ours(problem, method=method, reduction="none", memory_budget=least(problem, method=method))
    assert value[0].isnan() and torch.equal(value[1], clean[1])
    assert (gradients["encoder_out"][0] == 0).all() and gradients["weight"].isfinite().all()
