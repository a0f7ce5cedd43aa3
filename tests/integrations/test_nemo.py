"""NeMo's RNNTLoss by ours: the recorded numbers of its losses, every reduction, every option, bad input."""

import logging
import random
import runpy
from collections import UserDict
from pathlib import Path

import pytest
import torch

import samplewise
from samplewise import TransducerError
from samplewise.integrations.nemo import RNNTLoss
from samplewise.reference_topologies import entries, enumerated
from tests.ops.test_peers import arrays, group_of, options_of, recorded
from tests.ops.test_topology_peers import given_of, gradient_of, same, topology_of
from tests.problems import error

PEERS = ("nemo_numba", "nemo_numba_cudasim", "nemo_pytorch", "warprnnt_numba")
NAMES = {
    "RNNTLossNumba": "warprnnt_numba", "rnnt_loss": "default", "RNNTLossPytorch": "pytorch", "TDTLossNumba": "tdt",
    "TDTLossPytorch": "tdt_pytorch", "MultiblankRNNTLossNumba": "multiblank_rnnt",
    "MultiblankRNNTLossPytorch": "multiblank_rnnt_pytorch",
}  # fmt: skip
REDUCTIONS = {"none": None, "sum": "sum", "mean_batch": "mean_batch", "mean_volume": "mean_volume", "mean": "mean"}
NUMBA_MEAN = "mean_batch"  # what the numba functions call "mean"
CLAMPED_LAST = ("nemo_numba", "warprnnt_numba")
TDT = {"durations": [0, 1, 2], "sigma": 0.05}
T, U = torch.tensor([7, 4, 6]), torch.tensor([3, 0, 2])
TARGETS = torch.tensor([[1, 2, 0], [0, 0, 0], [4, 3, 0]])


