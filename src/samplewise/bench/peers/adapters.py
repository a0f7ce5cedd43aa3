"""Each peer's loss of a workload, summed: joint and output layer in plain PyTorch, then the peer.

Peers take logits. Making them from the encodings, and taking their gradients back to encodings and output layer, is part of
what is measured, as it is part of what ours do.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from types import ModuleType

import torch
from torch import Tensor
from torch.nn.functional import linear

from samplewise.bench.baseline import joint_logits
from samplewise.bench.workloads import Workload

PRUNED_RANGE = 5


def int32(workload: Workload) -> tuple[Tensor, Tensor, Tensor]:
    targets, frames, labels = (tensor.to(torch.int32).contiguous() for tensor in workload.integers)
    return targets, frames, labels


def packed_logits(workload: Workload) -> Tensor:
    """(N, V), utterance after utterance, without padding."""
    z = [
        torch.tanh(encoder_out[:t, None] + predictor_out[None, : u + 1]).flatten(0, 1)
        for encoder_out, predictor_out, t, u in zip(
            workload.encoder_out, workload.predictor_out, workload.encoder_lengths.tolist(),
            workload.target_lengths.tolist(), strict=True,
        )
    ]  # fmt: skip
    return linear(z[0] if len(z) == 1 else torch.cat(z), workload.weight, workload.bias)


def boundary(workload: Workload) -> Tensor:
    """(B, 4): 0, 0, labels, frames, as fast_rnnt and k2 want it."""
    zeros = torch.zeros_like(workload.target_lengths)
    return torch.stack([zeros, zeros, workload.target_lengths, workload.encoder_lengths], 1)


def torchaudio(workload: Workload) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own deprecations
        functional = importlib.import_module("torchaudio.functional")
        return functional.rnnt_loss(joint_logits(workload), *int32(workload), blank=0, reduction="sum")


def optimized_transducer(workload: Workload) -> Tensor:
    peer = importlib.import_module("optimized_transducer")
    logits = packed_logits(workload)
    return peer.transducer_loss(logits, *int32(workload), blank=0, from_log_softmax=False, reduction="sum")


def fast_rnnt(workload: Workload, module: str = "fast_rnnt") -> Tensor:
    peer = importlib.import_module(module)
    return peer.rnnt_loss(joint_logits(workload), workload.targets, 0, boundary=boundary(workload), reduction="sum")


def fast_rnnt_pruned(workload: Workload, module: str = "fast_rnnt") -> Tensor:
    """Ranges from the simple joint (the output layer applied to each encoding alone), then the loss within them.

    Only the pruned loss is differentiated: a recipe that also trains by the simple loss pays more.
    """
    peer = importlib.import_module(module)
    limits = boundary(workload)
    with torch.no_grad():
        am, lm = linear(workload.encoder_out, workload.weight), linear(workload.predictor_out, workload.weight, workload.bias)
    _, (px_grad, py_grad) = peer.rnnt_loss_simple(
        lm.requires_grad_(), am.requires_grad_(), workload.targets, 0, boundary=limits, reduction="sum", return_grad=True
    )
    width = min(PRUNED_RANGE, workload.targets.shape[1] + 1)
    ranges = peer.get_rnnt_prune_ranges(px_grad, py_grad, limits, width)
    am, lm = peer.do_rnnt_pruning(workload.encoder_out, workload.predictor_out, ranges)  # (B, T, 5, D)
    logits = linear(torch.tanh(am + lm), workload.weight, workload.bias)
    return peer.rnnt_loss_pruned(logits, workload.targets, ranges, 0, boundary=limits, reduction="sum")


def k2(workload: Workload) -> Tensor:
    return fast_rnnt(workload, "k2")


def k2_pruned(workload: Workload) -> Tensor:
    return fast_rnnt_pruned(workload, "k2")


def warp_transducer(workload: Workload) -> Tensor:
    peer = importlib.import_module("warprnnt_pytorch")
    return peer.rnnt_loss(joint_logits(workload), *int32(workload), blank=0, reduction="sum")


def warprnnt_numba(workload: Workload) -> Tensor:
    return numba_loss(importlib.import_module("warprnnt_numba"), workload, int32(workload))


def nemo(workload: Workload) -> Tensor:
    return numba_loss(importlib.import_module("nemo.collections.asr.parts.numba.rnnt_loss"), workload, workload.integers)


def numba_loss(peer: ModuleType, workload: Workload, integers: tuple[Tensor, ...]) -> Tensor:
    return peer.RNNTLossNumba(blank=0, reduction="sum")(joint_logits(workload), *integers).sum()


STEPS: dict[str, Callable[[Workload], Tensor]] = {
    "torchaudio": torchaudio,
    "optimized-transducer": optimized_transducer,
    "fast-rnnt": fast_rnnt,
    "fast-rnnt-pruned": fast_rnnt_pruned,
    "warp-transducer": warp_transducer,
    "warprnnt-numba": warprnnt_numba,
    "nemo": nemo,
    "k2": k2,
    "k2-pruned": k2_pruned,
}
