"""Batched greedy decoding against a plain one that takes utterances one at a time."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

from samplewise.asr.decode import greedy
from samplewise.asr.model import Transducer
from samplewise.asr.tokenizer import BLANK

from .made import network


def slow(model: Transducer, features: torch.Tensor, max_symbols: int, frames: int | None = None) -> list[int]:
    """One utterance, or its first encoder frames, the predictor run anew over all labels so far at every node."""
    encoder_out, _ = model.encoder(features.unsqueeze(0), torch.tensor([len(features)]))
    labels: list[int] = []
    for frame in range(encoder_out.shape[1] if frames is None else frames):
        for _ in range(max_symbols):
            predicted = model.predictor(torch.tensor([labels], dtype=torch.long).reshape(1, -1))[:, -1:]
            best = int(model.joiner(encoder_out[:, frame : frame + 1], predicted).argmax())
            if best == BLANK:
                break
            labels.append(best)
    return labels


@pytest.mark.parametrize("kind", ["lstm", "gru", "stateless"])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("blank_bias", [-2.0, 0.5, 2.0])
@torch.no_grad()
def test_against_one_utterance_at_a_time(kind, seed, blank_bias):
    model = network(seed, blank_bias, kind)
    features, lengths = torch.randn(5, 24, 12), torch.tensor([24, 2, 11, 17, 6])
    found = greedy(model, features, lengths, max_symbols=3)
    assert found == [slow(model, features[i, :n], 3) for i, n in enumerate(lengths.tolist())]


@torch.no_grad()
def test_the_cases_above_hold_labels_and_blanks_in_the_same_utterance():
    features, lengths = torch.randn(5, 24, 12), torch.tensor([24, 24, 24, 24, 24])
    counts = [len(labels) for seed in range(4) for labels in greedy(network(seed, 0.5, "lstm"), features, lengths, 3)]
    assert any(0 < count < 36 for count in counts)


@pytest.mark.parametrize("max_symbols", [1, 4])
def test_a_frame_emits_no_more_than_the_bound(max_symbols):
    model = network(0, -100.0, "lstm")  # never blank
    found = greedy(model, torch.randn(2, 24, 12), torch.tensor([24, 10]), max_symbols)
    assert [len(labels) for labels in found] == [12 * max_symbols, 5 * max_symbols]


@pytest.mark.parametrize("kind", ["lstm", "stateless"])
@torch.no_grad()
def test_frames_in_which_the_bound_was_reached_are_counted(kind):
    features, lengths = torch.randn(4, 24, 12), torch.tensor([24, 10, 1, 24])
    seen = set()
    for seed in range(4):
        model = network(seed, 0.5, kind)
        found = greedy(model, features, lengths, 2)
        for utterance, length in enumerate(lengths.tolist()):
            ends = [len(slow(model, features[utterance, :length], 2, frames)) for frames in range(length // 2 + 1)]
            assert found.capped[utterance] == sum(after - before == 2 for before, after in pairwise(ends))
        seen |= set(found.capped)
    assert len(seen) > 3


def test_only_blank_emits_nothing_and_never_advances_the_predictor(monkeypatch):
    model = network(0, 100.0, "lstm")
    steps: list[int] = []
    step = model.predictor.step
    monkeypatch.setattr(model.predictor, "step", lambda labels, state: (steps.append(1), step(labels, state))[1])
    assert greedy(model, torch.randn(2, 24, 12), torch.tensor([24, 10])) == [[], []]
    assert len(steps) == 1, "the start symbol alone"


@torch.no_grad()
def test_the_joint_is_asked_once_a_label_and_once_a_blank():
    model = network(2, 0.5)
    found = greedy(model, torch.randn(4, 24, 12), torch.tensor([24, 10, 1, 13]), 3)
    assert found.frames == [12, 5, 0, 6] and sum(found.capped) and min(map(len, found[:2]))
    expected = [frames + len(labels) - full for labels, frames, full in zip(found, found.frames, found.capped, strict=True)]
    assert found.steps == expected, "after as many labels as a frame may have, its blank is not asked for"


def test_an_utterance_shorter_than_a_frame_is_empty():
    assert greedy(network(0, 0.0, "gru"), torch.randn(2, 4, 12), torch.tensor([1, 4]))[0] == []


def test_decoding_leaves_the_module_as_it_was():
    model = network(0, 0.5, "lstm")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    greedy(model, torch.randn(2, 24, 12), torch.tensor([24, 10]))
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert isinstance(model, nn.Module) and not model.training
