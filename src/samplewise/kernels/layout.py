"""The table that tells kernels where an utterance's nodes and rows lie: one int64 row of seven numbers an utterance.

| column | meaning |
|---|---|
| START | index of node (0, 0) in the per-node arrays |
| STRIDE | nodes from (t, u) to (t+1, u): U_b + 1 when packed, the padded width otherwise |
| LABELS, FRAMES | U_b, T_b |
| FRAME_BASE, TOKEN_BASE | first row of the utterance in encoder_rows and predictor_rows |
| TARGET_BASE | index of its first label in the flat targets |

Node (t, u) has index START + t STRIDE + u. STARTs ascend.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

START, STRIDE, LABELS, FRAMES, FRAME_BASE, TOKEN_BASE, TARGET_BASE = range(7)


def packed_table(
    frames: Sequence[int], labels: Sequence[int], padded_frames: int, padded_tokens: int, padded_labels: int,
    device: torch.device,
) -> tuple[Tensor, int]:  # fmt: skip
    """The table of utterances whose nodes are packed one after the other, and the number of nodes.

    frames and labels are their lengths; encodings and targets are padded: (G, padded_frames, D), (G, padded_tokens, D) and
    (G, padded_labels).
    """
    rows, start = [], 0
    for g, (t, u) in enumerate(zip(frames, labels, strict=True)):
        rows.append((start, u + 1, u, t, g * padded_frames, g * padded_tokens, g * padded_labels))
        start += t * (u + 1)
    return on_device(device, rows), start


def on_device(device: torch.device, rows: Sequence[tuple[int, ...]]) -> Tensor:
    """The rows as a tensor; to a GPU they go by way of pinned memory, so that the host need not wait for its other work."""
    table = torch.tensor(rows, dtype=torch.int64)
    return table.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else table.to(device)


def padded_table(
    frames: Sequence[int], labels: Sequence[int], padded_frames: int, padded_width: int, device: torch.device
) -> Tensor:
    """The table of a whole batch whose nodes lie in a padded (B, padded_frames, padded_width) array of width U + 1 or more.

    FRAME_BASE, TOKEN_BASE and TARGET_BASE are not used with it and are zero.
    """
    size = padded_frames * padded_width
    rows = [(b * size, padded_width, u, t, 0, 0, 0) for b, (t, u) in enumerate(zip(frames, labels, strict=True))]
    return on_device(device, rows)
