"""How exact the loss is where others were not: long lattices, confident models, half precision, many tiles, autocast."""

import functools

import pytest
import torch

import samplewise
from samplewise.reference import reference_loss_from_logits
from tests.problems import FLOATS, assert_as_good_as_plain, assert_close, error, make, ours, plain, planted, truth, upstream

METHODS = ("batched", "samplewise", "tiled", "guided")
HALVES = (torch.bfloat16, torch.float16)


@functools.cache
def long_problem(maker):
    problem = maker((800,), (60,), 50, 16)
    return problem, truth(problem, reduction="sum")


@pytest.mark.slow
@pytest.mark.parametrize("maker", [make, planted])
@pytest.mark.parametrize("method", METHODS)
def test_long_lattices_in_float32(method, maker):
    """T = 800, U = 60: gradients to 1e-5. Elsewhere float32 sums over the lattice lose three digits here."""
    problem, (right, right_gradients) = long_problem(maker)
    value, gradients = ours(problem, method=method, reduction="sum")
    assert_close("loss", value, right, 1e-6)
    for name in gradients:
        assert_close(name, gradients[name], right_gradients[name], 1e-5)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
@pytest.mark.parametrize("activation", ["tanh", "relu", "gelu"])
@pytest.mark.parametrize("scale", [30.0, 300.0])
def test_large_output_weights(method, activation, scale, dtype):
    """A very confident model: logits hundreds apart, losses of thousands."""
    shapes = {"frames": (30, 17), "labels": (9, 5), "vocab": 40, "dim": 16, "scale": scale, "dtype": dtype}
    assert_as_good_as_plain(make, shapes, {"activation": activation, "reduction": "none"}, method=method)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALVES], ids=str)
def test_logits_of_80(method, dtype):
    """exp(80) and exp(-80) in every row."""
    problem = make((6, 4), (3, 2), vocab=9, dim=4, dtype=dtype)
    bias = torch.tensor([80.0, -80.0, 0.0, 79.0, 80.0, -80.0, 1.0, 2.0, -79.0], dtype=dtype)
    weight = (problem.weight * 0.1).to(dtype)
    problem = problem.replace(weight=weight, bias=bias, targets=torch.tensor([[1, 3, 4], [8, 2, 0]]))
    value, gradients = ours(problem, method=method, reduction="none", upstream=upstream(problem))
    right, right_gradients = truth(problem, reduction="none", upstream=upstream(problem))
    usual, usual_gradients = plain(problem, reduction="none", upstream=upstream(problem))
    assert_close("loss", value, right, 2 * error(usual, right) + 1e-12)
    floor = max(2 * torch.finfo(dtype).eps, 1e-13)
    for name in gradients:
        assert_close(
            name, gradients[name], right_gradients[name], 3 * error(usual_gradients[name], right_gradients[name]) + floor
        )


@pytest.mark.parametrize("shift", [1e4, -1e4])
@pytest.mark.parametrize("method", METHODS)
def test_a_constant_on_all_logits_changes_nothing(method, shift):
    problem = make((6, 4), (3, 2), dtype=torch.float64)
    shifted = problem.replace(bias=problem.bias + shift)
    for value, right in zip(*(flat(ours(p, method=method)) for p in (shifted, problem)), strict=True):
        torch.testing.assert_close(value, right, rtol=1e-9, atol=1e-10)


def flat(result):
    value, gradients = result
    return [value, *gradients.values()]


@pytest.mark.parametrize("method", ["tiled", "samplewise", "guided"])
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
def test_tiles_do_not_add_errors(method, dtype):
    """Gradients of the output layer from many tiles are as exact as from few: sums over tiles are not in half precision."""
    problem = make((40,) * 8, (12,) * 8, vocab=30, dim=16, dtype=dtype)
    _, right = truth(problem, reduction="sum")
    errors = {}
    for budget in ("1GiB", least_budget(problem, method)):
        _, gradients = ours(problem, method=method, reduction="sum", memory_budget=budget, tolerance=0.0)
        errors[budget] = {name: error(gradients[name], right[name]) for name in FLOATS}
    few, many = errors.values()
    floor = torch.finfo(dtype).eps * (4 if dtype == torch.float32 else 0.5)
    for name in FLOATS:
        assert many[name] <= 1.5 * few[name] + floor, f"{name}: {many[name]:.2g} after {few[name]:.2g}"


