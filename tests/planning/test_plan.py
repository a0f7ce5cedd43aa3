"""The planner: budgets, groups, formulas, and the least that works."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import samplewise
from samplewise import TransducerError
from samplewise.cli import main
from samplewise.planning.budget import CPU, gpu, gpu_budget, parse_budget, show_bytes
from samplewise.planning.costs import FUNCTIONS, Amounts, evaluate, function_costs
from samplewise.planning.devices import default_budget, device_of
from samplewise.planning.methods import EXACT_METHODS, METHODS, schedule_of
from samplewise.planning.planner import SMALLEST_TILE, Sizes, cut, exponential_bytes, row_bytes, schedule_tiled


@pytest.mark.parametrize(
    ("text", "size"),
    [("512MiB", 512 << 20), ("1.5 GB", 1_500_000_000), ("7", 7), (7, 7), ("2kib", 2048), (None, None)],
)
def test_budgets_are_read(text, size):
    assert parse_budget(text) == size


@pytest.mark.parametrize("text", ["", "many", "-3MiB", "3XB", 0, -1, True, 1.5])
def test_budgets_that_are_none(text):
    with pytest.raises(TransducerError, match="memory_budget"):
        parse_budget(text)


def test_sizes_for_people():
    assert [show_bytes(size) for size in (3, 1536, 3 << 20, 5 << 40)] == ["3 B", "1.5 KiB", "3.0 MiB", "5120.0 GiB"]


def test_every_utterance_is_in_one_group():
    nodes = [5, 1, 9, 30, 2, 2, 2]
    groups = cut(nodes, 12)
    assert [b for first, stop in groups for b in range(first, stop)] == list(range(len(nodes)))
    assert groups == [(0, 2), (2, 3), (3, 4), (4, 7)]  # a group of one may be larger than the capacity


@pytest.mark.parametrize("method", EXACT_METHODS)
def test_the_least_that_works_works(method):
    sizes = Sizes([50, 80], [10, 7], 400, 32, 4, 4, gradient=True, threads=2)
    with pytest.raises(TransducerError, match="needs at least") as error:
        schedule_of(method, sizes, 1000, 1 << 26, 80, 11)
    least = int(str(error.value).split("needs at least ")[1].split()[0])
    assert schedule_of(method, sizes, least, 1 << 26, 80, 11).workspace <= least
    with pytest.raises(TransducerError, match="utterance is 1, of 80 frames and 7 labels"):
        schedule_of(method, sizes, least - 1, 1 << 26, 80, 11)


@pytest.mark.parametrize("method", ["tiled", "guided"])
@pytest.mark.parametrize("budget", [16 << 20, 64 << 20, 1 << 30])
def test_the_workspace_is_within_the_budget(method, budget):
    sizes = Sizes([300] * 40, [60] * 40, 1000, 256, 4, 4, gradient=True, threads=2)
    schedule = schedule_tiled(sizes, budget, 64 << 20, method)
    assert schedule.workspace <= budget
    assert schedule.tile_rows > 0 and sum(schedule.group_nodes) == sum(sizes.nodes)


def test_one_huge_utterance_has_a_plan():
    for method in ("auto", "tiled", "guided"):
        plan = samplewise.plan(1, 20000, 2000, vocab=64, dim=32, method=method)
        assert plan.workspace <= 96 << 20 and plan.full_logits > 8 << 30


def test_formulas_are_numbers():
    amounts = Amounts(nodes=100, padded=150, classes=7, dim=3, tile=10, group=50, alive=20, share=0.5, guide=4)
    assert evaluate("P D V", amounts) == 150 * 3 * 7
    assert evaluate("N D S + 2r N D V", amounts) == 100 * 3 * 4 + 100 * 3 * 7
    assert evaluate("(1+r) N D", amounts) == 450
    for method in METHODS.values():
        assert len(method.times) == len(method.spaces) == len(FUNCTIONS)
        assert all(cost.time >= 0 for cost in function_costs(method.times, method.spaces, amounts))


def test_auto_takes_a_guide_where_it_pays():
    large, small = samplewise.plan(4, 300, 60, 2048, 512), samplewise.plan(1, 40, 10, 32, 64)
    assert (large.method, small.method) == ("guided", "tiled")
    assert "bounds" in large.reason and "bounds" in small.reason
    assert large.multiply_adds() < large.multiply_adds("tiled") < large.multiply_adds("batched")


def test_more_memory_holds_more_utterances():
    plan = samplewise.plan(4, 300, 60, 2048, 512)
    sizes = [plan.largest_batch(memory) for memory in ("256MiB", "1GiB", "6GiB")]
    assert 0 < sizes[0] < sizes[1] < sizes[2]
    assert plan.largest_batch("6GiB", "batched") < sizes[2] / 50


def test_tensors_and_padding_are_counted():
    """Encodings and output layer, padded, and as much again for their gradients; padded nodes are those of "batched" alone."""
    plan = samplewise.plan(2, [40, 10], [9, 4], vocab=100, dim=16, method="tiled")
    assert plan.tensors == 2 * 4 * (2 * (40 + 10) * 16 + 100 * 17)
    assert plan.full_logits == 4 * 2 * 40 * 10 * 100
    assert plan.costs("batched")[1].time == 2 * 40 * 10 * 16 * 100
    assert plan.costs("samplewise")[1].time == (40 * 10 + 10 * 5) * 16 * 100


def test_a_loss_alone_takes_less():
    with_gradient = samplewise.plan(4, 300, 60, 2048, 512, method="tiled")
    alone = samplewise.plan(4, 300, 60, 2048, 512, method="tiled", gradient=False)
    assert alone.workspace < with_gradient.workspace


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch": 0}, "batch is 0"),
        ({"frames": [3]}, "frames has 1 lengths, but batch is 2"),
        ({"frames": [3, 0]}, r"frames\[1\] is 0"),
        ({"method": "fast"}, "method is 'fast'"),
    ],
)
def test_bad_sizes_are_named(arguments, message):
    good = {"batch": 2, "frames": 10, "labels": 3, "vocab": 9, "dim": 4}
    with pytest.raises(TransducerError, match=message):
        samplewise.plan(**{**good, **arguments})


def test_half_precision_is_planned():
    full, half = (samplewise.plan(4, 300, 60, 2048, 512, dtype=dtype) for dtype in (torch.float32, torch.bfloat16))
    assert half.tensors < full.tensors


def test_the_command_says_method_and_batches(capsys):
    sizes = ["--batch", "2", "--frames", "400,250", "--labels", "60,31", "--vocab", "2048", "--dim", "512"]
    assert main(["plan", *sizes, "--memory", "1GiB"]) == 0
    shown = capsys.readouterr().out
    assert "guided" in shown and "workspace" in shown and "batched" in shown.split("that fit 1GiB")[1]
    assert main(["plan", *sizes, "--budget", "1KiB"]) == 1
    assert "needs at least" in capsys.readouterr().err


L2 = 50 << 20


@pytest.mark.parametrize("classes", [32, 2048, 8192, 100_000])
@pytest.mark.parametrize("device", [CPU, gpu(L2), gpu(0)])
def test_a_tile_stays_in_the_cache(device, classes):
    """One formula for every device: rows of a tile are what its cache holds, within limits."""
    sizes = Sizes([1000] * 64, [100] * 64, classes, 512, 2, 4, gradient=True, device=device)
    schedule = schedule_tiled(sizes, 4 << 30, 4 << 30)
    rows = device.cache // row_bytes(sizes)
    assert schedule.tile_rows == max(SMALLEST_TILE, min(device.most_rows, rows))
    assert schedule.workspace <= 4 << 30


def test_alphas_of_all_utterances_at_once():
    """On a GPU every utterance of a group keeps its alphas at the same time, 8 of 32 bytes a node; and a group holds many
    utterances rather than their logits."""
    sizes = Sizes([1500] * 400, [200] * 400, 256, 64, 4, 4, True, device=gpu(L2))
    schedule = schedule_tiled(sizes, 512 << 20, 512 << 20)
    assert schedule.kept_rows == 0 and schedule.workspace <= 512 << 20
    assert 32 * max(schedule.group_nodes) > 0.9 * ((512 << 20) - row_bytes(sizes) * schedule.tile_rows)
    assert schedule.groups[0] == (0, max(schedule.group_nodes) // (1500 * 201)) != (0, 1)
    few = schedule_tiled(replace(sizes, frames=[100] * 4, labels=[20] * 4), 512 << 20, 512 << 20)
    assert few.kept_rows == sum(few.group_nodes)


def test_the_default_on_a_gpu():
    """At most 2 GiB, a quarter of what is free, and the same for a little more or less of it."""
    assert gpu_budget(80 << 30) == gpu_budget(10 << 30) == 2 << 30
    assert gpu_budget(4 << 30) == gpu_budget((4 << 30) + 12345) == 1 << 30
    assert gpu_budget(0) == 1 << 20


def test_other_devices():
    """Of an accelerator that PyTorch tells nothing about, a small cache is assumed, and all utterances run at once."""
    assert device_of(torch.device("mps")) == device_of(torch.device("xpu")) == gpu(0)
    assert device_of(torch.device("cpu")) == CPU
    assert default_budget(torch.device("mps")) == default_budget(torch.device("cpu"))


def test_a_gpu_is_asked(monkeypatch):
    """Free memory is what the driver says and what PyTorch holds unused; the cache is the device's own."""
    if not torch.cuda.is_available():
        with pytest.raises(TransducerError, match='device is "cuda", but there is no GPU here'):
            samplewise.plan(4, 300, 60, 2048, 512, device="cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 30, 8 << 30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 3 << 30)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 1 << 29)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(L2_cache_size=L2))
    assert default_budget(torch.device("cuda")) == 512 << 20
    plan = samplewise.plan(4, 300, 60, 2048, 512, device="cuda")
    assert plan.method == "tiled" and "GPU" in plan.reason
    assert plan.tile_rows == (L2 // 2) // row_bytes(plan.sizes)


@pytest.mark.parametrize(("frames", "labels", "classes", "dim", "method"), [
    (30, 5, 256, 64, "tiled"), (400, 100, 30, 32, "tiled"), (50, 10, 1024, 512, "guided"), (300, 60, 1024, 256, "guided"),
    (300, 60, 64, 128, "guided"), (300, 60, 17, 128, "guided"), (3000, 900, 2048, 128, "guided"),
    (3000, 2000, 2048, 128, "guided"),
])  # fmt: skip
def test_only_tiny_calls_go_without_bounds(frames, labels, classes, dim, method):
    """However many labels there are beside the classes."""
    found = samplewise.plan(4, frames, labels, classes, dim)
    assert found.method == method
    assert method == "guided" or "too small for bounds" in found.reason


@pytest.mark.parametrize("method", ["tiled", "guided", "samplewise"])
def test_exponentials_have_their_place(method):
    """Every group has them where there is room, and their bytes count; groups of few labels are smaller for them."""
    sizes = Sizes([300] * 40, [2] * 40, 100, 512, 4, 4, gradient=True, exponentials=True)
    schedule = schedule_of(method, sizes, 24 << 20, 1 << 26, 300, 3)
    without = schedule_of(method, replace(sizes, exponentials=False), 24 << 20, 1 << 26, 300, 3)
    assert all(schedule.exponentials) and not any(without.exponentials)
    most = max(exponential_bytes(sizes, first, stop) for first, stop in schedule.groups)
    assert 4 * 303 * 512 * (schedule.groups[0][1]) <= most <= schedule.workspace <= 24 << 20
    assert len(schedule.groups) > len(without.groups)


@pytest.mark.parametrize("method", ["tiled", "guided", "samplewise"])
def test_exponentials_are_never_a_reason_to_refuse(method):
    """The least budget is the same with them; the utterance that has no room for them does without."""
    sizes = Sizes([3000, 20, 20], [5, 5, 5], 100, 512, 4, 4, gradient=True, exponentials=True)
    with pytest.raises(TransducerError, match="needs at least") as error:
        schedule_of(method, sizes, 1000, 1 << 26, 3000, 6)
    least = int(str(error.value).split("needs at least ")[1].split()[0])
    schedule = schedule_of(method, sizes, least, 1 << 26, 3000, 6)
    assert schedule.workspace <= least and schedule.groups == [(0, 1), (1, 3)] and not schedule.exponentials[0]
    assert exponential_bytes(replace(sizes, exponentials=False), 0, 3) == 0


def test_a_default_budget_grows_for_exponentials_that_are_small_beside_the_nodes():
    for dim, made in ((16, True), (512, False)):
        sizes = Sizes([20000], [2000], 64, dim, 4, 4, gradient=True, exponentials=True)
        schedule = schedule_tiled(sizes, None, 1 << 20)
        assert schedule.exponentials == [made]


def test_half_and_double_precision_have_plans_of_exponentials():
    made = {d: samplewise.plan(2, 50, 10, 30, 8, dtype=d).schedule.exponentials for d in (torch.bfloat16, torch.float64)}
    assert made == {torch.bfloat16: [True], torch.float64: [False]}
