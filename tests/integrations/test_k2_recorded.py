"""k2's and fast_rnnt's functions under their own names and arguments, against what these gave on the CPU: see
`tests/ops/test_peers.py`."""

from __future__ import annotations

import json

import pytest
import torch

from samplewise.integrations import fast_rnnt, k2
from tests.ops.test_peers import FOLDER, MISSING, arrays, group_of, recorded
from tests.ops.test_topology_peers import same as same_numbers

PEERS = {"k2": k2, "fast_rnnt": fast_rnnt}
LOSSES = ("rnnt_loss", "rnnt_loss_simple", "rnnt_loss_smoothed", "rnnt_loss_pruned")
LOGPROBS = (
    "get_rnnt_logprobs", "get_rnnt_logprobs_smoothed", "get_rnnt_logprobs_joint", "get_rnnt_logprobs_pruned",
    "get_hat_logprobs_pruned",
)  # fmt: skip
RANGES = ("get_rnnt_prune_ranges", "get_rnnt_prune_ranges_deprecated")
OTHERS = ("do_rnnt_pruning", "mutual_information_recursion")


def cases(*functions):
    return pytest.mark.parametrize("peer, case", recorded(PEERS, lambda peer, case: case["function"] in functions))


def slack_of(case) -> tuple[float, float]:
    """Of losses and of gradients. k2 makes delay penalties in float32 where there is a boundary."""
    if case["dtype"] != "float64":
        return 3e-6, 1e-5
    coarse = case["args"].get("delay_penalty", 0.0) > 0 and "boundary" in case["arrays"]["inputs"]
    return (1e-8, 1e-7) if coarse else (1e-10, 1e-8)


def call(peer, case, **more):
    """What a function gives, and the float arrays that it was given."""
    values = arrays(peer)
    given = {name: values[f"{case['id']}/inputs/{name}"] for name in case["arrays"]["inputs"]}
    leaves = {name: x.clone().requires_grad_() for name, x in given.items() if x.is_floating_point()}
    out = getattr(PEERS[peer], case["function"])(**{**given, **leaves, **case["args"], **more})
    for name, x in leaves.items():
        assert torch.equal(x, given[name]), f"{name} was changed"
    return out, leaves


def same(found, right, slack, what):
    """k2 takes 1e-20 for a share of 0, and has a gradient of that size where there is none."""
    if bool((right.abs() < 1e-15).all()):
        assert found.shape == right.shape and not bool(found.any()), what
    else:
        same_numbers(found, right, slack, what)


@cases(*LOSSES)
def test_losses(peer, case):
    values, (slack, gradient_slack) = arrays(peer), slack_of(case)
    for reduction in case["reductions"]:
        group = group_of(case, values, reduction)
        out, leaves = call(peer, case, reduction=reduction)
        loss, grads = out if case["args"].get("return_grad") else (out, None)
        assert loss.shape == group["loss"].shape and loss.dtype == group["loss"].dtype
        same(loss, group["loss"], slack, f"{reduction}: {loss.tolist()}")
        if reduction == "none":
            same(loss.double(), values[f"{case['id']}/truth/losses"], slack, "truth")
        if grads is not None and reduction == "none":
            for name, found in zip(("px_grad", "py_grad"), grads, strict=True):
                assert found.shape == group[name].shape and found.dtype == group[name].dtype and found.is_contiguous()
                same_where_finite(loss, found, group[name], gradient_slack, name)
        loss.backward(group["upstream"])
        for name, leaf in leaves.items():
            same_where_finite(loss, leaf.grad, group[f"grad_{name}"], gradient_slack, f"{reduction}, gradient of {name}")


def same_where_finite(loss, found, right, slack, what):
    """Of an utterance whose loss is infinite the gradient is zero, whatever the peer says."""
    assert bool(torch.isfinite(found).all()), what
    if bool(torch.isfinite(loss).all()):
        same(found, right, slack, what)
    elif loss.dim():
        usable = torch.isfinite(loss)
        same(found[usable], right[usable], slack, what)
        assert not bool(found[~usable].any()), what


@cases(*LOGPROBS)
def test_log_probabilities(peer, case):
    group, (slack, gradient_slack) = group_of(case, arrays(peer), "out"), slack_of(case)
    out, leaves = call(peer, case)
    for name, found in zip(("px", "py"), out, strict=True):
        assert found.shape == group[name].shape and found.dtype == group[name].dtype and found.is_contiguous()
        same(found, group[name], slack, name)
    gradients = torch.autograd.grad(out, list(leaves.values()), [group["upstream_px"], group["upstream_py"]])
    for name, gradient in zip(leaves, gradients, strict=True):
        same(gradient, group[f"grad_{name}"], gradient_slack, name)


@cases(*RANGES)
def test_ranges(peer, case):
    ranges, _ = call(peer, case)
    right = group_of(case, arrays(peer), "out")["ranges"]
    assert ranges.dtype == right.dtype and torch.equal(ranges, right), f"{ranges[:, :, 0]}, {right[:, :, 0]}"


@cases("do_rnnt_pruning")
def test_pruning(peer, case):
    group = group_of(case, arrays(peer), "out")
    out, leaves = call(peer, case)
    for name, found in zip(("am_pruned", "lm_pruned"), out, strict=True):
        assert torch.equal(found, group[name])
    torch.autograd.backward(out, [group["upstream_am_pruned"], group["upstream_lm_pruned"]])
    for name, leaf in leaves.items():
        same(leaf.grad, group[f"grad_{name}"], slack_of(case)[1], name)


@cases("mutual_information_recursion")
def test_recursion(peer, case):
    group, (slack, gradient_slack) = group_of(case, arrays(peer), "out"), slack_of(case)
    (scores, grads), leaves = call(peer, case)
    assert scores.dtype == group["scores"].dtype
    same(scores, group["scores"], slack, "scores")
    for name, found in zip(("px", "py"), grads, strict=True):
        same(found, group[f"{name}_grad"], gradient_slack, name)
    scores.backward(group["upstream"])
    for name, leaf in leaves.items():
        same(leaf.grad, group[f"grad_{name}"], gradient_slack, name)


@pytest.mark.parametrize("peer", PEERS)
def test_every_recorded_function_is_among_these(peer):
    path = FOLDER / f"{peer}.json"
    if not path.exists():
        pytest.skip(MISSING)
    found = json.loads(path.read_text())["cases"]
    assert len(found) > 80
    assert {case["function"] for case in found} <= {*LOSSES, *LOGPROBS, *RANGES, *OTHERS}
    assert all(case["agreement"]["flag"] == "ok" for case in found)
