"""warp-transducer's and warprnnt_numba's names: their recorded numbers, shapes, FastEmit and clamps."""

from __future__ import annotations

import inspect

import pytest
import torch

from samplewise import TransducerError
from samplewise.integrations import warp_transducer, warprnnt_numba
from samplewise.reference import arcs, enumerated_loss
from tests.integrations import recorded
from tests.ops.test_logits import make, run
from tests.ops.test_peers import FOLDER, MISSING, arrays, group_of
from tests.ops.test_peers import recorded as cases
from tests.ops.test_topology_peers import same

MODULES = {"warp_transducer": warp_transducer, "warprnnt_numba": warprnnt_numba}
NAMES = ("acts", "labels", "act_lens", "label_lens")


@pytest.mark.parametrize("peer, case", cases(MODULES, lambda peer, case: case["agreement"]["flag"] == "ok"))
def test_recorded_numbers(peer, case):
    recorded.check(MODULES[peer], peer, case, "acts")


@pytest.mark.parametrize("peer, case", cases(MODULES, lambda peer, case: case["agreement"]["flag"] != "ok"))
def test_where_the_peer_is_wrong_the_sum_over_all_alignments_is_right(peer, case):
    """Empty targets of width 0, for which warp-transducer gives 0 and no gradient."""
    values, given = arrays(peer), recorded.given_of(peer, case)
    blank, lengths = case["args"]["blank"], zip(given["act_lens"].tolist(), given["label_lens"].tolist(), strict=True)
    leaf, other = (given["acts"].clone().requires_grad_() for _ in range(2))
    losses = warp_transducer.rnnt_loss(**{**given, "acts": leaf}, blank=blank, reduction="none")
    right = torch.stack([
        enumerated_loss(*arcs(other[b, :t, : u + 1].log_softmax(2), given["labels"][b, :u], blank))
        for b, (t, u) in enumerate(lengths)
    ])  # fmt: skip
    same(losses, right, 1e-12, "losses")
    same(losses, values[f"{case['id']}/truth/losses"], 1e-12, "recorded truth")
    (gradient,) = torch.autograd.grad(losses.sum(), leaf)
    same(gradient, torch.autograd.grad(right.sum(), other)[0], 1e-11, "gradient")
    for reduction in case["reductions"]:
        group = group_of(case, values, reduction)
        assert (group["loss"] == 0).all() and (group["grad_acts"] == 0).all()  # the peer's
        assert (recorded.call(warp_transducer, case, reduction, given) > 0).all()


def test_there_is_a_wrong_case():
    """Else the test before says nothing."""
    if not (FOLDER / "warp_transducer.json").exists():
        pytest.skip(MISSING)
    wrong = cases(MODULES, lambda peer, case: case["agreement"]["flag"] != "ok")
    assert [parameter.id for parameter in wrong] == ["warp_transducer-case007"]


def test_signatures():
    parameters = inspect.signature(warp_transducer.rnnt_loss).parameters
    assert tuple(parameters) == (*NAMES, "blank", "reduction")
    assert [p.default for p in list(parameters.values())[4:]] == [0, "mean"]
    parameters = inspect.signature(warprnnt_numba.rnnt_loss).parameters
    assert tuple(parameters) == (*NAMES, "blank", "reduction", "fastemit_lambda", "clamp")
    assert [p.default for p in list(parameters.values())[4:]] == [0, "mean", 0.0, 0.0]
    parameters = inspect.signature(warprnnt_numba.RNNTLossNumba).parameters
    assert {name: p.default for name, p in parameters.items()} == {
        "blank": 0, "reduction": "mean", "fastemit_lambda": 0.0, "clamp": -1,
    }  # fmt: skip
    for loss in (warp_transducer.RNNTLoss(), warprnnt_numba.RNNTLossNumba()):
        assert tuple(inspect.signature(loss.forward).parameters) == NAMES


