"""`fused_emission` of the Triton kernels: what joint, matrix product and emission make, without their memory."""

import pytest
import torch

from samplewise.reference import activation_of

kernels = pytest.importorskip("samplewise.kernels.triton", reason="Triton is not installed")
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    "rows, classes, dim, activation",
    [(1, 1, 1, "identity"), (7, 2, 33, "relu"), (65, 129, 40, "tanh"), (5, 300, 64, "silu"), (3, 33, 31, "sigmoid")],
)
def test_fused_emission(rows, classes, dim, activation, dtype):
    encoder_rows, predictor_rows = torch.randn(6, dim).to(dtype), torch.randn(5, dim).to(dtype)
    weight, bias = (torch.randn(classes, dim) * 2 / dim**0.5).to(dtype), torch.randn(classes)
    frame, token = torch.randint(6, (rows,)), torch.randint(5, (rows,))
    node, label, blank = torch.randperm(2 * rows)[:rows], torch.randint(-1, classes, (rows,)), classes // 2
    outputs = [torch.full((2 * rows,), NAN, dtype=kind) for kind in (torch.float64, torch.float32, torch.float32)]
    kernels.fused_emission(encoder_rows, predictor_rows, frame, token, activation, weight, bias, node, label, blank, *outputs)

    z = activation_of(activation)(encoder_rows[frame].float() + predictor_rows[token].float()).to(dtype)
    log_probs = (z.double() @ weight.double().t() + bias.double()).log_softmax(1)
    by_label = torch.where(label < 0, -INF, log_probs.gather(1, label.clamp(min=0)[:, None])[:, 0])
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 0.01, "atol": 0.01}
    torch.testing.assert_close(outputs[1][node].double(), log_probs[:, blank], **close)
    torch.testing.assert_close(outputs[2][node].double(), by_label, **close)
    scores = z.double() @ weight.double().t() + bias.double()
    torch.testing.assert_close(outputs[0][node], scores.logsumexp(1), **close)
    others = torch.ones(2 * rows, dtype=torch.bool).index_fill_(0, node, False)
    assert all(output[others].isnan().all() for output in outputs), "another node was written"


def test_not_finite():
    """NaN and infinity reach their own rows and no others."""
    encoder_rows, zero = torch.randn(3, 8), torch.zeros(1, 8)
    encoder_rows[1, 3] = NAN
    index, token = torch.arange(3), torch.zeros(3, dtype=torch.int64)
    outputs = [torch.zeros(3, dtype=kind) for kind in (torch.float64, torch.float32, torch.float32)]
    arguments = (encoder_rows, zero, index, token, "identity", torch.randn(20, 8), torch.zeros(20), index, index, 0)
    kernels.fused_emission(*arguments, *outputs)
    assert all(output.isfinite().tolist() == [True, False, True] for output in outputs)
