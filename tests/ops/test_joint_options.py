"""Dropout inside the joint and a bound of the gradient's elements: the same mask everywhere, and the same bound."""

import pytest
import torch

import samplewise
from samplewise import TransducerError, topology
from samplewise.kernels import backend
from samplewise.kernels.eager.dropout import kept, keys
from samplewise.kernels.masks import dropout_of
from samplewise.ops import guided
from samplewise.reference import reference_loss_from_logits
from tests.ops.test_topologies import METHODS, UPSTREAM, both, compare, make
from tests.problems import FLOATS

KINDS = [topology.regular(), topology.hat(), topology.tdt(sigma=0.02)]
EVERY = pytest.mark.parametrize("kind", KINDS, ids=str)


def mask_of(problem, probability, seed):
    """(B, T, U+1, D): what joint encodings are multiplied with."""
    B, T, D = problem.encoder_out.shape
    width = problem.predictor_out.shape[1]
    dropout = dropout_of(probability, seed, T, width, 0)
    nodes = torch.meshgrid(torch.arange(B), torch.arange(T), torch.arange(width), indexing="ij")
    return kept(dropout, keys(dropout, *nodes), D).double() * dropout.scale


@pytest.mark.parametrize(("kernels", "activation"), [("eager", "tanh"), ("numba", "relu"), ("numba", "gelu")])
@pytest.mark.parametrize("method", METHODS)
@EVERY
def test_dropout_is_a_dense_joint_with_that_mask(kind, method, kernels, activation, monkeypatch):
    monkeypatch.setattr(guided, "LATTICE_WORK", 0)
    monkeypatch.setattr(guided, "knows_nothing", lambda *_: False)
    problem = make(kind, (24, 11), (5, 4), vocab=30, dim=24)
    with backend.use(kernels):
        compare(
            *both(
                problem, kind, UPSTREAM[:2], method=method, dropout=0.3, dropout_seed=-77, activation=activation,
                mask=mask_of(problem, 0.3, -77),
            )
        )  # fmt: skip


def test_the_mask_does_not_depend_on_padding_or_on_what_follows():
    kind = topology.regular()
    problem = make(kind, (24, 11), (5, 4), vocab=30, dim=24)
    arguments = [getattr(problem, name) for name in FLOATS]
    options = {"reduction": "none", "dropout": 0.5, "dropout_seed": 5}
    right = samplewise.transducer_loss(
        *arguments, problem.targets, problem.encoder_lengths, problem.target_lengths, **options
    )  # fmt: skip
    padded = torch.nn.functional.pad(arguments[0], (0, 0, 0, 9)), torch.nn.functional.pad(arguments[1], (0, 0, 0, 3))
    found = samplewise.transducer_loss(
        *padded, *arguments[2:], problem.targets, problem.encoder_lengths, problem.target_lengths, **options
    )  # fmt: skip
    torch.testing.assert_close(found, right, rtol=1e-12, atol=0)
    alone = samplewise.transducer_loss(
        arguments[0][:1], arguments[1][:1], *arguments[2:], problem.targets[:1], problem.encoder_lengths[:1],
        problem.target_lengths[:1], **options,
    )  # fmt: skip
    torch.testing.assert_close(alone, right[:1], rtol=1e-12, atol=0)
    sampled = samplewise.transducer_loss(
        *arguments, problem.targets, problem.encoder_lengths, problem.target_lengths, **options,
        vocabulary=samplewise.sample_vocabulary(problem.targets, problem.target_lengths, 30, 30, scope="utterance"),
    )  # fmt: skip
    torch.testing.assert_close(sampled, right, rtol=1e-12, atol=0)


def test_a_seed_that_is_not_given_is_drawn_from_the_default_generator():
    problem = make(topology.regular(), (9,), (2,))
    arguments = [getattr(problem, name) for name in FLOATS]
    arguments += [problem.targets, problem.encoder_lengths, problem.target_lengths]
    losses = []
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        losses.append(float(samplewise.transducer_loss(*arguments, dropout=0.5)))
    assert losses[0] == losses[2] != losses[1]


def test_how_much_is_dropped():
    dropout = dropout_of(0.2, 12345, 40, 10, 0)
    nodes = torch.meshgrid(torch.arange(3), torch.arange(40), torch.arange(10), indexing="ij")
    stays = kept(dropout, keys(dropout, *(x.reshape(-1) for x in nodes)), 256).double()
    assert abs(float(stays.mean()) - 0.8) < 4 * (0.16 / stays.numel()) ** 0.5
    for axis in (0, 1):  # rows and columns are alike, and no two go together
        assert float((stays.mean(axis) - 0.8).abs().max()) < 5 * (0.16 / stays.shape[axis]) ** 0.5
    together = torch.corrcoef(stays.t()).fill_diagonal_(0.0).abs().max()
    assert float(together) < 5.5 / stays.shape[0] ** 0.5


@pytest.mark.parametrize("method", METHODS)
@EVERY
def test_clamp_bounds_the_gradient_of_each_utterance_before_its_weight(kind, method):
    limit = 0.05
    problem = make(kind, (24, 11), (5, 4), vocab=30)
    found, _ = both(problem, kind, UPSTREAM[:2], method=method, clamp=limit)
    floats = [getattr(problem, name).clone().requires_grad_() for name in FLOATS]
    scores = torch.tanh(floats[0][:, :, None] + floats[1][:, None]) @ floats[2].t() + floats[3]
    leaf = scores.detach().requires_grad_()
    losses = reference_loss_from_logits(
        leaf, problem.targets, problem.encoder_lengths, problem.target_lengths, blank=problem.blank, topology=kind,
        reduction="none",
    )  # fmt: skip
    whole = torch.autograd.grad(losses.sum(), leaf)[0]
    assert whole.abs().max() > 2 * limit
    bounded = whole.clamp(-limit, limit) * UPSTREAM[:2, None, None, None]
    compare(found, (losses.detach(), torch.autograd.grad(scores, floats, bounded)))


@pytest.mark.parametrize(("name", "value"), [("dropout", 1.0), ("dropout", -0.1), ("dropout_seed", 0.5), ("clamp", "much")])
def test_what_is_refused(name, value):
    problem = make(topology.regular(), (9,), (2,))
    arguments = [getattr(problem, name) for name in FLOATS]
    with pytest.raises(TransducerError, match=name):
        samplewise.transducer_loss(
            *arguments, problem.targets, problem.encoder_lengths, problem.target_lengths, **{name: value}
        )  # fmt: skip


def test_clamp_in_float16():
    """Any limit, and rare classes no worse than without: what is bounded is scaled as all gradients are."""
    problem = make(topology.regular(), (30, 20), (6, 4), vocab=900, dim=16, dtype=torch.float16)
    (_, right), _ = both(problem, topology.regular(), UPSTREAM[:2])
    (_, found), truth = both(problem, topology.regular(), UPSTREAM[:2], clamp=1e9)
    for gradient, other, exact in zip(found, right, truth[1], strict=True):
        error, usual = ((x.double() - exact).abs().max() for x in (gradient, other))
        assert error <= 1.5 * usual + 1e-6


def test_a_clamp_that_is_no_number_and_a_dropout_next_to_one():
    problem = make(topology.regular(), (9,), (2,))
    arguments = [getattr(problem, name) for name in FLOATS]
    arguments += [problem.targets, problem.encoder_lengths, problem.target_lengths]
    with pytest.raises(TransducerError, match="clamp is nan"):
        samplewise.transducer_loss(*arguments, clamp=float("nan"))
    assert torch.isfinite(samplewise.transducer_loss(*arguments, dropout=1 - 1e-11, dropout_seed=1))
