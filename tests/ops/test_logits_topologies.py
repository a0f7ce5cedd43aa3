"""`rnnt_loss` and `joint_loss` of every topology: against the sum over all alignments, the reference, and each other."""

from __future__ import annotations

import pytest
import torch

import samplewise
from samplewise import TransducerError
from samplewise import topology as topologies
from samplewise.kernels import backend
from samplewise.ops.logits import rnnt, rnnt_gradient
from samplewise.reference import reduce, reference_loss_from_logits
from samplewise.reference_topologies import entries, enumerated
from tests.conftest import BACKENDS
from tests.ops.test_logits import run
from tests.problems import FLOOR, Joint, assert_close, error
from tests.test_reference_topologies import TOPOLOGIES

CLASSES = 7
FRAMES, LABELS = (5, 1, 3, 4, 2, 1, 4), (2, 0, 3, 0, 3, 2, 1)  # as few as a path has, fewer, and none at all
READ = [t for t in TOPOLOGIES if t.name != "hat"]  # those that log-probabilities may be given for
REDUCTIONS = ("none", "sum", "mean", "mean_volume", "mean_target")


def blank_of(topology) -> int:
    return CLASSES - 1 if topology.name == "multi_blank" else 2


def make(topology, dtype=torch.float64, frames=FRAMES, labels=LABELS, seed=0):
    """Logits with columns beyond what any utterance needs, targets and both lengths."""
    g = torch.Generator().manual_seed(seed)
    shape = (len(frames), max(frames) + 1, max(labels) + 2, CLASSES + topology.extra)
    logits = (torch.randn(shape, generator=g, dtype=torch.float64) * 2).to(dtype)
    targets = torch.randint(0, 2, (len(frames), max(labels) + 1), generator=g)
    return logits, targets, torch.tensor(frames), torch.tensor(labels)


def normalised(logits, topology):
    """Log-probabilities of classes, and of durations."""
    cut = logits.shape[3] - topology.extra
    return torch.cat((logits[..., :cut].log_softmax(3), logits[..., cut:].log_softmax(3)), 3)


def upstream_of(count):
    return torch.linspace(-1, 2, count, dtype=torch.float64) + 0.1


def by_enumeration(logits, targets, frames, labels, *, topology, blank, fused):
    losses = []
    for b, (t, u) in enumerate(zip(frames.tolist(), labels.tolist(), strict=True)):
        found = entries(logits[b, :t, : u + 1], targets[b, :u], blank, topology, normalise=fused)
        losses.append(enumerated(found, topology))
    return torch.stack(losses)


def masked(loss, *arguments, upstream, **options):
    """Losses, and gradients of those that are finite alone."""
    logits = arguments[0].detach().clone().requires_grad_()
    losses = loss(logits, *arguments[1:], **options)
    usable = torch.isfinite(losses)
    (losses[usable] * upstream[usable]).sum().backward()
    return losses.detach(), logits.grad


@pytest.mark.parametrize(
    ("topology", "fused"), [(t, True) for t in TOPOLOGIES] + [(t, False) for t in READ], ids=lambda x: str(x)
)
def test_the_sum_over_all_alignments(topology, fused):
    """Utterances without any path have an infinite loss and no gradient, and the others are as without them."""
    problem, blank = make(topology), blank_of(topology)
    if not fused:
        problem = (normalised(problem[0], topology), *problem[1:])
    upstream = upstream_of(len(FRAMES))
    truth, right = masked(by_enumeration, *problem, topology=topology, blank=blank, fused=fused, upstream=upstream)
    options = {"topology": topology, "blank": blank, "fused_log_softmax": fused, "reduction": "none"}
    losses, gradient = run(samplewise.rnnt_loss, *problem, upstream=upstream, **options)
    torch.testing.assert_close(losses, truth, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient, right, rtol=1e-10, atol=1e-12)
    assert (gradient[torch.isinf(losses)] == 0).all()
    usable = torch.isfinite(losses)
    again, alone = run(samplewise.rnnt_loss, *(x[usable] for x in problem), upstream=upstream[usable], **options)
    assert torch.equal(again, losses[usable]) and torch.equal(alone, gradient[usable])


def test_lattices_without_a_path_are_among_these():
    """Else the test before says nothing of them."""
    for topology in TOPOLOGIES:
        losses = by_enumeration(*make(topology), topology=topology, blank=blank_of(topology), fused=True)
        durations = dict(topology.parameters).get("durations", ())
        always = topology.name in ("regular", "hat", "multi_blank") or {0, 1} <= set(durations)  # have a path always
        assert bool(torch.isinf(losses).any()) != always, str(topology)
        assert bool(torch.isfinite(losses).any()), str(topology)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("topology", TOPOLOGIES, ids=str)
