"""The truth, for tests and benchmarks: the transducer loss in plain PyTorch and float64, as in Graves 2012 (arXiv 1211.3711).

    alpha(0, 0) = 0
    alpha(t, u) = log( exp(alpha(t-1, u) + lp_blank(t-1, u)) + exp(alpha(t, u-1) + lp_label(t, u-1)) )
    loss        = -(alpha(T-1, U) + lp_blank(T-1, U))

The other topologies are in `reference_topologies.py`. It shares no code with the kernels, holds the 4-D logits, and autograd
differentiates it. `enumerated_loss` is its own truth: the sum over all alignments, one by one.

"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from samplewise.reference_topologies import entries
from samplewise.reference_topologies import log_likelihood as of_entries
from samplewise.topology import Topology, regular

REGULAR = regular()


def activation_of(name: str) -> Callable[[Tensor], Tensor]:
    """The function of that name of torch.nn.functional, which has all but "identity"."""
    return torch.clone if name == "identity" else getattr(torch.nn.functional, name)


def reference_loss(
    encoder_out: Tensor, predictor_out: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor,
    encoder_lengths: Tensor, target_lengths: Tensor, *, blank: int = 0, activation: str = "tanh", mask: Tensor | None = None,
    dtype: torch.dtype = torch.float64, **options,
) -> Tensor:  # fmt: skip
    """Loss of logits = act(encoder_out + predictor_out) weight^T + bias; arguments and reductions of `transducer_loss`. `mask`
    (B, T, U+1, D) multiplies the joint encodings (dropout). `options` are those of `reference_loss_from_logits`.

    With another dtype than float64, joint and output layer run in it, the log-softmax in float32 at least, and the recursion in
    float64 still. This is a careful ordinary implementation, against whose error ours is measured.
    """
    encoder_out, predictor_out, weight = (x.to(dtype) for x in (encoder_out, predictor_out, weight))
    z = activation_of(activation)(encoder_out[:, :, None] + predictor_out[:, None])  # (B, T, U+1, D)
    z = z if mask is None else z * mask.to(dtype)
    logits = torch.nn.functional.linear(z, weight, None if bias is None else bias.to(dtype))  # (B, T, U+1, V)
    return reference_loss_from_logits(
        logits, targets, encoder_lengths, target_lengths, blank=blank, dtype=torch.promote_types(dtype, torch.float32),
        **options,
    )  # fmt: skip


def reference_loss_from_logits(
    logits: Tensor, targets: Tensor, logit_lengths: Tensor, target_lengths: Tensor, *, blank: int = 0,
    reduction: str = "mean", fused_log_softmax: bool = True, fastemit_lambda: float = 0.0, dtype: torch.dtype = torch.float64,
    topology: Topology = REGULAR, delay_penalty: float = 0.0, alignment: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Loss of logits (B, T, U+1, V), or of log-probabilities where fused_log_softmax is False.

    FastEmit (arXiv 2010.11148) makes the gradient of a label's log-probability 1 + fastemit_lambda times as large, and leaves
    the value as it is. A delay penalty adds delay_penalty ((T_b - 1) / 2 - t) to the labels at frame t (k2). `alignment`
    (B, U, 2) is the first and the last frame at which a label may be.
    """
    losses = []
    for b, (T, U) in enumerate(zip(logit_lengths.tolist(), target_lengths.tolist(), strict=True)):
        scores = logits[b, :T, : U + 1].to(dtype)  # (T, U+1, V)
        if topology.name == "regular" and alignment is None and not delay_penalty:
            lp_blank, lp_label = arcs((scores.log_softmax(2) if fused_log_softmax else scores).double(), targets[b, :U], blank)
            if fastemit_lambda:
                lp_label = (1 + fastemit_lambda) * lp_label - fastemit_lambda * lp_label.detach()
            losses.append(-log_likelihood(lp_blank, lp_label))
            continue
        found = entries(scores, targets[b, :U], blank, topology, normalise=fused_log_softmax).double()
        if fastemit_lambda:
            factor = torch.ones(len(found), 1, 1, dtype=found.dtype)
            factor[list(topology.emitting)] += fastemit_lambda
            found = factor * found - (factor - 1) * found.detach()
        allowed = torch.ones(T, U, dtype=torch.bool)
        frame = torch.arange(T)[:, None]
        if alignment is not None:
            allowed = (frame >= alignment[b, :U, 0]) & (frame <= alignment[b, :U, 1])
        penalty = delay_penalty * ((T - 1) / 2 - frame.double())
        losses.append(-of_entries(found, topology, penalty, allowed))
    return reduce(torch.stack(losses), target_lengths, reduction)


def arcs(log_probs: Tensor, labels: Tensor, blank: int) -> tuple[Tensor, Tensor]:
    """lp_blank (T, U+1) and lp_label (T, U) from log-probabilities (T, U+1, V) and labels (U,)."""
    index = labels.long()[None, :, None].expand(log_probs.shape[0], -1, 1)  # (T, U, 1)
    return log_probs[:, :, blank], log_probs[:, : len(labels)].gather(2, index)[:, :, 0]


def log_likelihood(lp_blank: Tensor, lp_label: Tensor) -> Tensor:
    """The recursion, row by row. With c(u) the sum of the row's first u labels, a row unrolls to alpha(t, u) = c(u) +
    log sum_{k<=u} exp(alpha(t-1, k) + lp_blank(t-1, k) - c(k)), so PyTorch does a row at once."""
    c = torch.nn.functional.pad(lp_label.cumsum(1), (1, 0))  # (T, U+1)
    alpha = c[0]
    for t in range(1, len(lp_blank)):
        alpha = c[t] + torch.logcumsumexp(alpha + lp_blank[t - 1] - c[t], 0)
    return alpha[-1] + lp_blank[-1, -1]


def reduce(losses: Tensor, target_lengths: Tensor, reduction: str) -> Tensor:
    """Losses (B,) or a scalar."""
    lengths = target_lengths.to(losses)
    return {
        "none": losses,
        "sum": losses.sum(),
        "mean": losses.sum() / len(losses),
        "mean_volume": losses.sum() / lengths.sum().clamp(min=1),
        "mean_target": (losses / lengths.clamp(min=1)).mean(),
    }[reduction]


def enumerated_loss(lp_blank: Tensor, lp_label: Tensor) -> Tensor:
    """-log of the summed probability of every alignment: U labels among the first T - 1 + U steps, and blank at the end."""
    T, U = len(lp_blank), lp_label.shape[1]
    paths = []
    for label_steps in itertools.combinations(range(T - 1 + U), U):
        t, u, path = 0, 0, []
        for step in range(T + U):
            if step in label_steps:
                path.append(lp_label[t, u])
                u += 1
            else:
                path.append(lp_blank[t, u])
                t += 1
        paths.append(torch.stack(path).sum())
    return -torch.logsumexp(torch.stack(paths), 0)
