"""`rnnt_loss` against numbers that other libraries gave on the CPU: losses and gradients of every reduction, with clamp and
with log-probabilities as input.

The numbers are not part of the repository: they are looked for in ../shared/data/peer_values, beside it, a JSON index and an
NPZ of arrays for each library (see the README there for their making).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
import torch

import samplewise
from tests.problems import error

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "data" / "peer_values"
MISSING = f"no recorded numbers of peers in {FOLDER}; put peer_values (an index and arrays for each library) there"
INPUTS = {"logits": "logits", "acts": "logits", "targets": "targets", "labels": "targets", "logit_lengths": "logit_lengths",
          "act_lens": "logit_lengths", "target_lengths": "target_lengths", "label_lens": "target_lengths"}  # fmt: skip
FUNCTIONS = {
    "torchaudio": ("functional.rnnt_loss",),
    "warp_transducer": ("rnnt_loss", "RNNTLoss"),
    "optimized_transducer": ("transducer_loss",),
    "nemo_numba": ("rnnt_loss", "RNNTLossNumba"),
    "nemo_numba_cudasim": ("RNNTLossNumba",),
    "nemo_pytorch": ("RNNTLossPytorch",),
    "warprnnt_numba": ("rnnt_loss", "RNNTLossNumba"),
}
REDUCTIONS = {"nemo_pytorch": {"mean_batch": "mean", "mean": "mean_target"}}  # elsewhere they are called as here


def same_function(peer: str, case: dict) -> bool:
    """Whether the case computes what `rnnt_loss` computes."""
    options = options_of(case)
    other_lattice = options.get("one_sym_per_frame", False) or options.get("fastemit_lambda", 0.0) != 0.0
    clamp_after_upstream = peer in ("nemo_numba", "warprnnt_numba") and options.get("clamp", -1) > 0
    right = case["agreement"]["flag"] == "ok"
    return case["function"] in FUNCTIONS[peer] and right and not other_lattice and not clamp_after_upstream


def recorded(peers: Iterable[str], wanted: Callable[[str, dict], bool]) -> list:
    """The wanted cases, as parameters (peer, case); a skipped one if there are none."""
    found = []
    for peer in peers:
        path = FOLDER / f"{peer}.json"
        if path.exists():
            for case in json.loads(path.read_text())["cases"]:
                if wanted(peer, case):
                    found.append(pytest.param(peer, case, id=f"{peer}-{case['id']}"))
    return found or [pytest.param(None, None, marks=pytest.mark.skip(reason=MISSING))]


def options_of(case: dict) -> dict:
    return {**case["args"], **case.get("init_args", {})}


def inputs_of(case: dict, values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The arrays that a case was given, under our names."""
    return {INPUTS[name]: values[f"{case['id']}/inputs/{name}"] for name in case["arrays"]["inputs"]}


def group_of(case: dict, values: dict[str, torch.Tensor], reduction: str) -> dict[str, torch.Tensor]:
    """What came out with a reduction, and the upstream gradient."""
    return {name: values[f"{case['id']}/{reduction}/{name}"] for name in case["arrays"][reduction]}


@functools.cache
def arrays(peer: str) -> dict[str, torch.Tensor]:
    with np.load(FOLDER / f"{peer}.npz", allow_pickle=False) as archive:
        return {name: torch.from_numpy(archive[name]) for name in archive.files}


def padded(rows: torch.Tensor, logit_lengths: torch.Tensor, target_lengths: torch.Tensor) -> torch.Tensor:
    """Packed rows (sum T_b (U_b+1), V) as (B, T, U+1, V), with garbage in the padding."""
    T, U = int(logit_lengths.max()), int(target_lengths.max())
    out, at = torch.full((len(logit_lengths), T, U + 1, rows.shape[1]), float("nan"), dtype=rows.dtype), 0
    for b, (t, u) in enumerate(zip(logit_lengths.tolist(), target_lengths.tolist(), strict=True)):
        out[b, :t, : u + 1] = rows[at : at + t * (u + 1)].view(t, u + 1, -1)
        at += t * (u + 1)
    return out


@pytest.mark.parametrize("peer, case", recorded(FUNCTIONS, same_function))
def test_numbers_of_peers(peer, case):
    values, options = arrays(peer), options_of(case)
    given = inputs_of(case, values)
    packed = given["logits"].dim() == 2
    blank = options.get("blank", 0)
    fused = options.get("fused_log_softmax", not options.get("from_log_softmax", False))
    if packed:
        given["logits"] = padded(given["logits"], given["logit_lengths"], given["target_lengths"])
    for reduction in case["reductions"]:
        logits = given["logits"].clone().requires_grad_()
        ours = REDUCTIONS.get(peer, {}).get(reduction, reduction)
        loss = samplewise.rnnt_loss(
            logits, given["targets"], given["logit_lengths"], given["target_lengths"], blank=blank,
            clamp=options.get("clamp", -1), reduction=ours, fused_log_softmax=fused,
        )  # fmt: skip
        group = group_of(case, values, reduction)
        right = group["loss"].reshape(loss.shape)
        loss.backward(group["upstream"].reshape(loss.shape).to(loss))
        gradient = next(array for name, array in group.items() if name.startswith("grad_"))
        got = logits.grad
        if packed:
            inside = ~given["logits"].isnan().all(3)
            assert (got[~inside] == 0).all()
            got = got[inside]
        assert error(loss, right) <= 5e-6, f"{reduction}: {loss.tolist()}, {peer} says {right.tolist()}"
        assert error(got, gradient) <= 3e-5, f"gradient, {reduction}"
        if reduction == "none" and fused:
            assert error(loss, values[f"{case['id']}/truth/losses"]) <= 3e-7


def test_all_targets_empty_and_of_width_zero():
    """A case in which a peer returns 0, silently: the loss is that of the blanks."""
    path = FOLDER / "warp_transducer.json"
    if not path.exists():
        pytest.skip(MISSING)
    case = next(c for c in json.loads(path.read_text())["cases"] if "width 0" in (c.get("note") or ""))
    values = arrays("warp_transducer")
    given = inputs_of(case, values)
    loss = samplewise.rnnt_loss(**given, blank=case["args"]["blank"], reduction="none")
    assert error(loss, values[f"{case['id']}/truth/losses"]) <= 1e-6 and (loss > 0).all()
