"""Loss and gradients in float64 at sizes whose 4-D logits would not fit: one utterance, and some of its frames, at a time.

The recursion is that of `samplewise.reference`, differentiated by autograd; its gradients with respect to the emissions are the
weights with which every block of frames is differentiated. Nothing is shared with the kernels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from samplewise.bench.workloads import Workload
from samplewise.reference import arcs, log_likelihood

BLOCK_LOGITS = 1 << 23  # float64 logits of a block of frames


def true_gradients(workload: Workload) -> tuple[Tensor, list[Tensor]]:
    """Sum of the losses, and its gradients with respect to encoder_out, predictor_out, weight and bias; all float64."""
    leaves = [tensor.detach().double() for tensor in workload.learned]
    gradients = [torch.zeros_like(leaf) for leaf in leaves]
    total = torch.zeros((), dtype=torch.float64)
    for b, (T, U) in enumerate(zip(workload.encoder_lengths.tolist(), workload.target_lengths.tolist(), strict=True)):
        inputs = leaves[0][b, :T], leaves[1][b, : U + 1], leaves[2], leaves[3]
        outputs = gradients[0][b, :T], gradients[1][b, : U + 1], gradients[2], gradients[3]
        total += add_utterance(inputs, workload.targets[b, :U], outputs)
    return total, gradients


def add_utterance(inputs: tuple[Tensor, ...], labels: Tensor, outputs: tuple[Tensor, ...]) -> Tensor:
    """One utterance's loss; its gradients are added to `outputs`, which are views."""
    encoder_out, predictor_out, weight, bias = inputs
    step = max(1, BLOCK_LOGITS // (len(predictor_out) * len(weight)))
    blocks = [slice(t, t + step) for t in range(0, len(encoder_out), step)]
    with torch.no_grad():
        parts = [emissions((encoder_out[block], predictor_out, weight, bias), labels) for block in blocks]
    lps = [torch.cat(part).requires_grad_() for part in zip(*parts, strict=True)]
    loss = -log_likelihood(*lps)
    posteriors = torch.autograd.grad(loss, lps, allow_unused=True)
    for block in blocks:
        leaves = [tensor.requires_grad_() for tensor in (encoder_out[block].clone(), *(x.clone() for x in inputs[1:]))]
        found = emissions(leaves, labels)
        pairs = [(lp, p[block]) for lp, p in zip(found, posteriors, strict=True) if p is not None]
        gradients = torch.autograd.grad([lp for lp, _ in pairs], leaves, [p for _, p in pairs])
        for output, gradient in zip((outputs[0][block], *outputs[1:]), gradients, strict=True):
            output += gradient
    return loss.detach()


def emissions(inputs: Sequence[Tensor], labels: Tensor) -> tuple[Tensor, Tensor]:
    """lp_blank (T, U+1) and lp_label (T, U)."""
    encoder_out, predictor_out, weight, bias = inputs
    z = torch.tanh(encoder_out[:, None] + predictor_out[None])  # (T, U+1, D)
    return arcs(torch.nn.functional.linear(z, weight, bias).log_softmax(2), labels, blank=0)
