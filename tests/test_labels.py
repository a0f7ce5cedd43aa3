"""How many labels padded rows have."""

import pytest
import torch

import samplewise


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_padding_of_several_kinds(dtype):
    labels = torch.tensor([[5, 7, 2, 9], [4, 100, 0, 100], [0, 0, 0, 0], [1, 2, 3, 0]], dtype=dtype)
    lengths = samplewise.label_lengths(labels, 0, 100)
    assert lengths.tolist() == [4, 1, 0, 3]
    assert lengths.dtype == torch.int64


def test_nothing_is_padding_unless_said():
    assert samplewise.label_lengths(torch.tensor([[0, -1], [-100, 3]])).tolist() == [2, 2]
    assert samplewise.label_lengths(torch.zeros(3, 0, dtype=torch.int64), 0).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "labels, ids, message",
    [
        ([[3, 4], [2, 5]], (2,), r"labels\[1, 0\] is 2, one of the padding ids \(2,\), but labels\[1, 1\] is 5"),
        ([[3, -1, -1, 4]], (-1,), r"labels\[0, 1\] is -1, .*, but labels\[0, 3\] is 4"),
        ([3, 4], (0,), r"labels must be \(B, U\), but has shape \(2,\)"),
        ([[1.0]], (0,), r"labels is torch.float32; it must be of integers"),
        ([[1]], (0.5,), r"padding_ids\[0\] is 0.5; it must be a whole number"),
    ],
)
def test_what_cannot_be_padding(labels, ids, message):
    with pytest.raises(samplewise.TransducerError, match=message):
        samplewise.label_lengths(torch.tensor(labels), *ids)
