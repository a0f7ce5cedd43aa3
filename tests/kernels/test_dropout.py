"""`drop` of every backend: the same mask, bit by bit, and joint encodings of bounds under it."""

import pytest
import torch

from samplewise.kernels import eager
from samplewise.kernels.layout import packed_table
from samplewise.kernels.masks import dropout_of

DROPOUT = dropout_of(0.2, -123_456_789_012_345, 50, 11, 7)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_masks_are_the_same_in_every_backend(kernels, dtype):
    frame = torch.arange(150)
    token = frame // 50 * 11 + frame % 11
    found = torch.randn(150, 70).to(dtype)
    right = found.clone()
    right[3, 4] = found[3, 4] = torch.nan
    kernels.drop(found, frame, token, DROPOUT)
    eager.drop(right, frame, token, DROPOUT)
    assert torch.equal(found.nan_to_num(9.0), right.nan_to_num(9.0))
    assert 0.15 < float((found == 0).double().mean()) < 0.25


def test_what_is_dropped_is_zero_whatever_it_was(kernels):
    z = torch.full((40, 64), torch.inf)
    z[20:] = torch.nan
    kernels.drop(z, torch.arange(40), torch.zeros(40, dtype=torch.int64), DROPOUT)
    zeros = z == 0
    assert 0.1 < float(zeros.double().mean()) < 0.3 and not bool(z[~zeros].isfinite().any())


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_bounds_under_a_mask(kernels, activation):
    generator = torch.Generator().manual_seed(2)
    frames, labels, vocab, dim = [9, 5], [4, 0], 12, 19

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    table, nodes = packed_table(frames, labels, 9, 5, 4, torch.device("cpu"))
    weight, bias = normal(vocab, dim), normal(vocab)
    stretches = torch.tensor([[0, 0, 4], [0, 4, 9], [1, 0, 5]])
    classes = torch.tensor([[0, 3, 5], [0, 1, 2], [0, 4, 7]])
    others = torch.ones(3, vocab).scatter_(1, classes, 0.0)
    rows = torch.cat((weight[classes], (others @ weight)[:, None]), 1)
    row_bias = torch.cat((bias[classes], (others @ bias)[:, None]), 1)
    arguments = (
        normal(18, dim), normal(10, dim), activation, table, torch.randint(1, vocab, (8,), generator=generator), weight, bias,
        stretches, classes, rows, row_bias, others.sum(1), torch.zeros(3),
    )  # fmt: skip
    found, right, without = (torch.full((2, nodes), torch.nan) for _ in range(3))
    dropout = dropout_of(0.4, 5, 9, 5, 3)
    kernels.bounds(*arguments, found[0], found[1], dropout)
    eager.bounds(*arguments, right[0], right[1], dropout)
    eager.bounds(*arguments, without[0], without[1])
    torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-5)
    assert float((right - without)[right.isfinite()].abs().max()) > 0.1
