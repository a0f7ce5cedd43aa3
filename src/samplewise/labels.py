"""Padded labels as the tools around us make them: how many each utterance has."""

from __future__ import annotations

import torch
from torch import Tensor

from samplewise.checks import check_tensors, check_whole
from samplewise.errors import TransducerError


def label_lengths(labels: Tensor, *padding_ids: int) -> Tensor:
    """How many labels each utterance has, of labels that are padded at their end.

    Args:
        labels: (B, U), any integer dtype.
        padding_ids: what padding is made of, such as -1, -100, the blank or a tokenizer's `pad_token_id`; without any there is
            no padding.

    Returns:
        (B,) int64, on the device of the labels.

    Raises:
        TransducerError: a padding id stands before a label, which is named: it is then no padding, or the wrong id was given.

    >>> import torch, samplewise
    >>> samplewise.label_lengths(torch.tensor([[5, 7, 2], [4, -100, -100], [0, 0, 0]]), 0, -100)
    tensor([3, 1, 0])
    """
    check_tensors(labels=labels)
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise TransducerError(f"labels is {labels.dtype}; it must be of integers")
    if labels.dim() != 2:
        raise TransducerError(f"labels must be (B, U), but has shape {tuple(labels.shape)}")
    padding = torch.zeros_like(labels, dtype=torch.bool)
    for i, value in enumerate(padding_ids):
        padding |= labels == check_whole(f"padding_ids[{i}]", value)
    lengths = (~padding).sum(1)
    misplaced = padding & (torch.arange(labels.shape[1], device=labels.device) < lengths[:, None])
    if bool(misplaced.any()):
        b, u = misplaced.nonzero()[0].tolist()
        later = u + int((~padding[b, u:]).nonzero()[0])
        raise TransducerError(
            f"labels[{b}, {u}] is {int(labels[b, u])}, one of the padding ids {padding_ids}, but labels[{b}, {later}] is "
            f"{int(labels[b, later])}: padding must follow all labels of an utterance"
        )
    return lengths
