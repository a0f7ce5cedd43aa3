"""The general lattice: losses and posteriors of every topology against autograd of the truth, whole and in pieces."""

from __future__ import annotations

import math

import pytest
import torch

from samplewise.kernels.layout import packed_table
from samplewise.reference_topologies import NOWHERE, log_likelihood
from samplewise.topology import modified
from tests.test_reference_topologies import TOPOLOGIES

FRAMES, LABELS = [7, 1, 5, 3, 4], [3, 0, 5, 4, 0]
FEW = ([4, 1, 3], [2, 0, 4])  # for an interpreter, which is slow


def slow(kernels) -> bool:
    return kernels.__name__.endswith("triton")


def made(topology, dtype=torch.float64, sizes=(FRAMES, LABELS)):
    """Entries (E, N) of a packed group, and its table."""
    torch.manual_seed(0)
    table, nodes = packed_table(*sizes, 9, 9, 9, torch.device("cpu"))
    entries = torch.randn(len(topology.entries), nodes, dtype=torch.float64).mul(3).sub(2).to(dtype)
    for start, stride, labels, *_ in table.tolist():
        frames = (entries.shape[1] - start) // stride
        last = torch.arange(frames) * stride + start + labels
        entries[topology.label_entry, last[last < nodes]] = -torch.inf
    return entries, table


def truth(topology, entries, table, weights):
    """Losses and posteriors by the recursion and its derivative."""
    leaf = entries.double().clamp(min=NOWHERE).requires_grad_()
    losses = []
    for start, stride, labels, frames, *_ in table.tolist():
        part = leaf[:, start : start + frames * stride].view(len(leaf), frames, stride)[:, :, : labels + 1]
        losses.append(-log_likelihood(part, topology))
    found = torch.stack(losses)
    usable = torch.isfinite(found)
    gradient = torch.autograd.grad((found[usable] * weights[usable]).sum(), leaf)[0]
    return found.detach(), -gradient


def bound(topology):
    return topology.bind(20, 0 if topology.name != "multi_blank" else 19)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("topology", TOPOLOGIES, ids=str)
def test_losses_and_posteriors(kernels, topology, dtype):
    entries, table = made(topology, dtype, FEW if slow(kernels) else (FRAMES, LABELS))
    form, weights = bound(topology), torch.tensor([1.0, 2.0, 0.5, -1.0, 3.0]).double()[: len(table)]
    expected, posteriors = truth(topology, entries, table, weights)
    losses, gammas = torch.empty(len(table), dtype=torch.float64), torch.full_like(entries, 7.0)
    kernels.arcs_lattice(entries, table, form, weights, losses, None)
    torch.testing.assert_close(losses, expected, rtol=1e-12, atol=1e-12)
    kernels.arcs_lattice(entries, table, form, weights, losses, gammas)
    torch.testing.assert_close(losses, expected, rtol=1e-12, atol=1e-12)
    close = {"rtol": 1e-10, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 1e-6, "atol": 1e-7}
    torch.testing.assert_close(gammas, posteriors.to(dtype), **close)
    kernels.arcs_lattice(entries, table, form, weights, losses, entries)  # in their place
    torch.testing.assert_close(entries, gammas, rtol=0, atol=0)


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=str)
def test_an_utterance_in_pieces(kernels, topology):
    frames, labels = (5, 2) if slow(kernels) else (11, 4)
    table, nodes = packed_table([frames], [labels], frames, labels + 1, labels, torch.device("cpu"))
    entries = torch.randn(len(topology.entries), nodes, dtype=torch.float64).sub(2)
    entries[topology.label_entry, labels :: labels + 1] = -torch.inf
    right = truth(topology, entries, table, torch.ones(1).double())
    for step in (2,) if slow(kernels) else (1, 2, 3, 5):
        loss, gammas = in_pieces(kernels, entries, bound(topology), frames, labels, step)
        torch.testing.assert_close(loss, right[0][0], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(gammas, right[1], rtol=1e-10, atol=1e-12)


def in_pieces(kernels, entries, form, frames, labels, step):
    """Loss and posteriors of an utterance, so many frames at a time."""
    above = torch.full((form.reach, labels + 1), -torch.inf, dtype=torch.float64)
    above[0, 0] = 0.0
    kept, pieces = [], []
    for first in range(0, frames, step):
        count = min(step, frames - first)
        piece = packed_table([count], [labels], frames, labels + 1, labels, torch.device("cpu"))[0]
        pieces.append((piece, slice(first * (labels + 1), (first + count) * (labels + 1)), frames - first - count))
        kept.append(above.clone())
        kernels.arcs_forward_piece(entries[:, pieces[-1][1]].contiguous(), piece, form, pieces[-1][2], above)
    loss = -above[0, -1]
    below, gammas = torch.full_like(above, -torch.inf), torch.empty_like(entries)
    for piece, here, after in reversed(pieces):
        out = torch.empty_like(entries[:, here])
        kernels.arcs_backward_piece(
            entries[:, here].contiguous(), piece, form, after, kept.pop(), below, loss, torch.ones(1).double()[0], out
        )
        gammas[:, here] = out
    return loss, gammas


@pytest.mark.parametrize("name", ["constrained", "tdt"])
def test_more_labels_than_a_block_has(name, monkeypatch):
    """Triton walks a diagonal in blocks; those of a GPU have too many nodes for a test."""
    kernels = pytest.importorskip("samplewise.kernels.triton", reason="Triton is not installed")
    monkeypatch.setattr("samplewise.kernels.triton.arcs.LANES", 2)
    topology = next(t for t in TOPOLOGIES if t.name == name)
    entries, table = made(topology, sizes=([7, 4], [5, 2]))
    weights = torch.tensor([1.0, -2.0], dtype=torch.float64)
    expected, posteriors = truth(topology, entries, table, weights)
    losses = torch.empty(2, dtype=torch.float64)
    pieces = in_pieces(kernels, entries[:, : 7 * 6], bound(topology), 7, 5, 3)
    kernels.arcs_lattice(entries, table, bound(topology), weights, losses, entries)
    torch.testing.assert_close(losses, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(entries, posteriors, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(pieces[0], expected[0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(pieces[1], posteriors[:, : 7 * 6], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("frames", "labels"), [(660, 610), (720, 700)])
def test_nodes_that_no_path_reaches_stay_nothing(frames, labels):
    """Their numbers m 2^e may not grow: after some hundred frames they were something, and the loss -inf or -931 nats.

    With all weights alike the loss is the number of steps times their cost less the log of how many paths there are.
    """
    from samplewise.kernels import numba

    topology, cost = modified(), 0.35
    table, nodes = packed_table([frames], [labels], frames, labels + 1, labels, torch.device("cpu"))
    entries = torch.full((2, nodes), -cost, dtype=torch.float64)
    entries[1, labels :: labels + 1] = -torch.inf
    losses, gammas = torch.empty(1, dtype=torch.float64), torch.empty_like(entries)
    numba.arcs_lattice(entries, table, topology.bind(20, 0), torch.ones(1, dtype=torch.float64), losses, gammas)
    paths = math.lgamma(frames + 1) - math.lgamma(labels + 1) - math.lgamma(frames - labels + 1)
    assert losses[0] == pytest.approx(frames * cost - paths, rel=1e-12)
    torch.testing.assert_close(gammas.sum(1), torch.tensor([frames - labels, labels], dtype=torch.float64), rtol=1e-9, atol=0)