@pytest.mark.parametrize("module", MODULES.values(), ids=MODULES)
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_shapes_and_what_they_refuse(module, reduction):
    """int64, lengths below T, half precision and strides; a sum is (1,)."""
    acts, labels, frames, lengths = make(blank=0)
    long = torch.nn.functional.pad(acts, (0, 0, 0, 2, 0, 1)).transpose(1, 2).contiguous().transpose(1, 2)
    right = run(module.rnnt_loss, acts, labels.int(), frames.int(), lengths.int(), reduction=reduction)
    loss, gradient = run(module.rnnt_loss, long, labels, frames, lengths, reduction=reduction)
    assert loss.shape == ((4,) if reduction == "none" else (1,))
    assert torch.equal(loss, right[0]) and torch.equal(gradient[:, : acts.shape[1], : acts.shape[2]], right[1])
    half, _ = run(module.rnnt_loss, acts.bfloat16(), labels, frames, lengths, reduction=reduction)
    torch.testing.assert_close(half, right[0], rtol=0.02, atol=0)


@pytest.mark.parametrize("emit", [0.0, 0.5])
def test_fastemit_scales_the_value_and_what_labels_are_owed(emit):
    problem = make(blank=0, dtype=torch.float64)
    plain = run(warprnnt_numba.rnnt_loss, *problem, reduction="none")
    loss, gradient = run(warprnnt_numba.rnnt_loss, *problem, reduction="none", fastemit_lambda=emit)
    torch.testing.assert_close(loss, plain[0] * (1 + emit), rtol=1e-14, atol=0)
    assert torch.equal(gradient, plain[1]) == (emit == 0.0)
    assert not torch.allclose(gradient, plain[1] * 1.5)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_a_clamp_comes_last_on_a_cpu(reduction):
    problem = make(blank=0, dtype=torch.float64)
    upstream = torch.linspace(1, 4, 4).double() if reduction == "none" else torch.full((1,), 3.0).double()
    _, plain = run(warprnnt_numba.rnnt_loss, *problem, reduction=reduction, upstream=upstream)
    _, gradient = run(warprnnt_numba.rnnt_loss, *problem, reduction=reduction, clamp=0.1, upstream=upstream)
    assert torch.equal(gradient, plain.clamp(-0.1, 0.1)) and not torch.equal(gradient, plain)
    with torch.no_grad():
        assert not warprnnt_numba.rnnt_loss(problem[0].requires_grad_(), *problem[1:], clamp=0.1).requires_grad


@pytest.mark.parametrize("module", MODULES.values(), ids=MODULES)
@pytest.mark.parametrize(
    "changes, words",
    [
        ({"acts": torch.zeros(4, 7, 7)}, ["acts", "(4, 7, 7)"]),
        ({"acts": [1.0]}, ["acts", "list"]),
        ({"labels": torch.full((4, 6), 11)}, ["labels[0, 0] is 11", "11 classes"]),
        ({"labels": torch.zeros(4, 6).long()}, ["labels[0, 0] is 0", "blank"]),
        ({"act_lens": torch.tensor([7, 4, 8, 5])}, ["act_lens[2] is 8", "acts has 7 frames"]),
        ({"act_lens": torch.tensor([7.0, 4, 1, 5])}, ["act_lens", "float32"]),
        ({"label_lens": torch.tensor([3, 0, 7, 6])}, ["label_lens[2] is 7", "labels holds 6"]),
        ({"reduction": "average"}, ["reduction", "average"]),
        ({"blank": 12}, ["blank is 12"]),
    ],
    ids="-".join,
)
def test_bad_inputs(module, changes, words):
    given = dict(zip(NAMES, make(blank=0), strict=True))
    with pytest.raises(TransducerError) as caught:
        module.rnnt_loss(**{**given, **changes})
    for word in words:
        assert word in str(caught.value), str(caught.value)
    assert "logit" not in str(caught.value) and "target" not in str(caught.value)
