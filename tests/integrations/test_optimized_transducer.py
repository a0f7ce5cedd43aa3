"""optimized_transducer's names: its recorded numbers, all of them, and one symbol a frame by enumeration."""

from __future__ import annotations

import inspect

import pytest
import torch

from samplewise import TransducerError
from samplewise.integrations import optimized_transducer
from samplewise.integrations.optimized_transducer import TransducerLoss, transducer_loss
from samplewise.reference_topologies import entries, enumerated
from samplewise.topology import modified, regular
from tests.integrations import recorded
from tests.ops.test_logits import make, run
from tests.ops.test_packed import pack
from tests.ops.test_peers import arrays
from tests.ops.test_peers import recorded as cases
from tests.ops.test_topology_peers import same


@pytest.mark.parametrize("peer, case", cases(("optimized_transducer",), lambda peer, case: True))
def test_recorded_numbers(peer, case):
    assert case["agreement"]["flag"] == "ok"
    recorded.check(optimized_transducer, peer, case, "logits")
    given = recorded.given_of(peer, case)
    losses = transducer_loss(**given, **case["args"], reduction="none")  # which the peer has not
    same(losses, arrays(peer)[f"{case['id']}/truth/losses"], 1e-6, "recorded truth")


def test_cases_of_one_symbol_a_frame_are_among_these():
    found = cases(("optimized_transducer",), lambda peer, case: case["args"]["one_sym_per_frame"])
    if found[0].values[0] is None:
        pytest.skip("no recorded numbers")
    assert len(found) >= 4 and any(parameter.values[1]["args"]["from_log_softmax"] for parameter in found)


def by_enumeration(rows, targets, frames, labels, one_symbol, normalised):
    topology, at, losses = (modified(label_ends=False) if one_symbol else regular()), 0, []
    for b, (t, u) in enumerate(zip(frames.tolist(), labels.tolist(), strict=True)):
        scores = rows[at : at + t * (u + 1)].view(t, u + 1, -1)
        losses.append(enumerated(entries(scores, targets[b, :u], 2, topology, normalise=not normalised), topology))
        at += t * (u + 1)
    return torch.stack(losses)


@pytest.mark.parametrize("one_symbol", [False, True])
@pytest.mark.parametrize("normalised", [False, True])
def test_the_sum_over_all_alignments(one_symbol, normalised):
    """With as many labels as frames there is no path of one symbol a frame whose last symbol is a blank."""
    logits, targets, frames, labels = make((5, 3, 1, 3), (2, 0, 0, 3), 6, blank=2, dtype=torch.float64)
    rows = pack(logits.log_softmax(3) if normalised else logits, frames, labels)
    one, two = (rows.clone().requires_grad_() for _ in range(2))
    losses = transducer_loss(one, targets, frames, labels, 2, normalised, one_symbol, "none")
    right = by_enumeration(two, targets, frames, labels, one_symbol, normalised)
    assert torch.isinf(right).tolist() == [False, False, False, one_symbol]
    torch.testing.assert_close(losses, right, rtol=1e-12, atol=0)
    losses.backward(torch.ones_like(losses))
    right[torch.isfinite(right)].sum().backward()
    torch.testing.assert_close(one.grad, two.grad, rtol=1e-10, atol=1e-13)


def test_signatures_and_the_module():
    parameters = inspect.signature(transducer_loss).parameters
    assert {name: p.default for name, p in parameters.items()} == {
        "logits": p_none, "targets": p_none, "logit_lengths": p_none, "target_lengths": p_none, "blank": p_none,
        "from_log_softmax": p_none, "one_sym_per_frame": False, "reduction": "mean",
    }  # fmt: skip
    logits, targets, frames, labels = make(blank=2)
    rows = pack(logits, frames, labels)
    for reduction in ("sum", "mean"):
        one = run(TransducerLoss(2, reduction), rows, targets, frames, labels, from_log_softmax=False)
        two = run(transducer_loss, rows, targets, frames, labels, 2, False, reduction=reduction)
        assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


p_none = inspect.Parameter.empty


def test_the_logits_stay():
    logits, *integers = make(blank=2)
    rows = pack(logits, *integers[1:]).requires_grad_()
    kept = rows.detach().clone()
    transducer_loss(rows, *integers, 2, False).backward()
    assert torch.equal(rows.detach(), kept) and not torch.equal(rows.grad, kept)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"logits": torch.zeros(4, 7, 7, 11)}, ["logits", "(4, 7, 7, 11)", "(sum_b T_b (U_b + 1), V)"]),
        ({"logits": torch.zeros(5, 11)}, ["logits has 5 rows"]),
        ({"logits": None}, ["logits", "None"]),
        ({"targets": torch.full((4, 6), 2)}, ["targets[0, 0] is 2", "blank"]),
        ({"logit_lengths": torch.tensor([7, 4, 0, 5])}, ["logit_lengths[2] is 0"]),
        ({"target_lengths": torch.tensor([3, 0, 2, 7])}, ["target_lengths[3] is 7", "6 labels"]),
        ({"reduction": "average"}, ["reduction", "average"]),
        ({"blank": 11}, ["blank is 11"]),
    ],
    ids="-".join,
)
def test_bad_inputs(changes, words):
    logits, targets, frames, labels = make(blank=2)
    given = {"logits": pack(logits, frames, labels), "targets": targets, "logit_lengths": frames, "target_lengths": labels}
    with pytest.raises(TransducerError) as caught:
        transducer_loss(**{**given, "blank": 2, "from_log_softmax": False, **changes})
    for word in words:
        assert word in str(caught.value), str(caught.value)
