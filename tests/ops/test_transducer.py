"""`transducer_loss` as PyTorch sees it: registered operators, autograd, torch.compile, and what a second backward does."""

import copy
import gc
import shutil
import weakref

import pytest
import torch

import samplewise
from samplewise import TransducerError
from samplewise.functional import reduction_weights
from samplewise.ops.transducer import Options, transducer_each, transducer_sum
from tests.problems import FLOATS, error, make, ours, truth, upstream

METHODS = ("batched", "samplewise", "tiled", "guided")
REDUCTIONS = ("none", "sum", "mean")


def arguments(dtype=torch.float32, bias=True, **changes):
    """Inputs, and options in the order of the operators."""
    problem = make((5, 3), (2, 0), vocab=5, dim=3, dtype=dtype, bias=bias)
    inputs = [x.requires_grad_() if x is not None and x.is_floating_point() else x for x in problem.inputs.values()]
    inputs += [None, None, None]  # no sampled vocabulary, no alignment
    options = Options(0, "tanh", "tiled", 0, 0.0, 0.0, dtype, "keep")._replace(**changes)
    return inputs, options


@pytest.mark.parametrize("rows", [0, 1, 2], ids=["all classes", "sampled by batch", "sampled by utterance"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("method", METHODS)
def test_opcheck(method, bias, rows):
    inputs, options = arguments(method=method, bias=bias, fastemit_lambda=0.1)
    if rows:
        inputs[-3:-1] = torch.tensor([[0, 1, 2, 3, 4]] * rows), torch.zeros(rows, 5, dtype=torch.float64)
    wanted = 15 if bias else 7
    weights = torch.ones(2, dtype=torch.float64)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(transducer_each, (*inputs, wanted, *options), test_utils=(*checks, "test_aot_dispatch_dynamic"))
    # The gradients among the outputs of transducer_sum belong to its backward, which scales them in place. Tracing all outputs
    # ahead of time would return them from the forward; test_compile traces the one that is public.
    torch.library.opcheck(transducer_sum, (*inputs, weights, wanted, *options), test_utils=checks)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("wanted", [0, 1, 6, 8, 15])
def test_fake_outputs_are_like_real_ones(wanted, dtype):
    """Shapes, dtypes and strides of what torch.compile expects are those of what comes."""
    inputs, options = arguments(dtype)
    weights = torch.ones(2, dtype=torch.float64)
    for op, given in ((transducer_each, (wanted, *options)), (transducer_sum, (weights, wanted, *options))):
        real = op(*inputs, *given)
        with torch._subclasses.FakeTensorMode() as mode:
            fake = op(*(mode.from_tensor(x) if isinstance(x, torch.Tensor) else x for x in (*inputs, *given)))
        both = zip(*((x,) if isinstance(x, torch.Tensor) else x for x in (real, fake)), strict=True)
        for got, expected in both:
            assert (got.shape, got.dtype, got.stride()) == (expected.shape, expected.dtype, expected.stride())


class Again(torch.autograd.Function):
    """Runs the loss once more in each backward, as gradcheck asks for many over one graph."""

    @staticmethod
    def forward(ctx, loss, *floats):
        ctx.loss = loss
        ctx.save_for_backward(*floats)
        with torch.no_grad():
            return loss(*floats)

    @staticmethod
    def backward(ctx, upstream):
        floats = [x.detach().requires_grad_() for x in ctx.saved_tensors]
        with torch.enable_grad():
            loss = ctx.loss(*floats)
        return None, *torch.autograd.grad(loss, floats, upstream)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("reduction", ["none", "sum", "mean_volume", "mean_target"])
@pytest.mark.parametrize("activation", ["tanh", "silu"])
def test_gradcheck(method, reduction, activation):
    problem = make((4, 2, 3), (2, 3, 0), vocab=4, dim=3, dtype=torch.float64)
    floats = [getattr(problem, name).requires_grad_() for name in FLOATS]
    integers = (problem.targets, problem.encoder_lengths, problem.target_lengths)

    def loss(*x):
        return samplewise.transducer_loss(
            *x, *integers, method=method, reduction=reduction, activation=activation, tolerance=0.0
        )

    assert torch.autograd.gradcheck(lambda *x: Again.apply(loss, *x), floats)


def test_gradcheck_can_fail():
    problem = make((4, 2), (2, 1), vocab=4, dim=3, dtype=torch.float64)
    floats = [getattr(problem, name).requires_grad_() for name in FLOATS]
    integers = (problem.targets, problem.encoder_lengths, problem.target_lengths)

    def loss(*x):
        return samplewise.transducer_loss(*x, *integers, tolerance=0.5)

    with pytest.raises(RuntimeError, match="Jacobian mismatch"):
        torch.autograd.gradcheck(lambda *x: Again.apply(loss, *x), floats)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("reduction", [name for name in REDUCTIONS if name != "none"])
def test_second_backward_is_refused(method, reduction):
    problem = make()
    weight = problem.weight.requires_grad_()
    loss = samplewise.transducer_loss(**problem.inputs, method=method, reduction=reduction).sum()
    loss.backward(retain_graph=True)
    first = weight.grad.clone()
    with pytest.raises(TransducerError, match=r"already backpropagated.*retain_graph"):
        loss.backward()
    assert torch.equal(weight.grad, first), "the refused backward changed the gradient"


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_double_backward_is_refused(reduction):
    problem = make()
    weight = problem.weight.requires_grad_()
    loss = samplewise.transducer_loss(**problem.inputs, reduction=reduction).sum()
    with pytest.raises(TransducerError, match="double backward is not supported"):
        torch.autograd.grad(loss, weight, create_graph=True)


def test_two_losses_of_the_same_inputs():
    """Two calls are two graphs: both can be run, and their gradients add up."""
    problem = make(dtype=torch.float64)
    weight = problem.weight.requires_grad_()
    one, two = (samplewise.transducer_loss(**problem.inputs, reduction=r) for r in ("sum", "mean"))
    (one + 2 * two).backward()
    _, right = truth(problem, reduction="sum", wanted=("weight",))
    assert error(weight.grad, right["weight"] * (1 + 2 / 3)) < 1e-12


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_gradients_may_be_scaled_in_place(reduction):
    """Whatever is done to a gradient afterwards reaches no other."""
    problem = make(dtype=torch.float64)
    leaves = [getattr(problem, name).requires_grad_() for name in FLOATS]
    for _ in range(2):  # accumulation
        samplewise.transducer_loss(**problem.inputs, reduction=reduction).sum().backward()
    _, right = truth(problem, reduction=reduction)
    for name, leaf in zip(FLOATS, leaves, strict=True):
        assert error(leaf.grad, 2 * right[name]) < 1e-12
        leaf.grad.mul_(0)
    assert [leaf.grad.abs().max().item() for leaf in leaves] == [0, 0, 0, 0]


@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_the_graph_goes_with_the_loss(reduction):
    """Nothing keeps inputs or gradients alive after the loss is gone."""
    problem = make()
    problem.weight.requires_grad_()
    loss = samplewise.transducer_loss(**problem.inputs, reduction=reduction).sum()
    node = weakref.ref(loss)
    loss.backward()
    del loss
    gc.collect()
    assert node() is None


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.predictor = torch.nn.Linear(4, 6), torch.nn.Embedding(9, 6)
        self.output = torch.nn.Linear(6, 9)

    def forward(self, x, targets, encoder_lengths, target_lengths, reduction, method):
        labels = torch.nn.functional.pad(targets, (1, 0))
        return samplewise.transducer_loss(
            self.encoder(x), self.predictor(labels), self.output.weight, self.output.bias, targets, encoder_lengths,
            target_lengths, reduction=reduction, method=method,
        )  # fmt: skip


def batch(frames, labels, seed=0):
    g = torch.Generator().manual_seed(seed)
    targets = torch.randint(1, 9, (len(labels), max(labels)), generator=g)
    return torch.randn(len(frames), max(frames), 4, generator=g), targets, torch.tensor(frames), torch.tensor(labels)


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("method", ["batched", "auto"])
def test_compile(reduction, dynamic, method):
    """One graph, no break, for forward and backward; with dynamic shapes it also serves other sizes."""
    torch._dynamo.reset()
    eager = Network()
    compiled = copy.deepcopy(eager)
    step = torch.compile(compiled, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    sizes = [((7, 5), (3, 2))] + [((11, 4, 6), (2, 5, 0)), ((9, 3, 3), (1, 4, 2))] * dynamic
    for frames, labels in sizes:
        losses = []
        for network, call in ((eager, eager), (compiled, step)):
            network.zero_grad()
            loss = call(*batch(frames, labels), reduction, method)
            loss.sum().backward()
            losses.append(loss)
        torch.testing.assert_close(losses[1], losses[0])
        for one, two in zip(compiled.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(one.grad, two.grad)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler's own modules
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor compiles C++; install g++")
def test_compile_with_inductor():
    torch._dynamo.reset()
    problem = make((7, 5), (3, 2), vocab=9, dim=6)

    def loss(**inputs):
        return samplewise.transducer_loss(**inputs, reduction="mean")

    weight, again = problem.weight.clone().requires_grad_(), problem.weight.clone().requires_grad_()
    value = loss(**{**problem.inputs, "weight": weight})
    value.backward()
    compiled = torch.compile(loss, fullgraph=True)(**{**problem.inputs, "weight": again})
    compiled.backward()
    torch.testing.assert_close(compiled, value)
    torch.testing.assert_close(again.grad, weight.grad)


def test_reduction_weights():
    lengths = torch.tensor([2, 0, 3])
    assert reduction_weights("mean_target", lengths).tolist() == [1 / 6, 1 / 3, 1 / 9]
    assert reduction_weights("mean_volume", torch.tensor([0, 0])).tolist() == [1, 1]
    assert reduction_weights("mean", lengths).sum() == 1


@pytest.mark.parametrize("method", METHODS)
def test_upstream_that_is_expanded(method):
    """losses.sum() sends back one number seen B times."""
    problem = make(dtype=torch.float64)
    weight = problem.weight.requires_grad_()
    samplewise.transducer_loss(**problem.inputs, reduction="none", method=method).sum().backward()
    _, right = truth(problem, reduction="sum", wanted=("weight",))
    assert error(weight.grad, right["weight"]) < 1e-12


@pytest.mark.parametrize("method", METHODS)
def test_inside_checkpointing(method):
    """Activation checkpointing runs the forward twice; the gradients are those of one."""
    problem = make(dtype=torch.float64)
    leaves = [getattr(problem, name).requires_grad_() for name in FLOATS]
    integers = (problem.targets, problem.encoder_lengths, problem.target_lengths)

    def loss(*floats):
        return samplewise.transducer_loss(*floats, *integers, method=method)

    torch.utils.checkpoint.checkpoint(loss, *leaves, use_reentrant=False).backward()
    _, right = truth(problem)
    for name, leaf in zip(FLOATS, leaves, strict=True):
        assert error(leaf.grad, right[name]) < 1e-12


@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_hooks_see_the_gradients(reduction):
    problem = make()
    seen = []
    problem.weight.requires_grad_().register_hook(seen.append)
    _, right = ours(problem, reduction=reduction, upstream=upstream(problem) if reduction == "none" else None)
    loss = samplewise.transducer_loss(**problem.inputs, reduction=reduction)
    loss.backward(upstream(problem).float() if reduction == "none" else torch.ones(()))
    assert len(seen) == 1
    torch.testing.assert_close(seen[0], right["weight"])
