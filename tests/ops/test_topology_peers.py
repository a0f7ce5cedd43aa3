"""`rnnt_loss` of every topology against numbers that other libraries gave on the CPU: see `test_peers.py`.

What a library has that `rnnt_loss` has not is put around it, as its user would: the value of FastEmit, a clamp after everything
else, pruned ranges, penalties and a hybrid's probabilities as log-probabilities of their own.
"""

from __future__ import annotations

import math

import pytest
import torch

import samplewise
from samplewise import topology as topologies
from samplewise.reference_topologies import entries, enumerated
from tests.ops.test_peers import FUNCTIONS, REDUCTIONS, arrays, group_of, inputs_of, options_of, padded, recorded, same_function

TDT = ("loss.loss_tdt.tdt_loss", "TDTLossPytorch", "TDTLossNumba")
MULTI = ("MultiblankRNNTLossPytorch", "MultiblankRNNTLossNumba")
MEANS = {**REDUCTIONS, "transformers": REDUCTIONS["nemo_pytorch"]}
CLAMPED_LAST = ("nemo_numba", "warprnnt_numba")  # after the reduction and the upstream gradient


def topology_of(case) -> topologies.Topology:
    options = options_of(case)
    if "rnnt branch" in (case.get("note") or ""):
        return topologies.regular()  # drawn with probability omega
    if case["function"] in TDT:
        return topologies.tdt(options["durations"], options["sigma"])
    if case["function"] in MULTI:
        return topologies.multi_blank(options["big_blank_durations"], sigma=options["sigma"])
    return topologies.regular()


def given_of(case, values):
    """Logits, as many columns of them as there are durations, targets and lengths."""
    names = case["arrays"]["inputs"]
    if "token_logits" in names:
        given = {name: values[f"{case['id']}/inputs/{name}"] for name in names}
        logits = torch.cat((given.pop("token_logits"), given.pop("duration_logits")), 3)
        return logits, given["targets"], given["logit_lengths"], given["target_lengths"]
    given = inputs_of(case, values)
    return given["logits"], given["targets"], given["logit_lengths"], given["target_lengths"]


def gradient_of(group):
    parts = [group[name] for name in ("grad_token_logits", "grad_duration_logits") if name in group]
    return torch.cat(parts, 3) if parts else next(x for name, x in group.items() if name.startswith("grad_"))


def same(got, right, slack, what):
    """Infinite and finite in the same places, and there as far apart as allowed, by the largest of these."""
    finite = torch.isfinite(right)
    assert torch.equal(torch.isfinite(got), finite) and torch.equal(got[~finite].double(), right[~finite].double()), what
    if finite.any():
        scale = max(right[finite].abs().max().item(), 1e-30)
        assert (got - right)[finite].abs().max().item() <= slack * scale, what


def other_topology(peer, case) -> bool:
    return case["function"] in TDT + MULTI and case["agreement"]["flag"] == "ok"


def other_convention(peer, case) -> bool:
    usual = case["function"] in FUNCTIONS.get(peer, ()) and not options_of(case).get("one_sym_per_frame", False)
    return usual and case["agreement"]["flag"] == "ok" and not same_function(peer, case)


@pytest.mark.parametrize(
    "peer, case",
    recorded(("transformers", "nemo_pytorch", "nemo_numba_cudasim"), other_topology)
    + recorded(("nemo_numba", "nemo_numba_cudasim", "warprnnt_numba"), other_convention),
)
def test_numbers_of_peers(peer, case):
    values, options, topology = arrays(peer), options_of(case), topology_of(case)
    logits, targets, frames, labels = given_of(case, values)
    blank, emit, clamp = options.get("blank", options.get("blank_token_id")), options.get("fastemit_lambda", 0.0), -1
    tdt = case["function"] in TDT
    unused = len(options["durations"]) if tdt and not topology.extra else 0  # a draw that reads no durations
    if peer not in CLAMPED_LAST:
        clamp = options.get("clamp", -1)
    for reduction in case["reductions"]:
        group = group_of(case, values, reduction)

        def run(clamp, reduction=reduction, group=group):
            leaf = logits.detach().clone().requires_grad_()
            loss = samplewise.rnnt_loss(
                leaf[..., : logits.shape[3] - unused], targets, frames, labels, blank=blank, clamp=clamp,
                reduction=MEANS.get(peer, {}).get(reduction, reduction), fastemit_lambda=emit, topology=topology,
            )  # fmt: skip
            loss.backward(group["upstream"].reshape(loss.shape).to(loss))
            return loss.detach(), leaf.grad

        loss, gradient = run(clamp)
        if clamp > 0 and topology.extra:  # the peer leaves durations as they are
            gradient = torch.cat((gradient[..., : -topology.extra], run(-1)[1][..., -topology.extra :]), 3)
        if peer in CLAMPED_LAST and options.get("clamp", -1) > 0:
            gradient = gradient.clamp(-options["clamp"], options["clamp"])
        right = group["loss"].reshape(loss.shape)
        same(loss * (1 + emit), right, 5e-6, f"{reduction}: {loss.tolist()}, {peer} says {right.tolist()}")
        same(gradient, gradient_of(group), 3e-5, f"gradient, {reduction}")


def disagrees(peer, case) -> bool:
    return case["function"] in TDT and case["agreement"]["flag"] == "differs"


