"""`lattice_loss` and its operator: given log-probabilities of arcs, against the sum over all alignments and the recursion."""

from __future__ import annotations

import math

import pytest
import torch

import samplewise
from samplewise import TransducerError
from samplewise import topology as topologies
from samplewise.kernels import backend
from samplewise.ops.given import given_arcs
from samplewise.reference import reduce
from samplewise.reference_topologies import NOWHERE, enumerated, log_likelihood
from tests.conftest import BACKENDS

KINDS = [topologies.regular(), topologies.modified(), topologies.constrained()]
EVERY = pytest.mark.parametrize("kind", KINDS, ids=str)
FRAMES, LABELS = (4, 1, 3, 2, 5), (2, 0, 3, 3, 1)  # as few as a path has, and fewer
UPSTREAM = torch.linspace(-1, 2, len(FRAMES), dtype=torch.float64) + 0.1


def make(frames=FRAMES, labels=LABELS, dtype=torch.float64, pad=1, seed=0):
    """lp_blank (B, T, U+1), lp_label (B, T, U) and lengths, with some arcs that cannot be, and garbage in the padding."""
    g = torch.Generator().manual_seed(seed)
    B, T, U = len(frames), max(frames) + pad, max(labels) + pad
    lp_blank = torch.randn(B, T, U + 1, generator=g, dtype=torch.float64) - 1
    lp_label = torch.randn(B, T, U, generator=g, dtype=torch.float64) - 1
    lp_label[0, 1, 0] = lp_blank[-1, 0, 1] = -math.inf
    for b, (t, u) in enumerate(zip(frames, labels, strict=True)):
        lp_blank[b, t:], lp_blank[b, :, u + 1 :], lp_label[b, t:], lp_label[b, :, u:] = (math.nan,) * 4
    return lp_blank.to(dtype), lp_label.to(dtype), torch.tensor(frames), torch.tensor(labels)


def truth(lp_blank, lp_label, frames, labels, *, topology, delay_penalty=0.0, by=log_likelihood):
    """Losses (B,), differentiable."""
    losses = []
    for b, (t, u) in enumerate(zip(frames.tolist(), labels.tolist(), strict=True)):
        by_label = torch.nn.functional.pad(lp_label[b, :t, :u], (0, 1), value=NOWHERE)
        found = torch.stack((lp_blank[b, :t, : u + 1], by_label)).clamp(min=NOWHERE)
        penalty = delay_penalty * ((t - 1) / 2 - torch.arange(t, dtype=found.dtype)[:, None])
        total = by(found, topology, penalty)
        losses.append(total if by is enumerated else -total)
    return torch.stack(losses)


def run(loss, problem, upstream, reduction="none", **options):
    """Losses as they are reduced, and gradients by both of what the usable ones are."""
    leaves = [x.clone().requires_grad_() for x in problem[:2]]
    if loss is samplewise.lattice_loss:
        value = loss(*leaves, *problem[2:], reduction=reduction, **options)
        return value.detach(), torch.autograd.grad(value, leaves, upstream.to(value))
    value = loss(*leaves, *problem[2:], **options)
    usable = torch.isfinite(value)
    value = reduce(value, problem[3], reduction)
    kept = value[usable] if reduction == "none" else value
    found = torch.autograd.grad(kept, leaves, upstream[usable] if reduction == "none" else upstream)
    return value.detach(), [x.nan_to_num(0.0) for x in found]


@pytest.mark.parametrize("penalty", [0.0, 0.15, -0.1])
@EVERY
def test_the_sum_over_all_alignments(kind, penalty):
    problem = make()
    options = {"topology": kind, "delay_penalty": penalty}
    value, gradients = run(samplewise.lattice_loss, problem, UPSTREAM, **options)
    right, right_gradients = run(truth, problem, UPSTREAM, **options, by=enumerated)
    right = torch.where(right > -NOWHERE / 2, math.inf, right)
    torch.testing.assert_close(value, right, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradients, tuple(right_gradients), rtol=1e-11, atol=1e-12)
    assert bool(torch.isinf(value).any()) == (kind.name != "regular")
    for gradient in gradients:
        assert bool((gradient[torch.isinf(value)] == 0).all())


