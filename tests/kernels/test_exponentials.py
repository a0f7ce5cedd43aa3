"""`exponentials`, and `joint` of them: accuracy over the whole range, where they do not serve, NaN, infinity and padding."""

import pytest
import torch

from samplewise.kernels.layout import packed_table
from samplewise.reference import activation_of

numba = pytest.importorskip("samplewise.kernels.numba")
HALVES = (torch.bfloat16, torch.float16)
NAN = float("nan")
OF_EXPONENTIALS = pytest.mark.parametrize("activation", ["tanh", "sigmoid"])


def joint(encoder_rows, predictor_rows, frame, token, activation, dtype=torch.float32):
    """The kernel on an output that holds NaN before."""
    out = torch.full((len(frame), encoder_rows.shape[1]), NAN, dtype=dtype)
    numba.joint(encoder_rows, predictor_rows, frame, token, activation, out)
    return out


def one_utterance(frames, tokens):
    """The table of one utterance that has all of the rows."""
    return packed_table((frames,), (tokens - 1,), frames, tokens, tokens, torch.device("cpu"))[0]


def by_exponentials(encoder_rows, predictor_rows, activation):
    """Every sum of an encoder row and a predictor row, through tables; and which rows these were."""
    tables = numba.exponentials(
        encoder_rows, predictor_rows, one_utterance(len(encoder_rows), len(predictor_rows)), activation
    )  # fmt: skip
    assert tables is not None
    frame = torch.arange(len(encoder_rows)).repeat_interleave(len(predictor_rows))
    token = torch.arange(len(predictor_rows)).repeat(len(encoder_rows))
    return joint(*tables, frame, token, f"{activation} of exponentials", encoder_rows.dtype), frame, token


@OF_EXPONENTIALS
@pytest.mark.parametrize("dtype", (torch.float32, *HALVES), ids=str)
@pytest.mark.parametrize("spread", [0.3, 2.0, 12.0])
def test_exponentials(dtype, spread, activation):
    """2e-7 of the truth, and a rounding to the joint's dtype."""
    rows, columns = (torch.randn(n, 129).mul(spread).clamp(-40, 40).to(dtype) for n in (40, 50))
    out, frame, token = by_exponentials(rows, columns, activation)
    right = activation_of(activation)(rows[frame].double() + columns[token].double())
    rounding = 0.0 if dtype == torch.float32 else torch.finfo(dtype).eps / 2
    assert (out.double() - right).abs().max() <= 2e-7 + rounding


@OF_EXPONENTIALS
def test_exponentials_over_the_whole_range(activation):
    """Every pair of numbers up to 40 in size, to where products of exponentials are infinity, denormal or 0."""
    x = torch.cat([sign * torch.logspace(-6, 1, 2001)[:, None] * 4 for sign in (1, -1)]).clamp(-40, 40)
    x[0], x[-1] = 40.0, -40.0
    out, frame, token = by_exponentials(x, x, activation)
    right = activation_of(activation)(x[frame].double() + x[token].double())
    assert torch.isfinite(out).all() and (out.double() - right).abs().max() <= 2e-7
    assert out[0] == 1 and abs(out[-1] - right[-1]) < 1e-34


@OF_EXPONENTIALS
def test_where_exponentials_do_not_serve(activation):
    """Finite encodings beyond 40, encodings that are all tiny, float64, other activations."""
    rows, columns = torch.randn(5, 33), torch.randn(4, 33)
    table = one_utterance(5, 4)
    assert numba.exponentials(rows, columns, table, activation) is not None
    for i, (value, serves) in enumerate([(40.0, True), (40.01, False), (-40.0, True), (-41.0, False), (1e30, False)]):
        for which in (0, 1):
            both = [rows.clone(), columns.clone()]
            both[which][i % 4, 7 * i] = value
            assert (numba.exponentials(*both, table, activation) is not None) == serves
    for scale in (0.24, 0.26):
        both = torch.full((5, 33), -scale), torch.full((4, 33), scale)
        assert (numba.exponentials(*both, table, activation) is not None) == (scale > 0.25)
    assert numba.exponentials(rows.double(), columns, table, activation) is None
    assert numba.exponentials(rows, columns, table, "gelu") is None


@OF_EXPONENTIALS
def test_padding_does_not_count(activation):
    """Rows beyond the lengths may hold anything; those of every utterance are made."""
    frames, labels = (5, 2, 7), (1, 3, 0)
    table, nodes = packed_table(frames, labels, 9, 6, 5, torch.device("cpu"))
    rows, columns = torch.full((3, 9, 33), NAN), torch.full((3, 6, 33), 1e20)
    for g, (t, u) in enumerate(zip(frames, labels, strict=True)):
        rows[g, :t], columns[g, : u + 1] = torch.randn(t, 33), torch.randn(u + 1, 33)
    rows, columns = rows.flatten(0, 1), columns.flatten(0, 1)
    tables = numba.exponentials(rows, columns, table, activation)
    assert tables is not None
    index = [torch.empty(nodes, dtype=torch.int64) for _ in range(3)]
    numba.locate(torch.arange(nodes), table, torch.zeros(15, dtype=torch.int64), *index)
    out = joint(*tables, *index[:2], f"{activation} of exponentials")
    torch.testing.assert_close(out, joint(rows, columns, *index[:2], activation), rtol=0, atol=4e-7)


@OF_EXPONENTIALS
def test_nan_and_infinity_through_exponentials(activation):
    """As without tables: NaN stays, infinities saturate, and what is beside them is as exact as ever."""
    infinity = float("inf")
    rows = torch.tensor([[NAN, infinity, -infinity, infinity, -infinity, 3.0, -40.0, 40.0]])
    columns = torch.tensor([[1.0, -40.0, 40.0, -infinity, -infinity, NAN, -infinity, -40.0]])
    out, frame, token = by_exponentials(rows, columns, activation)
    right = activation_of(activation)(rows.double() + columns.double()).float()
    torch.testing.assert_close(out, right, rtol=0, atol=2e-7, equal_nan=True)
    torch.testing.assert_close(out, joint(rows, columns, frame, token, activation), rtol=0, atol=3e-7, equal_nan=True)


def test_exponentials_on_several_threads():
    torch.set_num_threads(2)
    table = packed_table((90, 30), (19, 11), 90, 20, 19, torch.device("cpu"))[0]
    rows, columns = torch.randn(180, 40), torch.randn(40, 40)
    tables = numba.exponentials(rows, columns, table, "tanh")
    assert tables is not None
    torch.testing.assert_close(tables[0][:120], (2 * rows[:120]).exp())
    torch.testing.assert_close(tables[1][:32], (2 * columns[:32]).exp())
