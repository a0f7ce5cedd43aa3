"""Entries of every topology from a tile of logits, and the gradient of the tile, against autograd of the truth."""

from __future__ import annotations

import pytest
import torch

from samplewise.reference_topologies import NOWHERE, entries
from tests.test_reference_topologies import TOPOLOGIES

LAYOUTS = [(t, blank) for t in TOPOLOGIES for blank in ((8, 4) if t.name == "multi_blank" else (0, 4, 8))]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("topology", "blank"), LAYOUTS, ids=str)
def test_entries_and_gradient(kernels, topology, blank, dtype):
    torch.manual_seed(blank)
    count, rows, classes = 12, 14, 9
    width = classes + topology.extra
    real = torch.float64 if dtype == torch.float64 else torch.float32
    logits, bias = torch.randn(count, width).mul(4).to(dtype), torch.randn(width, dtype=real)
    label = torch.where(torch.arange(count) % 5 == 4, -1, torch.arange(count) % 2 + (1 if blank == 0 else 0))
    node = torch.randperm(rows)[:count]
    form = topology.bind(width, blank)

    leaf = (logits.double() + bias.double()).requires_grad_()
    found = []
    for r in range(count):
        y = label[r : r + 1]
        part = entries(leaf[r][None, None].expand(1, 1 + (y >= 0), -1), y[y >= 0], blank, topology)[:, 0, 0]
        found.append(part)
    truth = torch.stack(found, 1)  # (E, R)
    denominators = torch.full((len(form.heads), rows), 7.0, dtype=torch.float64)
    out = torch.full((len(form.entries), rows), 7.0, dtype=real)
    kernels.entries(logits, bias, node, label, form, denominators, out)
    expected = truth.detach().masked_fill(truth.detach() <= NOWHERE, -torch.inf)
    close = {"rtol": 1e-12, "atol": 1e-12} if real == torch.float64 else {"rtol": 2e-6, "atol": 2e-6}
    torch.testing.assert_close(out[:, node], expected.to(real), **close)
    untouched = torch.ones(rows, dtype=torch.bool).index_fill(0, node, False)
    assert bool((out[:, untouched] == 7.0).all())

    gammas = torch.rand(len(form.entries), rows, dtype=real)
    gammas[:, node[3]] = 0.0
    logits[3] = torch.nan  # nobody's
    gammas[topology.label_entry, node[label < 0]] = 0.0
    for e, (_, _, complement) in enumerate(form.entries):
        if complement:  # posterior of the label, whatever head it has
            gammas[e] = gammas[topology.label_entry]
    usable = truth.masked_fill(truth <= NOWHERE, 0.0)
    gradient = torch.autograd.grad(-(usable * gammas[:, node]).sum(), leaf)[0]
    gradient[3] = 0.0
    d_bias = torch.ones(width, dtype=real)
    kernels.entries_gradient(logits, bias, node, label, form, denominators, gammas, d_bias)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(logits.to(real), gradient.to(real), rtol=2 * eps, atol=max(1e-12, 2 * eps))
    torch.testing.assert_close(d_bias - 1, gradient.sum(0).to(real), rtol=1e-5, atol=1e-12 if real == torch.float64 else 2e-5)
