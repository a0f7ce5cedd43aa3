"""The activations of a joint network inside compiled kernels: one element, forward and backward, and the choice among them.

A kernel is given the number of an activation. `chosen` makes, of one function for each of them, a function that calls the one
that is meant: these have the innermost loop, so the choice is made once a row.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from numba import njit

from samplewise.kernels.activations import SLOPE, TABLE
from samplewise.kernels.numba import scalars as s

NUMERIC = {"contract", "nsz"}
compiled = partial(njit, fastmath=NUMERIC, error_model="numpy", nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)


class Activation(NamedTuple):
    """Compiled functions of numbers; `of_sum` and names are those of `kernels/activations.py`."""

    forward: Any  # act(x)
    backward: Any  # g act'(x), of g and x where `of_sum`, elsewhere of g and y = act(x)
    of_sum: bool


@compiled()
def _tanh(x):
    return s.tanh(x)


@compiled()
def _through_tanh(g, y):
    return g * (s.type_of(y, 1.0) - y * y)


@compiled()
def _relu(x):
    return s.type_of(x, 0.0) if x < s.type_of(x, 0.0) else x


@compiled()
def _through_relu(g, y):
    return g if y > s.type_of(y, 0.0) else s.type_of(g, 0.0)


@compiled()
def _sigmoid(x):
    return s.sigmoid(x)


@compiled()
def _through_sigmoid(g, x):
    return g * s.sigmoid_slope(x)


@compiled()
def _gelu(x):
    return x * s.normal_cdf(x)


@compiled()
def _through_gelu(g, x):
    return g * (s.normal_cdf(x) + x * s.normal_pdf(x))


@compiled()
def _silu(x):
    return x * s.sigmoid(x)


@compiled()
def _through_silu(g, x):
    gate = s.sigmoid(x)
    return g * (gate * (s.type_of(x, 1.0) + x * (s.type_of(x, 1.0) - gate)))


@compiled()
def _identity(x):
    return x


@compiled()
def _through_identity(g, y):
    return g


@compiled()
def _leaky_relu(x):
    return x * s.type_of(x, SLOPE) if x < s.type_of(x, 0.0) else x


@compiled()
def _through_leaky_relu(g, y):
    return g if y > s.type_of(y, 0.0) else g * s.type_of(g, SLOPE)


FUNCTIONS = {
    "tanh": (_tanh, _through_tanh),
    "relu": (_relu, _through_relu),
    "sigmoid": (_sigmoid, _through_sigmoid),
    "gelu": (_gelu, _through_gelu),
    "silu": (_silu, _through_silu),
    "identity": (_identity, _through_identity),
    "leaky_relu": (_leaky_relu, _through_leaky_relu),
}
ACTIVATIONS = [Activation(*FUNCTIONS[name], of_sum=TABLE[name].of_sum) for name in TABLE]
TANH_OF_EXPONENTIALS, SIGMOID_OF_EXPONENTIALS = -1, -2  # below 0 are those whose rows are tables of exponentials
NUMBERS = {name: number for number, name in enumerate(TABLE)}
NUMBERS |= {"tanh of exponentials": TANH_OF_EXPONENTIALS, "sigmoid of exponentials": SIGMOID_OF_EXPONENTIALS}


def chosen(make: Callable[[Activation], Any]) -> Any:
    """The compiled function (number, *arguments) that calls `make`'s, of the activation with that number, with the arguments.

    One chain of comparisons: functions inside functions, one for each, would be optimised again and again."""
    calls = {f"f{number}": make(activation) for number, activation in enumerate(ACTIVATIONS)}
    lines = [f"    if number == {number}: f{number}(*arguments)" for number in range(len(calls))]
    exec("\n".join(("def choice(number, *arguments):", *lines)), calls)
    return compiled()(calls["choice"])
