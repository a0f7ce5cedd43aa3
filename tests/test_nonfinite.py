"""One utterance with NaN or infinity: it is named, and the others keep their losses and gradients to the bit."""

import pytest
import torch

import samplewise
from samplewise import TransducerError
from samplewise.checks import ACTIVATIONS
from tests.problems import FLOATS, make, ours, truth

METHODS = ("batched", "samplewise", "tiled", "guided")
GUILTY = 1
OTHERS = torch.tensor([0, 2, 3])


def poisoned(value, activation, where):
    """Utterance 1 of 4 has `value` in one frame, or in one row of its predictor; and the same problem without it."""
    clean = make((6, 5, 7, 2), (3, 2, 0, 2), vocab=9, dim=5)
    name = "encoder_out" if where == "frame" else "predictor_out"
    x = getattr(clean, name).clone()
    x[GUILTY, 1, 2] = value
    return clean, clean.replace(**{name: x})


CASES = [
    (value, activation, where)
    for value in (float("nan"), float("inf"), float("-inf"))
    for activation in ACTIVATIONS
    for where in ("frame", "predictor")
    # a saturated tanh or sigmoid is a finite number, and so is relu of -inf
    if value != value or (activation not in ("tanh", "sigmoid") and not (activation == "relu" and value < 0))
]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("value, activation, where", CASES)
def test_others_keep_their_losses_and_gradients(method, value, activation, where):
    clean, dirty = poisoned(value, activation, where)
    without = torch.ones(4)
    without[GUILTY] = 0.0
    right = ours(clean, method=method, activation=activation, reduction="none", upstream=without)
    for reduction in ("none", "sum"):
        loss, gradients = ours(dirty, method=method, activation=activation, reduction=reduction)
        if reduction == "none":
            assert not torch.isfinite(loss[GUILTY])
            assert_unchanged(method, loss[OTHERS], right[0][OTHERS])
        else:
            assert not torch.isfinite(loss)
        for name in FLOATS:
            assert torch.isfinite(gradients[name]).all(), f"{name}, {reduction}"
            assert_unchanged(method, gradients[name], right[1][name])


def assert_unchanged(method, got, right):
    """To some units in the last place, for on some machines a product rounds otherwise where its memory lies otherwise; a guide
    may leave out other nodes, of no weight, when an utterance of the group has none."""
    if method == "guided":
        torch.testing.assert_close(got, right, rtol=1e-6, atol=2e-6)
    else:
        few = 4 * torch.finfo(got.dtype).eps
        torch.testing.assert_close(got, right, rtol=few, atol=few * float(right.abs().max()))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("value", [float("inf"), float("-inf")])
