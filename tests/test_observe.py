"""What a context of observe() collects: every call, in every thread, with numbers that are right."""

import gc
import threading
import weakref

import pytest
import torch

import samplewise
from samplewise.observation import GroupReport, calling, planned, report_group
from tests.problems import make, ours, planted

METHODS = ("batched", "samplewise", "tiled", "guided")
SHAPES = {"frames": (30, 20, 12), "labels": (6, 4, 5), "vocab": 40}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("gradient", [True, False])
def test_every_method_tells_its_groups(method, gradient):
    problem = planted((200, 180, 24), (30, 25, 5), 600, 32, sharpness=12.0)
    with samplewise.observe() as seen:
        if gradient:
            ours(problem, method=method)
        else:
            samplewise.transducer_loss(**problem.inputs, method=method)
    (call,) = seen
    assert call.method == method and call.workspace > 0 and set(seen.methods) == {method}
    assert seen.nodes == 200 * 31 + 180 * 26 + 24 * 6 and call.groups[0].first == 0 and call.groups[-1].stop == 3
    for group in call.groups:
        assert 0 < group.exact_nodes <= group.nodes and 0 <= group.bound < 1e-6
        assert (group.active_nodes is not None) == gradient
        assert not gradient or 0 < group.active_nodes <= group.exact_nodes
        if method != "guided":
            assert group.exact_nodes == group.nodes and group.bound == 0.0 and group.rounds == 0
        if method in ("batched", "samplewise") and gradient:
            assert group.active_nodes == group.nodes
    assert (seen.active_share is None) == (not gradient)


def test_groups_follow_each_other():
    problem = make((30,) * 6, (6,) * 6, vocab=2000, dim=64)
    with samplewise.observe() as seen:
        ours(problem, method="samplewise", memory_budget="5MiB")
    groups = seen[0].groups
    assert len(groups) > 1 and [group.first for group in groups] == [0, *(group.stop for group in groups[:-1])]
    assert seen.methods == {"samplewise": len(groups)}


def test_a_confident_model_needs_few_nodes_and_says_so():
    problem = planted((200, 180), (30, 25), 600, 32, sharpness=12.0)
    with samplewise.observe() as seen:
        ours(problem, method="tiled")
        ours(problem, method="guided")
    tiled, guided = seen
    assert 0 < tiled.active_share < 0.2 and tiled.exact_share == 1.0
    assert guided.exact_share < 0.5 and guided.rounds >= 1
    assert guided.active_share == pytest.approx(tiled.active_share, rel=0.2)
    assert seen.active_share == pytest.approx((tiled.active_share + guided.active_share) / 2)
    assert seen.exact_share == pytest.approx((1 + guided.exact_share) / 2) and seen.bound == guided.bound
    assert seen.workspace == max(tiled.workspace, guided.workspace)


def test_a_backward_in_another_thread_is_seen():
    """Reduction "none" computes its gradients in the backward, for which autograd may take a thread of its own."""
    inputs = make(**SHAPES).inputs
    inputs["weight"].requires_grad_()
    with samplewise.observe() as seen:
        loss = samplewise.transducer_loss(**inputs, reduction="none", method="tiled")
        thread = threading.Thread(target=lambda: loss.sum().backward())
        thread.start()
        thread.join()
    assert [call.active_share is None for call in seen] == [True, False]


def test_contexts_within_each_other_and_none():
    problem = make(**SHAPES)
    with samplewise.observe() as outer:
        ours(problem, method="tiled")
        with samplewise.observe() as inner:
            ours(problem, method="samplewise")
        ours(problem, method="batched")
    ours(problem, method="tiled")
    assert [call.method for call in outer] == ["tiled", "samplewise", "batched"]
    assert [call.method for call in inner] == ["samplewise"] and inner[0] is outer[1]
    assert len(outer[1:]) == 2 and outer[1:].methods.total() == 2