def test_against_the_reference(topology, dtype):
    """In every dtype and with FastEmit, the reduction going round."""
    problem, blank = make(topology, dtype, (9, 6, 7), (3, 0, 2)), blank_of(topology)
    reduction = REDUCTIONS[TOPOLOGIES.index(topology) % len(REDUCTIONS)]
    upstream = upstream_of(3) if reduction == "none" else torch.tensor(0.7)
    options = {"blank": blank, "reduction": reduction, "fastemit_lambda": 0.3, "topology": topology, "upstream": upstream}
    value, gradient = run(samplewise.rnnt_loss, *problem, **options)
    right, right_gradient = run(reference_loss_from_logits, problem[0].double(), *problem[1:], **options)
    real = torch.promote_types(dtype, torch.float32)
    usual, usual_gradient = run(reference_loss_from_logits, *problem, dtype=real, **options)
    floor = FLOOR[dtype] * torch.finfo(dtype).eps
    assert value.dtype == real and gradient.dtype == dtype
    assert_close("loss", value, right, 2 * error(usual, right) + min(floor, 1e-6))
    assert_close("logits", gradient, right_gradient, 3 * error(usual_gradient, right_gradient) + floor)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("fused", [True, False])
def test_clamp_and_reductions(reduction, fused):
    """It bounds each utterance's gradient, durations' too, before the reduction's weight and the upstream gradient."""
    topology = topologies.tdt((0, 1, 2), sigma=0.05)
    problem = make(topology, frames=(6, 4, 3), labels=(2, 0, 3))
    if not fused:
        problem = (normalised(problem[0], topology), *problem[1:])
    options = {"topology": topology, "blank": 2, "fused_log_softmax": fused}
    losses, plain = run(samplewise.rnnt_loss, *problem, reduction="none", **options)
    leaf = losses.clone().requires_grad_()
    upstream = upstream_of(3) if reduction == "none" else torch.tensor(-3.0).double()
    value = reduce(leaf, problem[3], reduction)
    value.backward(upstream)
    got, gradient = run(samplewise.rnnt_loss, *problem, clamp=0.05, reduction=reduction, upstream=upstream, **options)
    torch.testing.assert_close(got, value.detach(), rtol=1e-13, atol=0)
    torch.testing.assert_close(gradient, plain.clamp(-0.05, 0.05) * leaf.grad[:, None, None, None], rtol=1e-12, atol=1e-14)
    assert (plain[..., -3:].abs() > 0.05).any() and (plain[..., :-3].abs() > 0.05).any()


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("topology", [topologies.constrained(), topologies.hat(), topologies.tdt((0, 2))], ids=str)
def test_on_every_backend(topology, name):
    problem = make(topology, frames=(4, 2), labels=(2, 1))
    options = {"topology": topology, "blank": 2, "reduction": "none", "upstream": upstream_of(2)}
    right = run(reference_loss_from_logits, *problem, **options)
    with backend.use(name):
        got = run(samplewise.rnnt_loss, *problem, **options)
    torch.testing.assert_close(got, right, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("topology", TOPOLOGIES, ids=str)
def test_the_guilty_utterance_alone(topology, value):
    clean, blank = make(topology, torch.float32, (6, 6, 6), (2, 3, 2)), blank_of(topology)
    logits = clean[0].clone()
    logits[1, 0, 0] = value
    logits[:, 6:], logits[:, :, 4:] = value, value  # nobody's
    options = {"topology": topology, "blank": blank, "reduction": "none"}
    losses, gradient = run(samplewise.rnnt_loss, logits, *clean[1:], **options)
    right, right_gradient = run(samplewise.rnnt_loss, *clean, **options)
    assert not torch.isfinite(losses[1]) and (gradient[1] == 0).all()
    assert torch.equal(losses[::2], right[::2]) and torch.equal(gradient[::2], right_gradient[::2])


@pytest.mark.parametrize(
    "topology, changes, words",
    [
        (topologies.multi_blank((2, 4)), {"targets": torch.full((7, 4), 5)}, ["targets[0, 0] is 5", "blank", "6 or 5 or 4"]),
        (topologies.multi_blank((2,), classes=(6,)), {}, ["class 6", "blank 6"]),
        (topologies.tdt((0, 1)), {"targets": torch.full((7, 4), 7)}, ["targets[0, 0] is 7", "7 classes"]),
        (topologies.tdt((0, 1)), {"logits": torch.zeros(7, 6, 5, 2), "blank": 0}, ["2 columns of logits", "2 for durations"]),
        (topologies.tdt((0, 1)), {"blank": 7}, ["blank is 7", "7 classes"]),
        (topologies.hat(), {"fused_log_softmax": False}, ["fused_log_softmax is False", "hat", "score", "regular"]),
        ("tdt2", {}, ["topology is 'tdt2'", "multi_blank"]),
        (3, {}, ["topology is", "int"]),
    ],
    ids=str,
)
def test_bad_inputs(topology, changes, words):
    problem = make(topology if isinstance(topology, topologies.Topology) else topologies.regular())
    given = dict(zip(("logits", "targets", "logit_lengths", "target_lengths"), problem, strict=True))
    with pytest.raises(TransducerError) as caught:
        samplewise.rnnt_loss(**{**given, "blank": CLASSES - 1, **changes}, topology=topology)
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_the_blank_is_the_last_class_by_default():
    topology = topologies.tdt((0, 1, 3))
    problem = make(topology)
    assert torch.equal(
        samplewise.rnnt_loss(*problem, topology=topology, reduction="none"),
        samplewise.rnnt_loss(*problem, topology=topology, reduction="none", blank=CLASSES - 1),
    )


@pytest.mark.parametrize("fused", [True, False])
def test_opcheck(fused):
    topology = topologies.tdt((0, 1, 2), sigma=0.1)
    logits, *integers = make(topology, frames=(4, 3), labels=(2, 1))
    leaf = normalised(logits, topology).requires_grad_()
    torch.library.opcheck(rnnt, (leaf, *integers, 2, 0.1, fused, 0.3, topology.key, True, "keep"))
    _, *state = rnnt(leaf.detach(), *integers, 2, 0.1, fused, 0.3, topology.key, True, "keep")
    arguments = (leaf.detach(), *integers, *state, torch.ones(2, dtype=torch.float64), 2, 0.1, fused, topology.key)
    torch.library.opcheck(rnnt_gradient, arguments)


@pytest.mark.parametrize("topology", ["hat", topologies.tdt((0, 1, 2), sigma=0.02)], ids=str)
def test_compile(topology):
    torch._dynamo.reset()
    problem = make(topology if isinstance(topology, topologies.Topology) else topologies.hat())

    def loss(logits, *integers):
        return samplewise.rnnt_loss(logits * 2, *integers, reduction="none", topology=topology)

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(run(compiled, *problem), run(loss, *problem), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("reduction", ["none", "mean_target"])
@pytest.mark.parametrize("topology", TOPOLOGIES, ids=str)
def test_joint_loss(topology, reduction):
    """Of a joint whose output layer has the topology's columns."""
    encoder_out, predictor_out = (torch.randn(3, n, 4, dtype=torch.float64, requires_grad=True) for n in (6, 4))
    joint = Joint(torch.nn.Linear(4, CLASSES + topology.extra, dtype=torch.float64))
    integers = torch.randint(0, 2, (3, 3)), torch.tensor([6, 3, 4]), torch.tensor([2, 0, 1])
    options = {"blank": blank_of(topology), "topology": topology, "reduction": reduction, "fastemit_lambda": 0.2}
    options["delay_penalty"] = 0.1
    leaves = (encoder_out, predictor_out, *joint.parameters())
    upstream = upstream_of(3) if reduction == "none" else torch.tensor(0.7).double()
    got = samplewise.joint_loss(joint, encoder_out, predictor_out, *integers, **options)
    right = reference_loss_from_logits(joint(encoder_out[:, :, None], predictor_out[:, None]), *integers, **options)
    torch.testing.assert_close(got, right, rtol=1e-12, atol=1e-12)
    for one, two in zip(*(torch.autograd.grad(x, leaves, upstream) for x in (got, right)), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-12)


def test_joint_loss_says_what_is_wrong():
    encoder_out, predictor_out = torch.zeros(1, 3, 4), torch.zeros(1, 2, 4)
    integers = torch.tensor([[5]]), torch.tensor([3]), torch.tensor([1])
    joint = Joint(torch.nn.Linear(4, CLASSES))
    with pytest.raises(TransducerError, match=r"targets\[0, 0\] is 5, but that is a blank"):
        samplewise.joint_loss(joint, encoder_out, predictor_out, *integers, blank=6, topology=topologies.multi_blank((2,)))
    with pytest.raises(TransducerError, match=r"7 columns of the joint's logits, of which tdt.* takes 8 for durations"):
        samplewise.joint_loss(joint, encoder_out, predictor_out, *integers, topology=topologies.tdt(range(8)))


@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize(
    ("topology", "fused"), [(t, True) for t in TOPOLOGIES] + [(t, False) for t in READ], ids=lambda x: str(x)
)
def test_delay_penalty(topology, fused, reduction):
    """It is added to labels, whatever their probabilities are made of, and does not depend on padding."""
    logits, *integers = make(topology, frames=(9, 6, 7), labels=(3, 0, 2))
    logits = logits if fused else normalised(logits, topology)
    upstream = upstream_of(3) if reduction == "none" else torch.tensor(0.7)
    options = {
        "blank": blank_of(topology), "reduction": reduction, "topology": topology, "fused_log_softmax": fused,
        "delay_penalty": 0.11, "fastemit_lambda": 0.2, "upstream": upstream,
    }  # fmt: skip
    got, right = (run(loss, logits, *integers, **options) for loss in (samplewise.rnnt_loss, reference_loss_from_logits))
    torch.testing.assert_close(got, right, rtol=1e-10, atol=1e-12)
    assert not torch.allclose(run(samplewise.rnnt_loss, logits, *integers, **{**options, "delay_penalty": 0.0})[0], right[0])


def test_a_delay_penalty_that_is_no_number():
    with pytest.raises(TransducerError, match="delay_penalty is nan"):
        samplewise.rnnt_loss(*make(topologies.regular()), delay_penalty=float("nan"))
