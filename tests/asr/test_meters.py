"""What is measured in training: frames of the processes, step by step."""

from __future__ import annotations

import pytest
import torch

from samplewise.asr.meters import StepFrames, imbalance, summary


def test_frames_are_summed_step_by_step():
    frames = StepFrames()
    for step, count in ((3, 10), (3, 5), (4, 7)):
        frames.add(step, count)
    assert frames.take() == [15, 7] and frames.take() == []


def test_imbalance_is_the_worst_step_against_its_own_median():
    steps = torch.tensor([[100, 10], [100, 30], [130, 10]])  # three processes, two steps
    assert imbalance(steps) == pytest.approx(3.0)
    assert imbalance(torch.tensor([[10], [30]])) == pytest.approx(1.5), "of two processes the median is their mean"
    assert imbalance(torch.tensor([[0, 0], [0, 0]])) == 0


def test_the_summary_takes_the_worst_line_and_stands_null():
    log = [{"frames_imbalance": 1.1, "step_seconds": 1.0}, {"frames_imbalance": 1.3, "step_seconds": None}, {"eval_loss": 3.0}]
    assert summary(log) == {"frames_imbalance": 1.3, "step_seconds": 1.0}
