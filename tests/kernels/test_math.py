"""The polynomial exponentials of the numba kernels, in units in the last place."""

import numpy as np
import pytest

fast = pytest.importorskip("samplewise.kernels.numba.math", reason="numba is not installed")
scalars = pytest.importorskip("samplewise.kernels.numba.scalars")

from numba import njit  # noqa: E402


@njit
def each(function, x):
    out = np.empty_like(x)
    for i in range(x.size):
        out[i] = function(x[i])
    return out


def ulps(value, right):
    unit = np.spacing(np.maximum(np.abs(right), np.finfo(value.dtype).tiny).astype(value.dtype)).astype(np.longdouble)
    return float((np.abs(value.astype(np.longdouble) - right) / unit).max())


def arguments(dtype, low, high):
    x = np.random.default_rng(0).uniform(low, high, 200_000)
    edges = np.arange(np.ceil(low / np.log(2)), high / np.log(2)) * np.log(2)  # where the scale changes
    near = np.concatenate((edges, edges + 0.5 * np.log(2), np.geomspace(1e-30, 1.0, 500), -np.geomspace(1e-30, 1.0, 500)))
    x = np.concatenate((x, near[(near >= low) & (near <= high)])).astype(dtype)
    return x, x.astype(np.longdouble)


@pytest.mark.parametrize(
    "function, dtype, low, most",
    [(fast.exp32, np.float32, -87.0, 1.5), (fast.exp64, np.float64, -708.0, 1.5)],
)
def test_exp(function, dtype, low, most):
    x, wide = arguments(dtype, low, 30.0)
    assert ulps(each(function, x), np.exp(wide)) <= most


@pytest.mark.parametrize("function, dtype", [(fast.expm132, np.float32), (fast.expm164, np.float64)])
def test_expm1(function, dtype):
    x, wide = arguments(dtype, -40.0, 40.0)
    assert ulps(each(function, x), np.expm1(wide)) <= 2.5


@pytest.mark.parametrize("function, dtype, high", [(fast.tanh32, np.float32, 12.0), (fast.tanh64, np.float64, 25.0)])
def test_tanh(function, dtype, high):
    x, wide = arguments(dtype, -high, high)
    value = each(function, x)
    assert ulps(value, np.tanh(wide)) <= 4
    assert np.abs(value).max() <= 1


@pytest.mark.parametrize("function, dtype", [(fast.exp32, np.float32), (fast.exp64, np.float64)])
def test_exp_far_below(function, dtype):
    """What is too small becomes almost 0, never a denormal number nor garbage from an exponent that wrapped."""
    x = np.array([-87.5, -1e3, -1e30, -np.inf], dtype) if dtype == np.float32 else np.array([-709.0, -1e5, -1e300, -np.inf])
    value = each(function, x)
    assert (value >= np.finfo(dtype).tiny).all() and (value <= 4 * np.finfo(dtype).tiny).all()
    assert each(function, np.zeros(1, dtype))[0] == 1


@pytest.mark.parametrize("name", ["exp32", "exp64", "tanh32", "tanh64"])
def test_nan_stays_nan(name):
    dtype = np.float32 if name.endswith("32") else np.float64
    assert np.isnan(each(getattr(fast, name), np.array([np.nan, -np.nan], dtype))).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_order_of_floats(dtype):
    """The integer order is that of the numbers, and there and back is the identity."""

    @njit
    def keys(x):
        return [scalars.order(v) for v in x], [scalars.from_order(scalars.order(v), v) for v in x]

    x = np.array([-np.inf, -1e30, -1.0, -1e-40, 0.0, 1e-40, 1.0, 1e30, np.inf, np.nan], dtype)
    order, back = keys(x)
    assert order == sorted(order) and len(set(order)) == len(order)
    np.testing.assert_array_equal(np.array(back, dtype), x)