@pytest.mark.parametrize("peer, case", recorded(("transformers", "nemo_pytorch"), disagrees))
def test_where_peers_are_wrong_the_sum_over_all_alignments_is_right(peer, case):
    """NaN in gradients, or a finite loss, where nodes or utterances have no path."""
    values, topology = arrays(peer), topology_of(case)
    logits, targets, frames, labels = given_of(case, values)
    options = options_of(case)
    blank = options.get("blank", options.get("blank_token_id"))
    leaf, other = (logits.double().requires_grad_() for _ in range(2))
    loss = samplewise.rnnt_loss(leaf, targets, frames, labels, blank=blank, topology=topology, reduction="none")
    right = torch.stack([
        enumerated(entries(other[b, :t, : u + 1], targets[b, :u], blank, topology), topology)
        for b, (t, u) in enumerate(zip(frames.tolist(), labels.tolist(), strict=True))
    ])  # fmt: skip
    same(loss, right, 1e-12, "loss")
    same(loss, values[f"{case['id']}/truth/losses"], 1e-6, "recorded truth")
    usable = torch.isfinite(right)
    right[usable].sum().backward()
    loss.backward(torch.ones_like(loss))
    same(leaf.grad, other.grad, 1e-11, "gradient")
    group = group_of(case, values, "none")
    finite = torch.isfinite(gradient_of(group)).all() and torch.isfinite(group["loss"]).all()
    assert not finite or not torch.isfinite(right).all()  # what is wrong with the peer's


def one_symbol(peer, case) -> bool:
    return options_of(case).get("one_sym_per_frame", False)


@pytest.mark.parametrize("peer, case", recorded(("optimized_transducer",), one_symbol))
def test_one_symbol_a_frame_and_a_blank_at_the_end(peer, case):
    """ "modified", where no label may be in the last frame."""
    values, options = arrays(peer), options_of(case)
    given = inputs_of(case, values)
    frames, blank = given["logit_lengths"], options["blank"]
    logits = padded(given["logits"], frames, given["target_lengths"])
    inside = ~logits.isnan().all(3)
    last = torch.arange(logits.shape[1])[None] == frames[:, None] - 1
    never = last[:, :, None, None] & (torch.arange(logits.shape[3]) != blank)
    for reduction in case["reductions"]:
        leaf = logits.detach().clone().requires_grad_()
        scores = leaf if options["from_log_softmax"] else leaf.log_softmax(3)
        loss = samplewise.rnnt_loss(
            scores.masked_fill(never, -math.inf), given["targets"], frames, given["target_lengths"], blank=blank,
            reduction=reduction, fused_log_softmax=False, topology="modified",
        )  # fmt: skip
        group = group_of(case, values, reduction)
        loss.backward(group["upstream"].reshape(loss.shape).to(loss))
        same(loss, group["loss"].reshape(loss.shape), 5e-6, f"{reduction}: {loss.tolist()}")
        same(leaf.grad[inside], gradient_of(group), 3e-5, f"gradient, {reduction}")


def pruned(peer, case) -> bool:
    return case["function"] == "rnnt_loss_pruned" and case["agreement"]["flag"] == "ok"


def log_probabilities(logits, blank, hat):
    if not hat:
        return logits.log_softmax(3)
    assert blank == 0
    labels = logits[..., 1:].log_softmax(3) + torch.nn.functional.logsigmoid(-logits[..., :1])
    return torch.cat((torch.nn.functional.logsigmoid(logits[..., :1]), labels), 3)


def unpruned(scores, ranges, boundary, penalty, blank, width):
    """Log-probabilities (B, T, S+1, V), with those of an utterance's boundary first, -inf outside of the ranges, and a penalty
    for late labels; and both lengths."""
    B, T, _, V = scores.shape
    whole = scores.new_full((B, T, width, V), -math.inf)
    whole = whole.scatter(2, ranges.long()[..., None].expand_as(scores), scores)
    late = (boundary[:, 3, None] - 1) / 2 - torch.arange(T)[None]  # (B, T)
    whole = whole + penalty * late[:, :, None, None].to(scores) * (torch.arange(V) != blank)
    parts = []
    for b, (s, t, s_end, t_end) in enumerate(boundary.tolist()):
        part = whole[b, t:t_end, s : s_end + 1]
        parts.append(torch.nn.functional.pad(part, (0, 0, 0, width - part.shape[1], 0, T - part.shape[0])))
    return torch.stack(parts), boundary[:, 3] - boundary[:, 1], boundary[:, 2] - boundary[:, 0]


@pytest.mark.parametrize("peer, case", recorded(("k2", "fast_rnnt"), pruned))
def test_pruned_ranges(peer, case):
    """What lies outside of the ranges has no probability; what starts late has a lattice of its own."""
    values, options = arrays(peer), options_of(case)
    given = {name: values[f"{case['id']}/inputs/{name}"] for name in case["arrays"]["inputs"]}
    logits, symbols, blank = given["logits"], given["symbols"], options["termination_symbol"]
    (B, S), T = symbols.shape, logits.shape[1]
    boundary = given.get("boundary", torch.tensor([[0, 0, S, T]] * B)).long()
    targets = torch.stack([row.roll(-int(first)) for row, first in zip(symbols, boundary[:, 0], strict=True)])
    for reduction in case["reductions"]:
        leaf = logits.detach().clone().requires_grad_()
        scores = log_probabilities(leaf, blank, options.get("use_hat_loss", False))
        penalty = max(options["delay_penalty"], 0.0)
        scores, frames, labels = unpruned(scores, given["ranges"], boundary, penalty, blank, S + 1)
        loss = samplewise.rnnt_loss(
            scores, targets, frames, labels, blank=blank, reduction=reduction, fused_log_softmax=False,
            topology=options["rnnt_type"],
        )  # fmt: skip
        group = group_of(case, values, reduction)
        loss.backward(group["upstream"].reshape(loss.shape).to(loss))
        same(loss, group["loss"].reshape(loss.shape), 5e-6, f"{reduction}: {loss.tolist()}")
        if torch.isfinite(loss).all():
            same(leaf.grad, group["grad_logits"], 3e-5, f"gradient, {reduction}")