def test_a_call_that_fails_is_none():
    with samplewise.observe() as seen, pytest.raises(samplewise.TransducerError):
        ours(make(**SHAPES), memory_budget=1)
    assert len(seen) == 0
    with samplewise.observe() as seen:
        ours(make(**SHAPES))
    assert len(seen) == 1


@pytest.mark.parametrize("scope", ["batch", "utterance"])
def test_sampled_classes_are_one_call(scope):
    problem = make(**SHAPES)
    _, _, _, _, targets, _, target_lengths = problem.inputs.values()
    vocabulary = samplewise.sample_vocabulary(targets, target_lengths, 40, 25, blank=problem.blank, scope=scope)
    with samplewise.observe() as seen:
        ours(problem, vocabulary=vocabulary, method="tiled")
    (call,) = seen
    expected = [(0, 3)] if scope == "batch" else [(0, 1), (1, 2), (2, 3)]
    assert [(group.first, group.stop) for group in call.groups] == expected and call.nodes == 30 * 7 + 20 * 5 + 12 * 6


def test_compiled_functions_are_seen():
    inputs = make(**SHAPES).inputs
    compiled = torch.compile(
        lambda **values: samplewise.transducer_loss(**values, reduction="sum", method="tiled"),
        fullgraph=True,
        backend="aot_eager",
    )
    with samplewise.observe() as seen:
        compiled(**inputs)
        compiled(**inputs)
    assert len(seen) == 2 and seen.methods == {"tiled": 2}


def test_nothing_is_read_before_it_is_asked_for_and_no_large_tensor_kept():
    """On a GPU reading waits. Masks and numbers stay tensors until then; what they were made of may go or change."""
    mask, count, bounds = torch.tensor([True, False, True]), torch.tensor(2), torch.tensor([1e-8, 3e-8])
    alive = weakref.ref(mask)
    with samplewise.observe() as seen, calling("guided"):
        planned(100, 4)
        report_group("guided", 0, 2, 3, exact=mask, active=count, rounds=2, bound=bounds)
        count.zero_()
        bounds.zero_()
        planned(50, 6)
        report_group("tiled", 0, 1, 5)
    group = seen[0].groups[0]
    assert all(isinstance(value, torch.Tensor) for value in (group._exact_nodes, group._active_nodes, group._bound))
    del mask
    gc.collect()
    assert alive() is None
    assert (group.exact_nodes, group.active_nodes, group.rounds, group.bound) == (2, 2, 2, pytest.approx(3e-8))
    assert [(g.first, g.stop) for g in seen.groups] == [(4, 6), (6, 7)] and seen.workspace == 100
    assert seen.active_share == pytest.approx(2 / 3), "groups without gradients have no share in it"
    assert seen.exact_share == pytest.approx(7 / 8)


def test_nobody_listens():
    with calling("tiled"):
        planned(1)
        report_group("tiled", 0, 1, 5, exact=None, bound=0.0)
    with samplewise.observe() as seen:
        report_group("tiled", 0, 1, 5)  # of no call
    assert len(seen) == 0


def test_it_is_shown():
    with samplewise.observe() as seen:
        assert "nothing computed" in str(seen) and seen.active_share is None and seen.bound == 0.0
        with calling("auto"):
            planned(3 << 20)
            report_group("guided", 0, 4, 1000, exact=60, active=40, rounds=1, bound=4.2e-8)
    assert str(seen) == str(seen[0])
    assert seen.summary() == (
        "1 call, 1 group (guided 1), 1000 nodes: 6.0% exact, 4.0% active, at most 4.2e-08 of the probability outside, 1 round, "
        "workspace 3.0 MiB"
    )
    assert str(seen[0]).startswith("auto: 1 group (guided 1)") and seen.summary() in repr(seen)
    assert isinstance(seen[0].groups[0], GroupReport) and "exact_nodes=60" in repr(seen[0])
