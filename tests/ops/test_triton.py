"""The losses from end to end on Triton's kernels, in its interpreter: every method, reduction and way to call."""

import pytest
import torch

import samplewise
from samplewise.kernels import backend
from samplewise.reference import reference_loss_from_logits
from tests.problems import assert_as_good_as_plain, error, make, ours, planted, run, truth, upstream

fused_emission = pytest.importorskip("samplewise.kernels.triton", reason="Triton is not installed").fused_emission
METHODS = ("batched", "samplewise", "tiled", "guided", "auto")
SHAPES = {"frames": (9, 4, 1), "labels": (3, 0, 2), "vocab": 130, "dim": 6}


@pytest.fixture(autouse=True)
def on_triton():
    with backend.use("triton") as module:
        yield module


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "dtype, activation, reduction, tolerance",
    [
        (torch.float32, "tanh", "sum", None),
        (torch.float64, "gelu", "none", 0.0),
        (torch.bfloat16, "relu", "none", None),
        (torch.float16, "silu", "mean", 0.0),
    ],
    ids=str,
)
def test_the_whole_loss(method, dtype, activation, reduction, tolerance):
    shapes = {**SHAPES, "dtype": dtype, "blank": -1}
    options = {"activation": activation, "reduction": reduction}
    assert_as_good_as_plain(make, shapes, options, method=method, tolerance=tolerance, slack=4e-7)


@pytest.mark.parametrize("method", ["tiled", "guided"])
def test_many_tiles_and_groups(method):
    """In the least memory that works, and in as much as keeps everything."""
    problem = planted((9, 6, 5), (3, 4, 1), vocab=130, dim=6, dtype=torch.float64)
    right, right_gradients = truth(problem, reduction="none", upstream=upstream(problem))
    with pytest.raises(samplewise.TransducerError, match="needs at least") as refusal:
        ours(problem, method=method, memory_budget=1)
    least = int(str(refusal.value).split("needs at least ")[1].split()[0])
    for budget in (least, "1GiB"):
        options = {"method": method, "memory_budget": budget, "tolerance": 1e-9}
        value, gradients = ours(problem, reduction="none", upstream=upstream(problem), **options)
        assert error(value, right) < 1e-8
        assert all(error(gradients[name], right_gradients[name]) < 1e-7 for name in gradients)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_guided_leaves_nodes_out_and_is_tiled(dtype, monkeypatch):
    """On the bounds of Triton's kernel most nodes need no softmax; the loss is that of all nodes."""
    problem = planted((40, 25), (6, 4), vocab=130, dim=16, dtype=dtype, sharpness=40)
    right, right_gradients = ours(problem, method="tiled", reduction="none", upstream=upstream(problem), tolerance=0.0)
    monkeypatch.setattr("samplewise.ops.bounds.LARGE", 0)
    monkeypatch.setattr("samplewise.ops.guided.LATTICE_WORK", 0)  # so small a problem would not be worth a second round
    with samplewise.observe() as seen:
        value, gradients = ours(problem, method="guided", reduction="none", upstream=upstream(problem))
    assert {group.method for group in seen.groups} == {"guided"}
    assert all(group.exact_nodes < 0.8 * group.nodes for group in seen.groups)
    slack = {torch.float64: (1e-11, 1e-9), torch.float32: (2e-6, 1e-4), torch.bfloat16: (5e-3, 2e-2)}[dtype]
    assert error(value, right) < slack[0]
    assert all(error(gradients[name], right_gradients[name]) < slack[1] for name in gradients)