def logits(columns: int, dtype=torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(3, 7, 4, columns, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


def loss_for(case, reduction: str | None, **changes) -> RNNTLoss:
    """The case's loss under NeMo's names."""
    options = options_of(case)
    known = ("fastemit_lambda", "clamp", "sigma", "omega", "durations", "big_blank_durations")
    given = {name: options[name] for name in known if name in options} | changes
    return RNNTLoss(options["blank"], reduction, NAMES[case["function"]], given)


def right(peer, case) -> bool:
    return case["agreement"]["flag"] == "ok"


@pytest.mark.parametrize("peer, case", recorded(PEERS, right))
def test_recorded_numbers(peer, case):
    values, options = arrays(peer), options_of(case)
    acts, *integers = given_of(case, values)
    last = peer in CLAMPED_LAST and options.get("clamp", -1) > 0  # the peer's CPU bounds after all factors
    for reduction in case["reductions"]:
        ours = NUMBA_MEAN if reduction == "mean" and peer != "nemo_pytorch" else REDUCTIONS[reduction]
        loss = loss_for(case, ours, **({"clamp": -1} if last else {}))
        group, leaf = group_of(case, values, reduction), acts.detach().clone().requires_grad_()
        random.seed(case["args"].get("random_seed"))
        value = loss(log_probs=leaf, targets=integers[0], input_lengths=integers[1], target_lengths=integers[2])
        value.backward(group["upstream"].reshape(value.shape).to(value))
        gradient = leaf.grad.clamp(-options["clamp"], options["clamp"]) if last else leaf.grad
        same(value.detach(), group["loss"].reshape(value.shape), 5e-6, f"{reduction}: {value.tolist()}")
        same(gradient, gradient_of(group), 3e-5, f"gradient, {reduction}")


def wrong(peer, case) -> bool:
    return case["agreement"]["flag"] == "differs"


@pytest.mark.parametrize("peer, case", recorded(("nemo_pytorch",), wrong))
def test_without_a_path_the_loss_is_infinite_and_nemo_says_about_1000(peer, case):
    values, topology = arrays(peer), topology_of(case)
    acts, targets, frames, labels = given_of(case, values)
    leaf, blank = acts.double().requires_grad_(), options_of(case)["blank"]
    value = loss_for(case, None)(leaf, targets, frames, labels)
    paths = torch.stack([
        enumerated(entries(leaf[b, :t, : u + 1], targets[b, :u], blank, topology), topology)
        for b, (t, u) in enumerate(zip(frames.tolist(), labels.tolist(), strict=True))
    ])  # fmt: skip
    same(value.detach(), paths.detach(), 1e-12, "loss")
    none = torch.isinf(paths)
    assert none.any() and not none.all()
    theirs = group_of(case, values, "none")
    assert (theirs["loss"][none] > 900).all() and (theirs["loss"][none] < 1100).all()
    value.backward(torch.ones_like(value))
    assert (leaf.grad[none] == 0).all() and leaf.grad.isfinite().all() and (leaf.grad[~none] != 0).any()


@pytest.mark.parametrize("options", [{}, {"fastemit_lambda": 0.1}, {"clamp": 0.05}], ids=str)
@pytest.mark.parametrize(
    "reduction, formula",
    [
        (None, lambda each: each), ("sum", lambda each: each.sum()), ("mean_batch", lambda each: each.sum() / 3),
        ("mean_volume", lambda each: each.sum() / 5), ("mean", lambda each: (each / torch.tensor([3, 1, 2])).mean()),
    ],
)  # fmt: skip
def test_reductions_are_their_formulas(reduction, formula, options):
    leaf, other = logits(6), logits(6)
    loss = RNNTLoss(5, reduction, "default", options)
    value = loss(log_probs=leaf, targets=TARGETS, input_lengths=T, target_lengths=U)
    assert value.shape == ((3,) if reduction is None else ())
    each = samplewise.rnnt_loss(other, TARGETS, T, U, blank=5, reduction="none", **options)
    torch.testing.assert_close(value, formula(each) * (1 + options.get("fastemit_lambda", 0.0)))
    value.sum().backward()
    formula(each).sum().backward()
    torch.testing.assert_close(leaf.grad, other.grad)


def test_parts_of_a_batch_are_reduced_as_the_batch():
    """What NeMo's fused joint does: reduction None for each part, then `reduce` of lists."""
    for reduction in ("mean_batch", "mean", "mean_volume", "sum"):
        loss = RNNTLoss(5, reduction)
        whole = loss(logits(6), TARGETS, T, U)
        loss.reduction = None
        parts = [loss(logits(6)[part], TARGETS[part], T[part], U[part]) for part in (slice(0, 2), slice(2, 3))]
        loss.reduction = reduction
        torch.testing.assert_close(loss.reduce(parts, [U[:2], U[2:]]), whole)
    loss.reduction = None
    assert loss.reduce(parts, [U[:2], U[2:]]).shape == (3,)


def test_clamp_leaves_durations_alone():
    """As NeMo's kernels do; an utterance without a path changes nothing."""
    frames = torch.tensor([7, 1, 6])
    durations = {"durations": [0, 2, 3]}
    bounded, free = logits(9), logits(9)
    RNNTLoss(5, "sum", "tdt", {**durations, "clamp": 0.02})(bounded, TARGETS, frames, U).backward()
    RNNTLoss(5, "sum", "tdt", durations)(free, TARGETS, frames, U).backward()
    assert (free.grad[1] == 0).all()
    torch.testing.assert_close(bounded.grad[..., 6:], free.grad[..., 6:])
    torch.testing.assert_close(bounded.grad[..., :6], free.grad[..., :6].clamp(-0.02, 0.02))
    assert (bounded.grad[..., 6:].abs() > 0.02).any() and (free.grad[..., :6].abs() > 0.02).any()


def test_omega_draws_plain_rnnt_by_pythons_random():
    plain, loss = logits(9), RNNTLoss(5, None, "tdt", {**TDT, "omega": 0.5})
    expected = {
        False: RNNTLoss(5, None, "tdt", TDT)(logits(9), TARGETS, T, U),
        True: samplewise.rnnt_loss(plain[..., :6], TARGETS, T, U, blank=5, reduction="none"),
    }
    random.seed(0)
    draws = [random.uniform(0, 1) < 0.5 for _ in range(6)]
    assert len(set(draws)) == 2
    random.seed(0)
    for drawn in draws:
        leaf = logits(9)
        value = loss(leaf, TARGETS, T, U)
        torch.testing.assert_close(value, expected[drawn])
        value.sum().backward()
        assert bool((leaf.grad[..., 6:] == 0).all()) == drawn


def test_big_blanks_stand_before_the_blank():
    topology = samplewise.topology.multi_blank((2, 4), (6, 5), sigma=0.1)
    value = RNNTLoss(7, None, "multiblank_rnnt", {"big_blank_durations": [2, 4], "sigma": 0.1})(logits(8), TARGETS, T, U)
    right = samplewise.rnnt_loss(logits(8), TARGETS, T, U, blank=7, reduction="none", topology=topology)
    torch.testing.assert_close(value, right)


@pytest.mark.parametrize("dtype, slack", [(torch.float32, 1e-6), (torch.bfloat16, 0.01), (torch.float16, 0.002)])
def test_half_precision_and_any_integers(dtype, slack):
    leaf = logits(6, dtype)
    integers = (TARGETS.short(), T.float(), U.int())
    value = RNNTLoss(5)(leaf.transpose(1, 2).contiguous().transpose(1, 2), *integers)
    right = samplewise.rnnt_loss(logits(6), TARGETS, T, U, blank=5)
    assert value.dtype == torch.float32 and error(value, right) <= slack
    value.backward()
    assert leaf.grad.dtype == dtype and leaf.grad.isfinite().all()


def test_more_frames_and_labels_than_the_longest():
    wide = torch.nn.functional.pad(logits(6), (0, 0, 0, 2, 0, 3), value=float("nan"))
    targets = torch.nn.functional.pad(TARGETS, (0, 2), value=-1)
    torch.testing.assert_close(RNNTLoss(5)(wide, targets, T, U), RNNTLoss(5)(logits(6), TARGETS, T, U))


class TDTLossNumba:
    blank, durations, sigma, omega, fastemit_lambda, clamp = 5, [0, 1, 2], 0.05, 0.1, 0.001, 0.0


class MultiblankRNNTLossPytorch:
    blank, big_blank_durations, sigma = 7, [2, 4], 0.05


class GraphWTransducerLoss:
    blank = 5


class OfNemo(torch.nn.Module):
    """NeMo's RNNTLoss: its function, and the reduction."""

    def __init__(self, inner, reduction):
        super().__init__()
        self._loss, self.reduction = inner, reduction


def test_settings_of_nemos_own():
    found = RNNTLoss.of(OfNemo(TDTLossNumba(), "mean_volume"))
    assert (found.blank, found.reduction, found.loss_name) == (5, "mean_volume", "tdt")
    assert found.topology == samplewise.topology.tdt((0, 1, 2), 0.05)
    assert (found.omega, found.fastemit_lambda, found.clamp) == (0.1, 0.001, 0.0)
    other = RNNTLoss.of(OfNemo(MultiblankRNNTLossPytorch(), None))
    assert other.topology == samplewise.topology.multi_blank((2, 4), sigma=0.05) and other.reduction is None
    assert RNNTLoss.of(found) is found and found._loss.blank == 5
    for loss in (OfNemo(GraphWTransducerLoss(), "sum"), torch.nn.CTCLoss()):
        with pytest.raises(TransducerError, match=r"must be NeMo's RNNTLoss of one of RNNTLossNumba, .* or samplewise's"):
            RNNTLoss.of(loss)


def test_unused_options_are_said_and_ignored(caplog):
    with caplog.at_level(logging.WARNING, "samplewise"):
        loss = RNNTLoss(5, loss_name="pytorch", loss_kwargs=UserDict(fastemit_lambda=0.1))
    assert "pytorch: fastemit_lambda is not used" in caplog.text and loss.fastemit_lambda == 0.0
    assert repr(loss).startswith("RNNTLoss(num_classes=5, reduction='mean_batch', loss_name='pytorch', ")


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((5, "mean_target"), "reduction is 'mean_target'; it must be one of 'mean_batch', 'mean', 'mean_volume', 'sum', "),
        ((5, "sum", "graph_rnnt"), "loss_name is 'graph_rnnt'; it must be one of 'warprnnt_numba', "),
        ((-1,), "num_classes is -1; it must be 0 or more"),
        ((5, "sum", "tdt"), r"durations is \(\); they must be different whole numbers"),
        ((5, "sum", "tdt", {"durations": [0]}), r"durations is \[0\]; they must be"),
        ((5, "sum", "multiblank_rnnt", {"big_blank_durations": [1]}), r"big_blank_durations is \[1\]; they must be"),
        ((5, "sum", "tdt", {**TDT, "sigma": -1}), "sigma is -1; it must be"),
        ((5, "sum", "tdt", {**TDT, "omega": "a"}), "omega is a; it must be|omega is 'a'; it must be a number"),
        ((5, "sum", "default", {"fastemit_lambda": -1}), "fastemit_lambda is -1; it must be"),
        ((5, "sum", "default", {"clamp": float("nan")}), "clamp is nan; it must be"),
    ],
)
def test_settings_that_cannot_be(arguments, message):
    with pytest.raises(TransducerError, match=message):
        RNNTLoss(*arguments)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"input_lengths": torch.tensor([7, 9, 6])}, r"^input_lengths\[1\] is 9, but log_probs has 7 frames"),
        ({"target_lengths": torch.tensor([3, 4, 2])}, r"^target_lengths\[1\] is 4, but targets holds 3 labels"),
        ({"targets": TARGETS + 4}, r"^targets\[0, 0\] is 5, but that is the blank"),
        ({"targets": TARGETS + 6}, r"^targets\[0, 0\] is 7, but there are 6 classes"),
        ({"targets": TARGETS[:2]}, "^targets has 2 utterances, but the batch has 3"),
        ({"input_lengths": None}, "^input_lengths is None; it must be a tensor"),
        ({"log_probs": torch.zeros(3, 7, 6)}, r"^log_probs must be \(B, T, U\+1, V\)"),
        ({"log_probs": torch.zeros(3, 7, 4, 5)}, "^num_classes is 5, the blank's class, but log_probs has 5 columns$"),
    ],
)
def test_bad_input_is_named_as_nemo_names_it(changes, message):
    given = {"log_probs": logits(6), "targets": TARGETS, "input_lengths": T, "target_lengths": U} | changes
    with pytest.raises(TransducerError, match=message):
        RNNTLoss(5)(**given)
    if changes.keys() & {"log_probs"} and given["log_probs"].dim() == 4:
        with pytest.raises(TransducerError, match="log_probs has 5 columns, 3 of them for durations"):
            RNNTLoss(5, loss_name="tdt", loss_kwargs=TDT)(**given)


def test_the_example_runs(capsys):
    runpy.run_path(str(Path(__file__).resolve().parents[2] / "examples" / "train_nemo.py"), run_name="__main__")
    losses = [float(line.split()[1]) for line in capsys.readouterr().out.splitlines() if line.startswith("loss ")]
    assert len(losses) == 5 and losses[-1] < losses[0]
