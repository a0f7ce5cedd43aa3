"""The truth of every topology: the recursion equals the sum over all alignments, one by one, and so do its gradients."""

from __future__ import annotations

import math

import pytest
import torch

from samplewise import topology as topologies
from samplewise.reference_topologies import entries, enumerated, log_likelihood

TOPOLOGIES = [
    topologies.regular(), topologies.modified(), topologies.constrained(), topologies.hat(),
    topologies.multi_blank((2,)), topologies.multi_blank((2, 3), sigma=0.05), topologies.tdt((0, 1, 2), sigma=0.05),
    topologies.tdt((1, 2)), topologies.tdt((0, 2, 3)), topologies.tdt((2, 3)), topologies.tdt((1,)), topologies.tdt((3, 0, 1)),
    topologies.modified(label_ends=False),
]  # fmt: skip
SIZES = [(1, 0), (1, 1), (1, 2), (2, 2), (3, 3), (4, 2), (2, 4), (5, 3), (4, 0)]


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=str)
@pytest.mark.parametrize(("frames", "labels"), SIZES)
def test_the_recursion_is_the_sum_over_all_alignments(topology, frames, labels):
    torch.manual_seed(frames * 10 + labels)
    rows = 6 + topology.extra
    scores = torch.randn(frames, labels + 1, rows, dtype=torch.float64, requires_grad=True)
    blank = 4 if topology.name == "multi_blank" else 0
    targets = torch.randint(0, 2, (labels,)) + (0 if blank else 1)
    penalty = 0.3 * ((frames - 1) / 2 - torch.arange(frames, dtype=torch.float64)[:, None])
    found = entries(scores, targets, blank, topology)
    loss, truth = -log_likelihood(found, topology, penalty), enumerated(found, topology, penalty)
    if math.isinf(truth.item()):
        assert math.isinf(loss.item())
        return
    torch.testing.assert_close(loss, truth, rtol=1e-12, atol=1e-12)
    gradients = (torch.autograd.grad(x, scores, retain_graph=True)[0] for x in (loss, truth))
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=str)
def test_labels_stay_where_they_are_allowed(topology):
    torch.manual_seed(3)
    scores = torch.randn(5, 3, 6 + topology.extra, dtype=torch.float64)
    blank = 4 if topology.name == "multi_blank" else 0
    found = entries(scores, torch.tensor([1, 1]), blank, topology)
    allowed = torch.tensor([[True, False], [True, False], [False, True], [False, True], [True, True]])
    loss, truth = -log_likelihood(found, topology, 0.0, allowed), enumerated(found, topology, 0.0, allowed)
    torch.testing.assert_close(loss, truth, rtol=1e-12, atol=1e-12)
    assert math.isinf(truth) or truth > enumerated(found, topology)


def test_a_topology_is_known_by_its_key():
    for topology in TOPOLOGIES:
        assert topologies.named(topology.key) == topology
    assert topologies.named("tdt") == topologies.tdt((0, 1, 2, 3, 4))
