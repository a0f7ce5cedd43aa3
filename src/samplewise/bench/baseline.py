"""The loss as one would write it in plain PyTorch: 4-D logits, log-softmax, a recursion over anti-diagonals, autograd.

On the diagonal d = t + u

    alpha_d(u) = log( exp(alpha_{d-1}(u) + lp_blank(d-1-u, u)) + exp(alpha_{d-1}(u-1) + lp_label(d-u, u-1)) ).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from samplewise.bench.workloads import Workload

NEVER = -1e30  # in place of -inf, whose logaddexp has no gradient


def joint_logits(workload: Workload) -> Tensor:
    """(B, T, U+1, V)."""
    z = torch.tanh(workload.encoder_out[:, :, None] + workload.predictor_out[:, None])  # (B, T, U+1, D)
    return linear(z, workload.weight, workload.bias)


def plain_loss(workload: Workload) -> Tensor:
    """Sum of the losses."""
    log_probs = joint_logits(workload).log_softmax(-1).float()  # (B, T, U+1, V)
    labels = pad(workload.targets, (0, 1))[:, None, :, None].expand(-1, log_probs.shape[1], -1, 1)
    lp_blank, lp_label = log_probs[..., 0], log_probs.gather(3, labels)[..., 0]  # (B, T, U+1)
    return -log_likelihoods(lp_blank, lp_label, workload.encoder_lengths, workload.target_lengths).sum()


def log_likelihoods(lp_blank: Tensor, lp_label: Tensor, frames: Tensor, labels: Tensor) -> Tensor:
    """(B,) from emissions (B, T, U+1), the last label of each row unused."""
    B, T, width = lp_blank.shape
    u = torch.arange(width)
    t = torch.arange(T + width - 1)[:, None] - u  # (T+U, U+1): frame of each place on each diagonal
    outside = (t < 0) | (t >= T)
    index = t.clamp(0, T - 1) * width + u
    blank_at, label_at = (
        lp.flatten(1)[:, index].masked_fill(outside, NEVER).unbind(1)  # T+U of (B, U+1)
        for lp in (lp_blank, lp_label)
    )
    alpha = pad(torch.zeros(B, 1), (0, width - 1), value=NEVER)
    alphas = [alpha]
    for d in range(1, T + width - 1):
        moved = pad((alpha + label_at[d - 1])[:, :-1], (1, 0), value=NEVER)
        alpha = torch.logaddexp(alpha + blank_at[d - 1], moved)
        alphas.append(alpha)
    b = torch.arange(B)
    return torch.stack(alphas)[frames - 1 + labels, b, labels] + lp_blank[b, frames - 1, labels]
