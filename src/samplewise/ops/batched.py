"""The method "batched": what ordinary implementations do, on the padded 4-D tensor. The reference and the yardstick.

Read it beside arXiv 2211.16270, section 2; the names are the paper's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from samplewise.kernels.activations import TABLE, activate, derivative
from samplewise.kernels.layout import padded_table
from samplewise.observation import report_group
from samplewise.ops.lattices import Occupancy
from samplewise.ops.problem import Gradients, Problem
from samplewise.ops.samplewise import clear_unusable
from samplewise.ops.tiles import add_product, logits_gradient, no_emissions
from samplewise.planning.planner import Schedule


def run(problem: Problem, weights: Tensor, gradients: Gradients | None, schedule: Schedule, tolerance: float) -> Tensor:
    """Losses (B,) float64; the gradients of sum_b weights[b] loss[b] are added to `gradients`."""
    p = problem
    B, T, _ = p.encoder_out.shape
    width = p.predictor_out.shape[1]  # U + 1
    D = p.weight.shape[1]
    real_node = (
        _mask(p.lengths.frames, T, p.device)[:, :, None] & _mask([u + 1 for u in p.lengths.labels], width, p.device)[:, None]
    )  # (B, T, U+1)

    s = p.encoder_out[:, :, None] + p.predictor_out[:, None]  # (B, T, U+1, D)
    s.masked_fill_(~real_node[..., None], 0.0)  # whatever the padding holds, NaN included, ends here
    z = activate(s.clone() if TABLE[p.activation].of_sum else s, p.activation).to(p.compute).reshape(-1, D)  # f^J
    node, group = torch.arange(z.shape[0], device=p.device), p.group(0, B)
    frame, token = node // width, node // (T * width) * width + node % width
    p.drop(group, z, frame, token)
    h = z @ p.weight.t()  # f^O, (B T (U+1), V)

    label = _labels(p, T, width)  # (B T (U+1),)
    out = no_emissions(h.shape[0], p)
    p.lattice.emission(h, p.bias, node, label, out)  # f^W_1
    p.adjust(group, out.entries, node, frame, token)

    nodes = sum(t * (u + 1) for t, u in zip(*p.lengths, strict=True))
    report_group("batched", 0, B, nodes, active=None if gradients is None else nodes)
    losses = weights.new_empty(B)
    table = padded_table(p.lengths.frames, p.lengths.labels, T, width, p.device)
    if gradients is None:
        p.lattice.run(out.entries, table, weights, losses, None)  # f^W_2, f^W_3
        return losses
    gammas = torch.zeros_like(out.entries)
    p.lattice.run(out.entries, table, gradients.in_lattice(weights), losses, gammas)
    p.lattice.weigh(gammas)

    logits_gradient(p, group, h, node, label, frame, Occupancy(out.denominators, gammas), gradients)  # f^W_4, in place
    clear_unusable(z, table, losses)
    if gradients.weight is not None:
        add_product(gradients.weight, h, z)  # d theta^O
    if gradients.wants_encodings:
        dz = (h @ p.weight).to(p.real)
        if p.dropout is not None:
            p.drop(group, dz, frame, token)
            z = z / p.dropout.scale
        dz *= derivative(s.reshape(-1, D).to(p.real), z.to(p.real), p.activation)
        dz.masked_fill_(torch.add(*p.lattice.occupancies(gammas))[:, None] == 0, 0.0)
        dz = dz.view(B, T, width, D)
        if gradients.encoder is not None:
            gradients.encoder += dz.sum(2)
        if gradients.predictor is not None:
            gradients.predictor += dz.sum(1)
    return losses


def _mask(lengths: list[int], size: int, device: torch.device) -> Tensor:
    """True where an index is within its utterance's length, (B, size)."""
    return torch.arange(size, device=device)[None] < torch.tensor(lengths, device=device)[:, None]


def _labels(problem: Problem, frames: int, width: int) -> Tensor:
    """The next label of every padded node, -1 where there is none, as a flat (B T (U+1),) tensor."""
    targets = torch.nn.functional.pad(problem.targets, (0, 1))[:, :width]
    targets = torch.nn.functional.pad(targets, (0, width - targets.shape[1]))
    within = _mask(problem.lengths.labels, width, problem.device)
    return torch.where(within, targets, -1)[:, None].expand(-1, frames, -1).reshape(-1)