@pytest.mark.parametrize("reduction", ["none", "sum", "mean", "mean_volume", "mean_target"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_reductions_and_dtypes(dtype, reduction):
    problem = make((9, 4, 7), (3, 0, 4), dtype)
    upstream = torch.tensor([0.5, -1.0, 2.0]) if reduction == "none" else torch.tensor(0.75)
    value, gradients = run(samplewise.lattice_loss, problem, upstream, reduction)
    wide = (*(x.double() for x in problem[:2]), *problem[2:])
    right, right_gradients = run(truth, wide, upstream.double(), reduction, topology=KINDS[0])
    assert value.dtype == torch.promote_types(dtype, torch.float32) and {x.dtype for x in gradients} == {dtype}
    eps = torch.finfo(value.dtype).eps
    torch.testing.assert_close(value.double(), right, rtol=8 * eps, atol=0)
    for one, two in zip(gradients, right_gradients, strict=True):
        torch.testing.assert_close(one.double(), two, rtol=max(4 * torch.finfo(dtype).eps, 1e-12), atol=8 * eps)


@pytest.mark.parametrize("name", BACKENDS)
@EVERY
def test_every_backend(kind, name):
    problem = make((4, 2), (2, 1))
    with backend.use(name):
        got = run(samplewise.lattice_loss, problem, UPSTREAM[:2], topology=kind, delay_penalty=0.1)
    right = run(truth, problem, UPSTREAM[:2], topology=kind, delay_penalty=0.1)
    torch.testing.assert_close(got[0], right[0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(got[1], tuple(right[1]), rtol=1e-10, atol=1e-12)


@EVERY
def test_posteriors(kind):
    """They are minus the derivatives of each loss, are there without a gradient, too, and outlive a backward."""
    problem = make()
    with torch.no_grad():
        losses, alone = samplewise.lattice_loss(*problem, topology=kind, reduction="none", return_posteriors=True)
    leaves = [x.clone().requires_grad_() for x in problem[:2]]
    value, (blanks, labels) = samplewise.lattice_loss(
        *leaves, *problem[2:], topology=kind, reduction="sum", return_posteriors=True
    )
    assert not blanks.requires_grad and not labels.requires_grad and not losses.requires_grad
    before = blanks.clone(), labels.clone()
    for _ in range(2):
        gradients = torch.autograd.grad(value, leaves, torch.tensor(-3.0).double(), retain_graph=True)
        torch.testing.assert_close(gradients, (3 * blanks, 3 * labels), rtol=0, atol=0)
    assert all(torch.equal(x, y) for x, y in zip((blanks, labels), before, strict=True))
    assert all(torch.equal(x, y) for x, y in zip((blanks, labels), alone, strict=True))
    usable = torch.isfinite(losses)
    torch.testing.assert_close(labels.sum((1, 2)), torch.where(usable, problem[3].double(), 0.0), rtol=1e-12, atol=1e-12)


def test_it_is_rnnt_loss_of_log_probabilities():
    logits = torch.randn(3, 8, 5, 9, dtype=torch.float64)
    targets, frames, labels = torch.randint(1, 9, (3, 4)), torch.tensor([8, 3, 6]), torch.tensor([4, 2, 0])
    log_probs = logits.log_softmax(3)
    lp_label = log_probs[:, :, :-1].gather(3, targets[:, None, :, None].expand(3, 8, 4, 1))[..., 0]
    for kind in KINDS:
        options = {"topology": kind, "delay_penalty": 0.05, "reduction": "sum", "normalizer": 7.0}
        got = samplewise.lattice_loss(log_probs[..., 0], lp_label, frames.int(), labels, **options)
        right = samplewise.rnnt_loss(logits, targets, frames, labels, blank=0, **options)
        torch.testing.assert_close(got, right, rtol=1e-12, atol=0)


def by_hand(lp_blank, lp_label, row, moves, penalty):
    """The score at the last node, by k2's recursion, cell by cell."""
    t0, u0, count, labels = row
    stop = t0 + count
    p = {(t0, u0): torch.zeros((), dtype=lp_blank.dtype)}
    for t in range(t0, stop + 1):
        for u in range(u0, u0 + labels + 1):
            terms = []
            if (t - 1, u) in p:
                terms.append(p[t - 1, u] + lp_blank[t - 1, u])
            if (t - moves, u - 1) in p and t - moves < lp_label.shape[0]:
                late = penalty * ((stop - 1) / 2 - (t - moves))
                terms.append(p[t - moves, u - 1] + lp_label[t - moves, u - 1] + late)
            if terms:
                p[t, u] = torch.logsumexp(torch.stack(terms), 0)
    return p.get((stop, u0 + labels), torch.tensor(-math.inf, dtype=lp_blank.dtype))


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("kind", ["regular", "modified"])
def test_lattices_that_begin_and_end_anywhere(kind, name):
    """Also without frames, and with labels behind the last blank."""
    g = torch.Generator().manual_seed(3)
    lp_blank = torch.randn(4, 4, 4, generator=g, dtype=torch.float64)
    lp_label = torch.randn(4, 4 + (kind == "regular"), 3, generator=g, dtype=torch.float64)
    places = torch.tensor([[0, 0, 4, 3], [1, 1, 2, 2], [2, 3, 1, 0], [1, 0, 0, 2 if kind == "regular" else 0]])
    for b, (t, u, frames, labels) in enumerate(places.tolist()):  # nobody's
        lp_blank[b, :t], lp_blank[b, t + frames :], lp_blank[b, :, :u] = (math.nan,) * 3
        lp_label[b, :t], lp_label[b, t + frames + (kind == "regular") :], lp_label[b, :, u + labels :] = (math.nan,) * 3
    lp_blank, lp_label = lp_blank.requires_grad_(), lp_label.requires_grad_()
    with backend.use(name):
        losses, gammas = given_arcs(lp_blank, lp_label, places, kind, True, 0.1, True)
    right = -torch.stack([
        by_hand(x, y, row, 0 if kind == "regular" else 1, 0.1)
        for x, y, row in zip(lp_blank, lp_label, places.tolist(), strict=True)
    ])  # fmt: skip
    torch.testing.assert_close(losses, right, rtol=1e-12, atol=1e-12)
    upstream = torch.tensor([1.0, -2.0, 0.5, 3.0]).double()
    got = torch.autograd.grad(losses, (lp_blank, lp_label), upstream)
    torch.testing.assert_close(got, torch.autograd.grad(right, (lp_blank, lp_label), upstream), rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(-gammas[0, :, :4] * upstream[:, None, None], got[0], rtol=1e-12, atol=1e-12)
    assert float(gammas[0, :, 4].abs().max()) == 0


def test_without_a_frame_and_with_labels_there_is_no_path():
    places = torch.tensor([[2, 0, 0, 1]])
    losses, gammas = given_arcs(torch.zeros(1, 4, 3), torch.zeros(1, 4, 2), places, "modified", True, 0.0, True)
    assert losses.tolist() == [math.inf] and not bool(gammas.any())


@EVERY
def test_gradcheck_and_opcheck(kind):
    problem = make((4, 3), (2, 1), pad=0)
    leaves = [x.nan_to_num(0.0).clamp(min=-5).requires_grad_() for x in problem[:2]]

    def loss(*arcs):
        return samplewise.lattice_loss(*arcs, *problem[2:], topology=kind, reduction="none", delay_penalty=0.2)

    assert torch.autograd.gradcheck(loss, leaves)
    places = torch.tensor([[0, 0, 4, 2], [1, 1, 2, 1]])
    for open_end in (False, True):
        torch.library.opcheck(given_arcs, (*leaves, places, kind.key, open_end, 0.1, True))


def test_compile_and_double_backward():
    torch._dynamo.reset()
    problem = make((6, 4), (3, 1), pad=0)
    clean = (*(x.nan_to_num(0.0) for x in problem[:2]), *problem[2:])

    def loss(*arguments):
        return samplewise.lattice_loss(arguments[0] * 2, *arguments[1:], reduction="none", topology="modified")

    leaves = [x.clone().requires_grad_() for x in clean[:2]]
    found = torch.compile(loss, fullgraph=True, backend="aot_eager")(*leaves, *clean[2:])
    right = loss(*leaves, *clean[2:])
    torch.testing.assert_close(found, right, rtol=0, atol=0)
    gradients = [torch.autograd.grad(x, leaves, UPSTREAM[:2], retain_graph=True) for x in (found, right)]
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-14)
    with pytest.raises(TransducerError, match="double backward"):
        torch.autograd.grad(right.sum(), leaves, create_graph=True)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"lp_blank": torch.zeros(2, 3)}, ["lp_blank must be (B, T, U+1)", "(2, 3)"]),
        ({"lp_blank": torch.zeros(2, 0, 3)}, ["lp_blank must be", "none of them 0"]),
        ({"lp_label": torch.zeros(2, 5, 3)}, ["lp_label must be (2, 5, 2)", "(2, 5, 3)"]),
        ({"lp_label": torch.zeros(2, 5, 2).double()}, ["lp_label is torch.float64", "share one dtype"]),
        ({"lp_blank": torch.zeros(2, 5, 3).int()}, ["lp_blank is torch.int32"]),
        ({"lp_blank": None}, ["lp_blank is None"]),
        ({"encoder_lengths": torch.tensor([5, 6])}, ["encoder_lengths[1] is 6", "5 frames", "1..5"]),
        ({"encoder_lengths": torch.tensor([0, 5])}, ["encoder_lengths[0] is 0"]),
        ({"target_lengths": torch.tensor([2, 3])}, ["target_lengths[1] is 3", "2 labels", "0..2"]),
        ({"target_lengths": torch.tensor([2, -1])}, ["target_lengths[1] is -1"]),
        ({"target_lengths": torch.tensor([2.0, 1.0])}, ["target_lengths is torch.float32"]),
        ({"encoder_lengths": torch.tensor([5])}, ["encoder_lengths has 1 utterances"]),
        ({"topology": "hat"}, ["topology is 'hat'", "'regular', 'modified', 'constrained'"]),
        ({"topology": topologies.tdt()}, ["topology is 'tdt'"]),
        ({"reduction": "all"}, ["reduction is 'all'"]),
        ({"delay_penalty": math.nan}, ["delay_penalty is nan"]),
    ],
    ids=str,
)
def test_bad_inputs(changes, words):
    given = {
        "lp_blank": torch.zeros(2, 5, 3), "lp_label": torch.zeros(2, 5, 2), "encoder_lengths": torch.tensor([5, 4]),
        "target_lengths": torch.tensor([2, 1]),
    }  # fmt: skip
    with pytest.raises(TransducerError) as caught:
        samplewise.lattice_loss(**{**given, **changes})
    for word in words:
        assert word in str(caught.value), str(caught.value)