def least_budget(problem, method) -> int:
    """The smallest memory_budget that a method accepts, as its refusal tells."""
    with pytest.raises(samplewise.TransducerError, match="needs at least") as refusal:
        ours(problem, method=method, memory_budget=1)
    return int(str(refusal.value).split("needs at least ")[1].split()[0])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("factor", [1 / 3, 1000.0, 65536.0])
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_scaled_losses_in_half_precision(method, dtype, factor, reduction):
    """Loss scaling by up to 65536, where GradScaler starts: gradients are rounded after the scale, not before. The weights are
    small enough for the scaled gradients to fit in float16, and most of the unscaled ones are below its normal numbers."""
    problem = make((20, 17), (6, 5), vocab=40, dim=16)
    problem = problem.replace(weight=problem.weight / 256).to(dtype)
    wanted = ("encoder_out", "predictor_out")
    up = torch.full((2,), factor / 2) if reduction == "none" else torch.tensor(factor)
    options = {"wanted": wanted, "reduction": reduction, "upstream": up}
    _, gradients = ours(problem, method=method, tolerance=0.0, **options)
    _, right = truth(problem, **options)
    _, usual = plain(problem, **options)
    for name in wanted:
        assert torch.isfinite(usual[name]).all()
        assert_close(name, gradients[name], right[name], 3 * error(usual[name], right[name]) + torch.finfo(dtype).eps / 2)


INTEGERS = (torch.tensor([[5, 29, 1, 17], [3, 3, 0, 0]]), torch.tensor([12, 9]), torch.tensor([4, 2]))


class Model(torch.nn.Module):
    """Float32 layers around a loss, as a training step under autocast has them."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.encoder, self.predictor = torch.nn.Linear(7, 16), torch.nn.Linear(5, 16, bias=False)
        self.output = torch.nn.Linear(16, 30)
        self.register_buffer("x", torch.randn(2, 12, 7))
        self.register_buffer("y", torch.randn(2, 5, 5))

    def forward(self, loss):
        return loss(self.encoder(self.x), self.predictor(self.y), self.output)


def after_one_step(model, loss, dtype=None):
    with torch.autocast("cpu", dtype, enabled=dtype is not None):
        value = model(loss)
    value.sum().backward()
    return value, {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize("method", METHODS)
def test_autocast(method, reduction, dtype):
    """The output layer behaves as a linear layer in half precision; the loss and the parameters' gradients are float32."""

    def of_encodings(encoder_out, predictor_out, output):
        return samplewise.transducer_loss(
            encoder_out, predictor_out, output.weight, output.bias, *INTEGERS, method=method, reduction=reduction, tolerance=0.0
        )

    def of_logits(encoder_out, predictor_out, output):
        logits = output(torch.tanh(encoder_out[:, :, None] + predictor_out[:, None]))
        assert logits.dtype == encoder_out.dtype
        return reference_loss_from_logits(logits, *INTEGERS, reduction=reduction)

    right, right_gradients = after_one_step(Model().double(), of_logits)
    usual, usual_gradients = after_one_step(Model(), of_logits, dtype)
    value, gradients = after_one_step(Model(), of_encodings, dtype)
    assert value.dtype == torch.float32
    eps = torch.finfo(dtype).eps
    assert error(usual, right) > 1e-6, "the yardstick did not run in half precision"
    assert_close("loss", value, right, 2 * error(usual, right) + eps / 8)
    for name, gradient in gradients.items():
        assert gradient.dtype == torch.float32
        assert_close(name, gradient, right_gradients[name], 3 * error(usual_gradients[name], right_gradients[name]) + eps / 4)


@pytest.mark.parametrize("reduction", ["none", "sum"])
@pytest.mark.parametrize("method", ["samplewise", "tiled", "guided"])
def test_autocast_multiplies_in_half_precision(method, reduction):
    """Not merely as exact as half precision, but that: float32 inputs under autocast give what half-precision inputs give.
    (The batched method also adds encodings in their own dtype, as ordinary implementations do.)"""
    half = make(vocab=30, dim=16, bias=False, dtype=torch.bfloat16)
    right, _ = ours(half, method=method, reduction=reduction)
    with torch.autocast("cpu", torch.bfloat16):
        value, gradients = ours(half.to(torch.float32), method=method, reduction=reduction)
    assert torch.equal(value, right)
    assert all(gradient.dtype == torch.float32 for gradient in gradients.values())


@pytest.mark.parametrize("names", [("encoder_out",), ("predictor_out", "weight"), ("bias",)], ids="+".join)
def test_autocast_takes_any_mixture(names):
    """Some inputs in half precision, others in float32."""
    problem = make(vocab=30, dim=16)
    right, _ = ours(problem)
    mixed = problem.replace(**{name: getattr(problem, name).to(torch.bfloat16) for name in names})
    with torch.autocast("cpu", torch.bfloat16):
        value, gradients = ours(mixed)
    torch.testing.assert_close(value, right, rtol=0.02, atol=0)
    assert all(gradient.dtype == mixed.inputs[name].dtype for name, gradient in gradients.items())
    with pytest.raises(samplewise.TransducerError, match="outside autocast they must share one dtype"):
        ours(mixed)


def test_autocast_leaves_float64_alone():
    problem = make(dtype=torch.float64)
    right, _ = ours(problem)
    with torch.autocast("cpu", torch.bfloat16):
        value, _ = ours(problem)
    assert torch.equal(value, right)