def test_saturated_units_are_finite(method, value):
    """tanh(inf) = 1: nothing is wrong with such an utterance, and the gradient through the unit is 0."""
    _, dirty = poisoned(value, "tanh", "frame")
    loss, gradients = ours(dirty, method=method, reduction="none")
    right, right_gradients = truth(dirty, reduction="none")
    torch.testing.assert_close(loss.double(), right, rtol=1e-6, atol=0)
    for name in FLOATS:
        torch.testing.assert_close(gradients[name].double(), right_gradients[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("reduction", ["none", "sum", "mean", "mean_volume", "mean_target"])
def test_on_nonfinite(method, reduction):
    clean, dirty = poisoned(float("nan"), "tanh", "frame")
    options = {"method": method, "reduction": reduction}
    kept = samplewise.transducer_loss(**dirty.inputs, **options)
    assert not torch.isfinite(kept[GUILTY] if reduction == "none" else kept)

    zeroed = samplewise.transducer_loss(**dirty.inputs, **options, on_nonfinite="zero")
    losses = samplewise.transducer_loss(**clean.inputs, method=method, reduction="none")
    losses[GUILTY] = 0.0
    weights = {"sum": 1.0, "mean": 1 / 4, "mean_volume": 1 / 7, "mean_target": torch.tensor([1 / 3, 1 / 2, 1, 1 / 2]) / 4}
    torch.testing.assert_close(zeroed, losses if reduction == "none" else (losses * weights[reduction]).sum())

    with pytest.raises(TransducerError, match=r"1 of 4 losses .*utterance 1: nan"):
        samplewise.transducer_loss(**dirty.inputs, **options, on_nonfinite="raise")


@pytest.mark.parametrize("on_nonfinite", ["keep", "zero", "raise"])
def test_finite_losses_are_left_alone(on_nonfinite):
    clean, _ = poisoned(float("nan"), "tanh", "frame")
    loss = samplewise.transducer_loss(**clean.inputs, on_nonfinite=on_nonfinite)
    assert torch.equal(loss, samplewise.transducer_loss(**clean.inputs))


@pytest.mark.parametrize("method", METHODS)
def test_impossible_label(method):
    """A label of probability 0 makes its utterance infinite, and no other; a class of probability 0 that nobody needs is
    fine."""
    problem = make((6, 5, 7, 2), (3, 2, 1, 2), vocab=9, dim=5)
    targets = torch.tensor([[1, 2, 3], [4, 8, 1], [2, 0, 0], [3, 3, 0]])
    bias = problem.bias.clone()
    bias[8] = -float("inf")
    problem = problem.replace(targets=targets, bias=bias)
    loss, gradients = ours(problem, method=method, reduction="none", wanted=("encoder_out", "predictor_out", "weight"))
    assert loss[GUILTY] == float("inf") and torch.isfinite(loss[OTHERS]).all()
    smaller = problem.replace(weight=problem.weight[:8], bias=bias[:8], targets=targets.clamp(max=7))
    right, right_gradients = truth(smaller, reduction="none", upstream=torch.tensor([1.0, 0.0, 1.0, 1.0]))
    torch.testing.assert_close(loss[OTHERS].double(), right[OTHERS], rtol=1e-6, atol=0)
    for name, gradient in gradients.items():
        expected = right_gradients[name]
        torch.testing.assert_close(gradient[:8].double(), expected, rtol=1e-5, atol=1e-5)
    assert (gradients["weight"][8] == 0).all()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("tolerance", [None, 0.0])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_upstream_gradient_that_is_not_finite(method, tolerance, value):
    """As in PyTorch: it reaches its utterance's encodings and the shared weights, visibly, and no other utterance."""
    problem = make((6, 5, 7, 2), (3, 2, 0, 2), vocab=9, dim=5)
    ones, broken = torch.ones(4), torch.ones(4)
    broken[GUILTY] = value
    options = {"method": method, "tolerance": tolerance, "reduction": "none"}
    right, got = ours(problem, upstream=ones, **options), ours(problem, upstream=broken, **options)
    assert torch.equal(got[0], right[0])
    for name in ("encoder_out", "predictor_out"):
        assert not torch.isfinite(got[1][name][GUILTY]).all()
        torch.testing.assert_close(got[1][name][OTHERS], right[1][name][OTHERS])
    assert not torch.isfinite(got[1]["weight"]).all() and not torch.isfinite(got[1]["bias"]).all()


@pytest.mark.parametrize("method", METHODS)
def test_weights_that_are_not_finite(method):
    """Nothing can be saved when the output layer is broken, but every utterance says so."""
    problem = make((6, 5), (3, 2), vocab=9, dim=5)
    weight = problem.weight.clone()
    weight[4, 2] = float("nan")
    loss = samplewise.transducer_loss(**problem.replace(weight=weight).inputs, method=method, reduction="none")
    assert loss.isnan().all()
    with pytest.raises(TransducerError, match="2 of 2 losses"):
        samplewise.transducer_loss(**problem.replace(weight=weight).inputs, method=method, on_nonfinite="raise")


@pytest.mark.parametrize("name", ["encoder_out", "predictor_out", "weight", "bias"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_the_error_names_the_tensor(name, value):
    clean = make((6, 5, 7, 2), (3, 2, 0, 2), vocab=9, dim=5)
    x = getattr(clean, name).clone()
    place = (GUILTY, 1, 2)[-x.dim() :] if x.dim() > 1 else (2,)
    x[place] = value
    shown = f"{name}[1] is {value} at [1, 2]" if x.dim() == 3 else f"{name} is {value} at {list(place)}"
    for reduction in ("none", "mean"):
        with pytest.raises(TransducerError) as caught:
            ours(clean.replace(**{name: x}), on_nonfinite="raise", reduction=reduction, activation="relu")
        assert f"utterance 1: {'nan' if value != value else ''}" in str(caught.value) and shown in str(caught.value)


def test_the_error_names_the_row_after_the_last_label():
    problem = make((6, 5), (3, 2), vocab=9, dim=5)
    predictor_out = problem.predictor_out.clone()
    predictor_out[1, 2, 4] = float("nan")
    with pytest.raises(TransducerError, match=r"utterance 1: nan.*predictor_out\[1\] is nan at \[2, 4\]"):
        ours(problem.replace(predictor_out=predictor_out), on_nonfinite="raise")


@pytest.mark.parametrize(
    "scales, activation, words",
    [
        (
            {"encoder_out": 3e4, "predictor_out": 4e4},
            "relu",
            "in the joint encoding act(encoder_out + predictor_out) at frame ",
        ),
        ({"encoder_out": 300.0, "weight": 2000.0}, "relu", "in the scores weight @ act(encoder_out + predictor_out) at frame "),
        ({"weight": 6e4}, "tanh", "in the scores weight @ act(encoder_out + predictor_out) at frame "),
    ],
)
def test_half_precision_that_overflows(scales, activation, words):
    """float16 ends at 65504; the error says in which tensor that is reached, and what to do."""
    problem = make((6, 5), (3, 2), vocab=9, dim=5)
    scaled = {name: getattr(problem, name).sign() * scale for name, scale in scales.items()}
    problem = problem.replace(**scaled).to(torch.float16)
    assert all(torch.isfinite(getattr(problem, name)).all() for name in FLOATS)
    with pytest.raises(TransducerError) as caught:
        ours(problem, on_nonfinite="raise", activation=activation)
    assert words in str(caught.value) and "torch.float16 ends at 65504" in str(caught.value)
    assert "use bfloat16 or float32" in str(caught.value)


def test_a_weight_that_overflows_under_autocast():
    problem = make((6, 5), (3, 2), vocab=9, dim=5)
    problem = problem.replace(weight=problem.weight * 1e5)
    with torch.autocast("cpu", torch.float16), pytest.raises(TransducerError, match=r"in weight are numbers up to .*float16"):
        ours(problem, on_nonfinite="raise")


class Deep(torch.nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.widen, self.output = torch.nn.Linear(5, 8), torch.nn.Linear(8, 9)
        torch.nn.init.constant_(self.widen.weight, scale)

    def forward(self, encoder_out, predictor_out):
        return self.output(self.widen((encoder_out + predictor_out).abs()))


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_a_joint_that_overflows(reduction):
    """The first of its modules that gives what is not finite is named; encodings and parameters before it."""
    problem = make((6, 5), (3, 2), vocab=9, dim=5)
    inputs = {name: x for name, x in problem.inputs.items() if name not in ("weight", "bias")}

    def message(joint, **changes):
        with torch.autocast("cpu", torch.float16), pytest.raises(TransducerError) as caught:
            samplewise.joint_loss(joint, **(inputs | changes), on_nonfinite="raise", reduction=reduction)
        return str(caught.value)

    assert "the output of joint.widen (Linear), torch.float16, holds inf: torch.float16 ends at 65504" in message(Deep(4e4))
    dirty = problem.encoder_out.clone()
    dirty[1, 2, 3] = float("nan")
    assert "utterance 1: nan, encoder_out[1] is nan at [0, 2, 0, 3]" in message(Deep(1.0), encoder_out=dirty)
    assert "joint.widen.weight is inf at [0, 0]" in message(Deep(float("inf")))
