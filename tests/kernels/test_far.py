"""Offsets beyond 2^31 elements: tensors that are only reserved, with the few pages in use far from their beginning."""

import pytest
import torch

from samplewise.kernels.layout import packed_table

pytestmark = pytest.mark.slow
FAR = 2**31
CPU = torch.device("cpu")


def reserve(size, dtype):
    """Address space for so many elements; pages that nobody touches take no memory."""
    try:
        return torch.empty(size, dtype=dtype)
    except RuntimeError:
        pytest.skip("the system does not promise so much memory")


def test_emission_rows(kernels):
    """Three rows of a matrix of more than 2^31 elements, as a view with long strides."""
    height, classes = 150_000, 15_000
    whole = reserve((height, classes), torch.bfloat16)
    rows = whole[::74_900]
    assert rows.stride(0) * 2 > FAR and len(rows) == 3
    small = torch.randn(3, 1000).bfloat16()
    rows.fill_(-100.0)
    rows[:, :1000] = small
    bias, node, label = torch.zeros(classes), torch.arange(3), torch.tensor([1, 999, 5])
    outputs = [torch.full((3,), float("nan"), dtype=kind) for kind in (torch.float64, torch.float32, torch.float32)]
    kernels.emission(rows, bias, node, label, 0, *outputs)
    right = small.float().log_softmax(1)
    torch.testing.assert_close(outputs[1], right[:, 0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(outputs[2], right[torch.arange(3), label], rtol=1e-4, atol=1e-4)
    gammas = torch.full((3,), 0.5), torch.full((3,), 0.25)
    kernels.emission_gradient(rows, bias, node, label, 0, outputs[0], *gammas, torch.zeros(classes))
    gradient = right.exp() * 0.75
    gradient[:, 0] -= 0.5
    gradient[torch.arange(3), label] -= 0.25
    torch.testing.assert_close(rows[:, :1000].float(), gradient, rtol=0.02, atol=1e-4)


def test_lattice_nodes(kernels):
    """An utterance whose nodes begin beyond 2^31."""
    table, nodes = packed_table((5,), (3,), 5, 4, 3, CPU)
    near = [torch.randn(nodes).abs().neg() for _ in range(2)]
    near[1].view(5, 4)[:, 3] = -float("inf")
    far = [reserve(FAR + 100 + nodes, torch.float32) for _ in range(2)]
    there = slice(FAR + 100, FAR + 100 + nodes)
    for x, y in zip(far, near, strict=True):
        x[there] = y
    results = []
    for emissions, shift in ((near, 0), (far, FAR + 100)):
        moved = table.clone()
        moved[:, 0] += shift
        losses = torch.full((1,), float("nan"), dtype=torch.float64)
        kernels.lattice(*emissions, moved, torch.ones_like(losses), losses, *emissions)  # in place
        results.append([losses, *(x[shift : shift + nodes] for x in emissions)])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_joint_rows(kernels):
    """Rows of encodings beyond 2^31 elements, read and written."""
    rows = reserve((1_100_000, 2000), torch.float32)
    assert rows.numel() > FAR
    rows[1_099_999] = 2.0
    columns = torch.ones(1, 2000)
    frame, token = torch.tensor([1_099_999]), torch.tensor([0])
    out = torch.full((1, 2000), float("nan"))
    kernels.joint(rows, columns, frame, token, "identity", out)
    assert (out == 3).all()
    sums = torch.zeros_like(columns)
    kernels.joint_gradient(torch.ones_like(out), out, rows, columns, frame, token, "identity", rows, sums)
    assert (rows[1_099_999] == 3).all() and (sums == 1).all()
