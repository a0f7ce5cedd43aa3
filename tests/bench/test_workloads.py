"""The workloads are what they are said to be, and the truth is true."""

import dataclasses
import json

import pytest
import torch

from samplewise.bench import truth, workloads
from samplewise.bench.baseline import plain_loss
from samplewise.bench.cases import FROM_FILES, SUITES, Case, case_from, suite
from samplewise.bench.yardsticks import make_yardstick
from samplewise.kernels.layout import packed_table
from samplewise.reference import arcs, log_likelihood, reference_loss

SMALL = Case("small", "random", 3, 7, 4, 11, 5, ragged=True)


def test_names_are_unique_and_every_case_survives_json():
    made = [name for name in SUITES if name not in FROM_FILES]  # of these: test_joints.py
    cases = {case.name: case for name in made for case in suite(name)}
    for name in made:
        for case in suite(name):
            assert cases[case.name] == case
            assert case_from(json.loads(json.dumps(dataclasses.asdict(case)))) == case


@pytest.mark.parametrize("weights", ["random", "planted"])
def test_same_seed_same_numbers(weights):
    case = dataclasses.replace(SMALL, weights=weights)
    one, same = workloads.make_workload(case), workloads.make_workload(case)
    other = workloads.make_workload(dataclasses.replace(case, seed=2))
    assert all(torch.equal(a, b) for a, b in zip(one.learned + one.integers, same.learned + same.integers, strict=True))
    assert not torch.equal(one.encoder_out, other.encoder_out)


def test_targets_are_never_blank_and_lengths_fit():
    workload = workloads.make_workload(dataclasses.replace(SMALL, batch=40))
    assert workload.targets.min() >= 1 and workload.targets.max() < SMALL.classes
    assert workload.encoder_lengths[0] == SMALL.frames and workload.target_lengths[0] == SMALL.labels
    assert workload.encoder_lengths.min() >= 1 and workload.target_lengths.max() <= SMALL.labels


def test_ragged_lengths_are_spread_from_a_fifth_to_the_whole():
    case = Case("ragged", "random", 200, 300, 60, 8, 4, ragged=True)
    frames, labels = case.lengths()
    assert min(frames) >= 60 and max(frames) == 300 and 0.5 < sum(frames) / (200 * 300) < 0.8
    assert case.nodes == sum(t * (u + 1) for t, u in zip(frames, labels, strict=True)) < 200 * 300 * 61


def test_planted_classes_have_their_score():
    weight = torch.randn(20, 512, generator=torch.Generator().manual_seed(0)) * 512**-0.5
    score = (torch.tanh(workloads.pointing(weight)) * weight).sum(1)
    assert torch.allclose(score, torch.full((20,), workloads.SCORE), atol=1e-3)


def test_planted_labels_come_in_order_each_once():
    targets = torch.tensor([[5, 6, 7], [8, 9, 9]])
    planted = workloads.plant(targets, [10, 6], [3, 2], 10, torch.Generator().manual_seed(0))
    assert [row[row > 0].tolist() for row in planted] == [[5, 6, 7], [8, 9]]
    assert not planted[1, 6:].any()


def test_planted_alignments_leave_a_twentieth_of_the_nodes_active(kernels):
    case = Case("planted", "planted", 1, 300, 60, 2048, 512)
    workload = workloads.make_workload(case)
    z = torch.tanh(workload.encoder_out[0, :, None] + workload.predictor_out[0])
    log_probs = (z @ workload.weight.t() + workload.bias).log_softmax(2)
    lp_blank, lp_label = (lp.contiguous() for lp in arcs(log_probs, workload.targets[0], 0))
    lp_label = torch.nn.functional.pad(lp_label, (0, 1), value=-torch.inf)
    table, nodes = packed_table([300], [60], 300, 61, 60, torch.device("cpu"))
    losses, gammas = torch.zeros(1, dtype=torch.float64), torch.zeros(2, nodes)
    weights = torch.ones(1, dtype=torch.float64)
    kernels.lattice(lp_blank.flatten(), lp_label.flatten(), table, weights, losses, *gammas)
    share = kernels.select(*gammas, table, losses, 1e-7).numel() / nodes
    assert losses[0] == pytest.approx(-float(log_likelihood(lp_blank.double(), lp_label[:, :-1].double())), rel=1e-5)
    assert 0.04 < share < 0.06


def test_reduced_cases_are_small_and_of_the_same_kind():
    case = Case("large", "planted", 1024, 1000, 100, 256, 64, ragged=True)
    small = case.reduced(10**8)
    assert small.products <= 10**8 < 2 * case.products
    assert (small.classes, small.dim, small.weights, small.ragged) == (256, 64, "planted", True)
    assert SMALL.reduced(10**9) == SMALL


@pytest.mark.parametrize("weights", ["random", "planted"])
def test_truth_is_that_of_the_reference_in_blocks_of_frames(weights, monkeypatch):
    monkeypatch.setattr(truth, "BLOCK_LOGITS", 2 * 5 * SMALL.classes)  # two frames a block
    workload = workloads.make_workload(dataclasses.replace(SMALL, weights=weights))
    loss, gradients = truth.true_gradients(workload)
    leaves = [tensor.double().requires_grad_() for tensor in workload.learned]
    expected = reference_loss(*leaves, *workload.integers, reduction="sum")
    assert float(loss) == pytest.approx(float(expected.detach()), rel=1e-12)
    for found, wanted in zip(gradients, torch.autograd.grad(expected, leaves), strict=True):
        assert torch.allclose(found, wanted, rtol=1e-10, atol=1e-12)


def test_truth_of_an_utterance_without_labels():
    case = Case("empty", "random", 1, 5, 0, 6, 3)
    workload = workloads.make_workload(case)
    expected = reference_loss(*workload.learned, *workload.integers, reduction="sum")
    assert float(truth.true_gradients(workload)[0]) == pytest.approx(float(expected), rel=1e-12)


def test_plain_baseline_agrees_with_the_truth():
    workload = workloads.make_workload(SMALL).asking(True)
    loss = plain_loss(workload)
    expected, gradients = truth.true_gradients(workload)
    assert float(loss.detach()) == pytest.approx(float(expected), rel=1e-5)
    for found, wanted in zip(torch.autograd.grad(loss, workload.learned), gradients, strict=True):
        assert torch.allclose(found.double(), wanted, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["gemm1", "gemm3", "tanh"])
def test_yardsticks_visit_every_node(name, monkeypatch):
    rows = 0

    def counted(do):
        def call(first, *args, **kwargs):
            nonlocal rows
            rows += first.shape[0]
            return do(first, *args, **kwargs)

        return call

    case = Case("some", "random", 2, 100, 4, 16, 8)
    step = make_yardstick(name, case, torch.float32)
    monkeypatch.setattr(torch, "mm", counted(torch.mm))
    monkeypatch.setattr(torch, "tanh", counted(torch.tanh))
    step()
    expected = {"gemm1": case.nodes, "gemm3": 2 * case.nodes, "tanh": case.nodes}[name]
    classes = (
        case.classes * -(-case.nodes // step.rows) if name == "gemm3" else 0
    )  # the third product's first operand is (V, R)
    assert abs(rows - expected - classes) <= 256