@pytest.mark.parametrize("method", ["tiled", "guided"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_fused_emission(method, dtype, monkeypatch):
    """The same loss where joint encodings and logits of the first pass are never written; and it is that kernel that runs."""
    calls = []

    def fused(*arguments):
        calls.append(len(arguments[2]))
        fused_emission(*arguments)

    monkeypatch.setattr(backend, "FUSED", True)
    monkeypatch.setattr("samplewise.kernels.triton.fused_emission", fused)
    problem = make(**{**SHAPES, "dtype": dtype})
    with pytest.raises(samplewise.TransducerError, match="needs at least") as refusal:
        ours(problem, method=method, memory_budget=1)
    least = int(str(refusal.value).split("needs at least ")[1].split()[0])
    assert_as_good_as_plain(
        make, {**SHAPES, "dtype": dtype}, {"reduction": "sum"}, method=method, memory_budget=least, slack=4e-7
    )
    assert calls and max(calls) <= 9 * 4 + 4 + 3


def test_an_utterance_that_is_not_finite():
    """It keeps its loss to itself."""
    problem = make(**SHAPES)
    problem.encoder_out[0, 2] = float("nan")
    value, gradients = ours(problem, reduction="none", method="tiled")
    assert value.isfinite().tolist() == [False, True, True]
    assert all(gradient.isfinite().all() for gradient in gradients.values())
    assert (gradients["encoder_out"][0] == 0).all() and (gradients["encoder_out"][1] != 0).any()


@pytest.mark.parametrize("fused, clamp", [(True, -1.0), (False, 0.1)])
def test_logits(fused, clamp):
    problem = make(**SHAPES)
    logits = torch.randn(3, 9, 4, 130)
    logits = logits if fused else logits.log_softmax(3)
    integers = (problem.targets, problem.encoder_lengths, problem.target_lengths)

    def of(loss, **options):
        leaf = logits.clone().requires_grad_()
        value = loss(leaf, *integers, blank=0, reduction="none", fused_log_softmax=fused, **options)
        value.backward(upstream(problem).to(value) if clamp < 0 else torch.ones_like(value))
        return value.detach(), leaf.grad if clamp < 0 else leaf.grad.clamp(-clamp, clamp)

    got, right = of(samplewise.rnnt_loss, clamp=clamp), of(reference_loss_from_logits)
    assert error(got[0], right[0]) < 1e-6 and error(got[1], right[1]) < 1e-5


def test_any_joint():
    """joint_loss with what transducer_loss computes by itself."""
    problem = make(**SHAPES)

    def loss(encoder_out, predictor_out, weight, bias, targets, encoder_lengths, target_lengths, blank):
        joint = torch.nn.Sequential(torch.nn.Tanh(), torch.nn.Linear(6, 130))
        joint[1].weight, joint[1].bias = torch.nn.Parameter(weight.detach()), torch.nn.Parameter(bias.detach())
        add = torch.nn.Module()
        add.joint, add.forward = joint, lambda a, b: joint(a + b)
        return samplewise.joint_loss(
            add, encoder_out, predictor_out, targets, encoder_lengths, target_lengths, blank=blank, reduction="sum"
        )

    wanted = ("encoder_out", "predictor_out")
    value, gradients = run(loss, problem, wanted=wanted)
    right, right_gradients = truth(problem, reduction="sum", wanted=wanted)
    assert error(value, right) < 1e-6
    assert all(error(gradients[name], right_gradients[name]) < 1e-5 for name in wanted)


def test_sampled_classes():
    problem = make(**SHAPES)
    vocabulary = samplewise.sample_vocabulary(problem.targets, problem.target_lengths, 130, 20, scope="utterance")
    with backend.use("eager"):
        right, right_gradients = ours(problem, vocabulary=vocabulary)
    value, gradients = ours(problem, vocabulary=vocabulary)
    assert error(value, right) < 1e-6
    assert all(error(gradients[name], right_gradients[name]) < 1e-5 for name in gradients)


def test_deterministic_algorithms():
    """Sums are ordered then whatever the order of rows; new memory, filled with NaN then, is never read."""
    problem = make(**SHAPES)
    right = ours(problem, method="tiled")
    torch.use_deterministic_algorithms(True)
    try:
        value, gradients = ours(problem, method="tiled")
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(value, right[0])
    assert all(torch.equal(gradients[name], right[1][name]) for name in gradients)
