"""`joint` and `joint_gradient` of every backend: accuracy in units in the last place, rounding, NaN and infinity."""

import pytest
import torch

from samplewise.checks import ACTIVATIONS
from samplewise.reference import activation_of

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
EVERY_DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=str)
NAN = float("nan")


def call(kernels, encoder_rows, predictor_rows, frame, token, activation, dtype=None):
    """The kernel on an output that holds NaN before."""
    out = torch.full((len(frame), encoder_rows.shape[1]), NAN, dtype=dtype or encoder_rows.dtype)
    kernels.joint(encoder_rows, predictor_rows, frame, token, activation, out)
    return out


def ulps(value, right):
    """Distance to the float64 truth in units in the last place of the value's dtype, at least those of its smallest normal."""
    info = torch.finfo(value.dtype)
    unit = torch.exp2(right.abs().clamp(min=info.smallest_normal).log2().floor()) * info.eps
    return ((value.double() - right).abs() / unit).max().item()


@EVERY_DTYPE
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dim", [1, 2, 33, 129, 1025])
def test_joint(kernels, dim, activation, dtype):
    rows, columns = torch.randn(5, dim).mul(3).to(dtype), torch.randn(4, dim).to(dtype)
    frame, token = torch.randint(5, (11,)), torch.randint(4, (11,))
    out = call(kernels, rows, columns, frame, token, activation)
    right = activation_of(activation)(rows[frame].double() + columns[token].double())
    # PyTorch's own gelu in float32 is off by 7 eps
    torch.testing.assert_close(
        out.double(), right, rtol=4 * torch.finfo(dtype).eps, atol=10 * min(torch.finfo(dtype).eps, 1e-4)
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("activation, most", [("tanh", 4), ("relu", 0), ("identity", 0), ("leaky_relu", 1)])
def test_units_in_the_last_place(kernels, activation, most, dtype):
    """Over all magnitudes; where x is tiny, tanh x is x."""
    x = torch.logspace(-12, 3, 4001, dtype=torch.float64).to(dtype)
    x = torch.cat((-x.flip(0), x))[None]
    zero = torch.zeros(1, dtype=torch.int64)
    out = call(kernels, x, torch.zeros_like(x), zero, zero, activation)
    assert ulps(out, activation_of(activation)(x.double())) <= max(most, 0.0)


@pytest.mark.parametrize("activation", ["sigmoid", "silu"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_saturated(kernels, dtype, activation):
    """Values and slopes keep their digits where they are nearly 0, and where the value is nearly 1 the slope does."""
    x = torch.cat([sign * torch.linspace(2.0, 60.0, 2001, dtype=torch.float64) for sign in (-1, 1)]).to(dtype)[None]
    zero = torch.zeros(1, dtype=torch.int64)
    out = call(kernels, x, torch.zeros_like(x), zero, zero, activation)
    if activation == "sigmoid":
        slope = torch.exp(-x.double().abs()) / (1 + torch.exp(-x.double().abs())) ** 2
    else:
        gate = torch.sigmoid(x.double())
        slope = gate * (1 + x.double() * torch.sigmoid(-x.double()))
    found = torch.zeros_like(x), torch.zeros_like(x)
    kernels.joint_gradient(torch.ones_like(x), out, x, torch.zeros_like(x), zero, zero, activation, *found)
    eps = torch.finfo(dtype).eps
    for got, right in ((out, activation_of(activation)(x.double())), (found[0], slope), (found[1], slope)):
        assert ((got.double() - right).abs() <= 32 * eps * right.abs() + 1e-37).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_every_half_precision_number(kernels, dtype):
    """All 65536 of them are read right, and float32 sums are rounded to the nearest of them, ties to even."""
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)[None]
    zero = torch.zeros(1, dtype=torch.int64)
    for other in (0.0, 1.0, 1e-7, -0.3, 3.0e4):
        columns = torch.full_like(every, other)
        out = call(kernels, every, columns, zero, zero, "identity")
        right = (every.float() + columns.float()).to(dtype)
        torch.testing.assert_close(out, right, rtol=0, atol=0, equal_nan=True)


@EVERY_DTYPE
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_extremes(kernels, activation, dtype):
    """Large arguments saturate, NaN stays NaN, infinity is what PyTorch makes of it."""
    x = torch.tensor([[-3e4, -90.0, -20.0, 20.0, 90.0, 3e4, NAN, float("inf")]], dtype=dtype)
    x = x[:, :-1] if activation == "gelu" else x  # of which PyTorch makes infinity or NaN, as the dtype has it
    zero = torch.zeros(1, dtype=torch.int64)
    out = call(kernels, x, torch.zeros_like(x), zero, zero, activation)
    right = activation_of(activation)(x.double()).to(dtype)
    torch.testing.assert_close(out, right, rtol=4 * torch.finfo(dtype).eps, atol=torch.finfo(dtype).eps * 90, equal_nan=True)


def test_mixed_dtypes(kernels):
    """Under autocast encodings and joint differ in dtype; the sum is made in float32 and rounded once."""
    rows, columns = torch.randn(3, 9).bfloat16(), torch.randn(2, 9)
    frame, token = torch.tensor([0, 2, 1]), torch.tensor([1, 0, 1])
    out = call(kernels, rows, columns, frame, token, "identity", dtype=torch.bfloat16)
    assert torch.equal(out, (rows[frame].float() + columns[token]).bfloat16())


@EVERY_DTYPE
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dim", [1, 33, 129])
def test_joint_gradient(kernels, dim, activation, dtype):
    """Against autograd in float64; rows used twice get both, and what was there before stays."""
    real = torch.float64 if dtype == torch.float64 else torch.float32
    rows, columns = torch.randn(5, dim).mul(2).to(dtype), torch.randn(4, dim).to(dtype)
    frame, token = torch.tensor([0, 0, 3, 4, 0, 3, 1]), torch.tensor([1, 3, 1, 1, 0, 3, 0])
    d_joint = torch.randn(7, dim).to(dtype)
    joint_out = call(kernels, rows, columns, frame, token, activation)

    wide = [x.double().clone().requires_grad_() for x in (rows, columns)]
    activation_of(activation)(wide[0][frame] + wide[1][token]).backward(d_joint.double())
    before = [torch.randn(5, dim, dtype=real), torch.randn(4, dim, dtype=real)]
    sums = [x.clone() for x in before]
    kernels.joint_gradient(d_joint, joint_out, rows, columns, frame, token, activation, *sums)
    tolerance = 30 * torch.finfo(dtype).eps
    for total, first, leaf in zip(sums, before, wide, strict=True):
        torch.testing.assert_close(total.double() - first.double(), leaf.grad, rtol=tolerance, atol=tolerance)
    unused = torch.tensor([2])
    assert torch.equal(sums[0][unused], before[0][unused]) and torch.equal(sums[1][unused], before[1][unused])


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_no_gradient_through_an_utterance_that_has_none(kernels, activation):
    """dz = 0 gives 0 whatever the encodings are."""
    rows = torch.tensor([[NAN, float("inf"), -float("inf"), 1.0]])
    index, zero = torch.zeros(1, dtype=torch.int64), torch.zeros(1, 4)
    joint_out = torch.zeros(1, 4)  # as the loss clears it
    sums = torch.zeros(1, 4), torch.zeros(1, 4)
    kernels.joint_gradient(zero, joint_out, rows, zero, index, index, activation, *sums)
    assert torch.equal(sums[0], zero) and torch.equal(sums[1], zero)


def test_many_rows_on_several_threads(kernels):
    torch.set_num_threads(2)
    rows, columns = torch.randn(90, 40, dtype=torch.float64), torch.randn(20, 40, dtype=torch.float64)
    frame, token = torch.arange(90).repeat_interleave(20), torch.arange(20).repeat(90)
    out = call(kernels, rows, columns, frame, token, "identity")
    assert torch.equal(out, rows[frame] + columns[token])
    sums = torch.zeros_like(rows), torch.zeros_like(columns)
    kernels.joint_gradient(torch.ones_like(out), out, rows, columns, frame, token, "identity", *sums)
    assert (sums[0] == 20).all() and (sums[1] == 90).all()
