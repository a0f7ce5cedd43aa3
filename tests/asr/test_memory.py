"""The peak of the joint and the loss, measured in a process of its own."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from samplewise.asr import memory
from samplewise.asr.memory import LossStep, describe, measure, run

STEP = LossStep(
    encoder_lengths=[100, 80, 90, 70],
    target_lengths=[40, 30, 20, 10],
    encoder_dim=16,
    predictor_dim=16,
    joint_dim=64,
    vocab_size=400,
    activation="tanh",
    method="auto",
    memory_budget="6MiB",
)


def test_sizes_of_what_is_never_built():
    assert STEP.logits_bytes == 4 * 100 * 41 * 400 * 4
    assert STEP.joint_bytes == 4 * 100 * 41 * 64 * 4


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process is read from /proc")
def test_the_loss_takes_less_than_one_copy_of_the_logits_and_the_batched_way_more():
    found = measure(STEP)
    assert 0 < found["peak_bytes"] < STEP.logits_bytes < found["batched_peak_bytes"], found
    line = describe(found)
    assert "25.0 MiB" in line and "(4, 100, 41, 400)" in line and "fresh process" in line


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process is read from /proc")
@pytest.mark.parametrize(
    ("key", "rows"), [('tdt {"durations": [0, 1, 2]}', 403), ('multi_blank {"classes": [398, 399], "durations": [2, 4]}', 400)]
)
def test_rows_beside_those_of_labels_are_counted(key, rows):
    step = replace(STEP, topology=key, method="tiled")
    assert step.outputs == rows and step.logits_bytes == 4 * 100 * 41 * rows * 4
    peak, how = run(step)
    assert peak is not None and 0 < peak < step.logits_bytes and "fresh process" in how


@pytest.mark.parametrize("command", ["false", "true", "echo", "no such command"])
def test_a_failed_measurement_is_told_and_no_error(monkeypatch, command):
    monkeypatch.setattr(memory.sys, "executable", command)
    found = measure(STEP)
    assert found["peak_bytes"] is None
    assert "not measured" in describe(found)


def test_what_may_not_fit_is_not_run_the_batched_way(monkeypatch):
    monkeypatch.setattr(memory, "run", lambda step: (1, step.method))
    monkeypatch.setattr(memory, "SMALL", 0)
    found = measure(STEP)
    assert (found["peak_bytes"], found["measured_as"], found["batched_peak_bytes"]) == (1, "auto", None)
