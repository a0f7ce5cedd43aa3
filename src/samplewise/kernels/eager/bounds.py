"""Upper bounds of the emissions of every node, from a few classes, and by Jensen's inequality from all others.

With h_v the score of class v at a node, K some classes, and n the number of all others,

    sum_v exp(h_v)  >=  sum_{v in K} exp(h_v) + n exp( (sum of h_v over the others) / n )

for the exponential is convex. So h_blank or h_label less the logarithm of the right side is at least the log-probability. The
sum over the others is one inner product: of the sum of their rows with the joint encoding.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from samplewise.kernels.activations import activate
from samplewise.kernels.eager.dropout import kept, keys
from samplewise.kernels.layout import FRAME_BASE, LABELS, START, STRIDE, TARGET_BASE, TOKEN_BASE
from samplewise.kernels.masks import Dropout


def bounds(
    encoder_rows: Tensor, predictor_rows: Tensor, activation: str, utterances: Tensor, targets: Tensor, weight: Tensor,
    bias: Tensor, stretches: Tensor, classes: Tensor, rows: Tensor, row_bias: Tensor, rest: Tensor, slack: Tensor,
    ub_blank: Tensor, ub_label: Tensor, dropout: Dropout | None = None,
) -> None:  # fmt: skip
    """Write upper bounds of lp_blank and lp_label (N,) of every node of the stretches.

    A stretch is some consecutive frames of an utterance, all labels: stretches (Q, 3) int64 has the row of the table, the first
    frame and the one after the last. Its classes (Q, S+1) begin with blank; `rows` (Q, S+2, D) has their weights, and last
    the sum of the weights of all others, row_bias (Q, S+2) likewise; `rest` (Q,) how many the others are. A node's own
    label is taken out of the others where it is one. Classes whose bias is -inf are no classes: they count nowhere. `slack`
    (Q,) is what rounding may take off a bound; it is added. encoder_rows (F, D), predictor_rows (K, D), weight (V, D), bias
    (V,), targets flat, utterances the table of `layout.py`; `dropout` masks the joint encodings.
    """
    real = bias.dtype
    for q, (g, first, stop) in enumerate(stretches.tolist()):
        table = utterances[g].tolist()
        width = table[LABELS] + 1
        encoder = encoder_rows[table[FRAME_BASE] + first : table[FRAME_BASE] + stop].to(real)
        predictor = predictor_rows[table[TOKEN_BASE] : table[TOKEN_BASE] + width].to(real)
        z = activate(encoder[:, None] + predictor[None], activation)  # (frames, U+1, D)
        if dropout is not None:
            t, u = torch.arange(first, stop, device=z.device)[:, None], torch.arange(width, device=z.device)[None]
            utterance = torch.full_like(t, dropout.first + g)
            z = (z * dropout.scale).masked_fill(~kept(dropout, keys(dropout, utterance, t, u), z.shape[2]), 0.0)
        own = targets[table[TARGET_BASE] : table[TARGET_BASE] + width - 1]
        label = torch.full((stop - first, width), -math.inf, dtype=real, device=z.device)
        label[:, :-1] = torch.linalg.vecdot(z[:, :-1], weight[own].to(real)) + bias[own]
        known = (own[:, None] == classes[q]).any(1) | torch.isneginf(bias[own])
        counted = torch.nn.functional.pad(~known, (0, 1))  # (U+1,)
        scores = z @ rows[q].t() + row_bias[q]  # (frames, U+1, S+2)
        left = rest[q] - counted.to(real)
        others = scores[..., -1] - label.masked_fill(~counted, 0.0)
        average = (others / left.clamp(min=1) + left.clamp(min=1).log()).masked_fill(left < 0.5, -math.inf)
        extra = label.masked_fill(~counted, -math.inf)
        whole = torch.logsumexp(torch.cat((scores[..., :-1], extra[..., None], average[..., None]), 2), 2)
        whole = whole.masked_fill(torch.isposinf(whole), torch.nan)  # as the softmax is there
        at = table[START] + torch.arange(first, stop, device=z.device)[:, None] * table[STRIDE]
        at = at + torch.arange(width, device=z.device)
        ub_blank[at] = (scores[..., 0] - whole + slack[q]).clamp(max=0)
        ub_label[at] = (label - whole + slack[q]).clamp(max=0)
