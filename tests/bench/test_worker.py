"""The process that measures, and how its deaths are told apart."""

import os
from dataclasses import asdict

import pytest
import torch

from samplewise import observe
from samplewise.bench import memory, telemetry
from samplewise.bench.cases import Case
from samplewise.bench.environments import cache_directory
from samplewise.bench.methods import make_step
from samplewise.bench.names import Method
from samplewise.bench.protocol import WorkerError, WorkerProcess, worker_environment
from samplewise.bench.truth import true_gradients
from samplewise.bench.worker import WORST, Worker, compare, kind_of
from samplewise.bench.workloads import make_workload
from samplewise.observation import calling, report_group

CASE = Case("some", "random", 2, 12, 4, 9, 6, ragged=True)


@pytest.mark.parametrize("method", ["auto", "tiled-exact", "samplewise", "batched", "plain", "auto:loss", "auto:bf16"])
def test_every_method_passes_the_check_and_a_wrong_gradient_does_not(method):
    parsed, workload = Method.parse(method), make_workload(CASE)
    loss, gradients = make_step(parsed, workload, None)()
    true_loss, true = true_gradients(workload)
    truth = {"loss": true_loss, "gradients": true}
    assert compare((loss, gradients), truth, WORST[parsed.bf16])["ok"]
    assert not compare((loss * 1.1, gradients), truth, WORST[parsed.bf16])["ok"]
    assert not compare((loss * torch.nan, gradients), truth, WORST[parsed.bf16])["ok"]
    if gradients:
        wrong = compare((loss, (*gradients[:3], gradients[3] * 1.5)), truth, WORST[parsed.bf16])
        assert not wrong["ok"] and wrong["gradient"] == wrong["gradients"]["bias"] > 0.3


@pytest.mark.skipif(not memory.reset_peak(), reason="the system does not let a process reset its peak")
def test_workspace_is_what_a_step_takes_beyond_its_gradients():
    def step():
        scratch = torch.ones(24 << 20)  # 96 MiB
        gradients = (torch.ones(12 << 20),)  # 48 MiB
        return scratch[0], gradients

    found = memory.weigh(step)
    assert found["gradients"] == 48 << 20 and found["how"] == "VmHWM"
    assert abs(found["workspace"] - (96 << 20)) < 4 << 20


def test_what_the_methods_tell_is_heard():
    with observe() as seen, calling("auto"):
        report_group("guided", 0, 4, 100, exact=10, active=5, rounds=1, bound=2e-8)
        report_group("tiled", 4, 8, 100, active=15)
    found = {"active_share": 0.1, "exact_share": 0.55, "rounds": 1, "outside": 2e-8, "ran": "guided+tiled"}
    assert telemetry.told(seen) == found
    with observe() as nothing:
        pass
    assert telemetry.told(nothing) == {}


def test_a_step_says_what_it_did():
    worker = Worker()
    worker.prepare(asdict(Case("sure", "planted", 2, 150, 40, 400, 64)), "guided", threads=1, budget=None, limit=None)
    told = worker.step()["ours"]
    assert told["ran"] == "guided" and 0 < told["active_share"] <= told["exact_share"] <= 1
    assert told["predicted_workspace"] <= told["bound"] and told["outside"] < 1e-6
    assert "ours" not in worker.step(), "the steps that count are not observed"


def test_errors_are_told_apart():
    assert kind_of(MemoryError()) == "out of memory"
    assert kind_of(RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried")) == "out of memory"
    assert kind_of(NotImplementedError("guided is not there yet")) == "not implemented"
    assert kind_of(RuntimeError("shapes")) == "failed"


@pytest.mark.parametrize(
    ("script", "status", "reason"),
    [
        ("kill -9 $$", "out of memory", "SIGKILL"),
        ("echo 'what(): std::bad_alloc' >&2; kill -6 $$", "out of memory", "SIGABRT"),
        ("echo 'Illegal thing' >&2; kill -6 $$", "failed", "Illegal thing"),
        ("echo 'no module' >&2; exit 3", "failed", "exit status 3 in step: no module"),
        ("sleep 60", "too slow", "step took more than 2 s"),
        ('read line; echo \'{"error": "not implemented", "message": "not yet"}\'; sleep 60', "not implemented", "not yet"),
    ],
)
def test_a_worker_that_does_not_answer(tmp_path, script, status, reason):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    with WorkerProcess(str(python), dict(os.environ)) as worker, pytest.raises(WorkerError, match=reason) as caught:
        worker.ask(2.0, do="step")
    assert caught.value.status == status


def test_children_wait_passively_with_the_threads_that_were_asked_for():
    environment = worker_environment(3, cache_directory(), memory=True)
    assert environment["OMP_WAIT_POLICY"] == "PASSIVE" and environment["OMP_NUM_THREADS"] == "3"
    assert int(environment["MALLOC_MMAP_THRESHOLD_"]) <= 1 << 17
    assert "MALLOC_MMAP_THRESHOLD_" not in worker_environment(3, cache_directory(), memory=False)
