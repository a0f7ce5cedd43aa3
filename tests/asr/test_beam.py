"""Beam search against every label sequence there is, each with its exact likelihood."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from samplewise.asr.beam import Hypothesis, Search, beam_search, best, log_add
from samplewise.asr.checkpoint import Recogniser, Run
from samplewise.asr.decode import greedy, search
from samplewise.asr.errors import UserError
from samplewise.asr.model import Transducer
from samplewise.asr.recipe import DecodingOptions
from samplewise.asr.tokenizer import CharacterTokenizer

from .made import network, tiny_recipe


def likelihood(model: Transducer, features: torch.Tensor, labels: tuple[int, ...]) -> float:
    """Log-probability of a label sequence, over all its alignments."""
    targets = torch.tensor([labels], dtype=torch.long).reshape(1, -1)
    lengths = torch.tensor([len(features)]), torch.tensor([len(labels)])
    return -model(features[None], lengths[0], targets, lengths[1])["transducer"].item()


@pytest.mark.parametrize("kind", ["lstm", "gru", "stateless"])
@pytest.mark.parametrize("seed", range(6))
@torch.no_grad()
def test_a_wide_beam_finds_the_likeliest_of_all_sequences(seed, kind):
    model = network(seed, 3.0, kind, classes=3)
    features = torch.randn(6, 12)  # three encoder frames
    every = [labels for length in range(7) for labels in itertools.product((1, 2), repeat=length)]
    scores = {labels: likelihood(model, features, labels) for labels in every}
    mass = sum(torch.tensor(list(scores.values())).exp()).item()
    likeliest = max(scores, key=lambda labels: scores[labels])
    assert 1 - mass < torch.tensor(scores[likeliest]).exp().item(), "no longer sequence can be likelier"
    assert tuple(beam_search(model, features[None], torch.tensor([6]), beam=400, max_symbols=6)[0]) == likeliest


@torch.no_grad()
def test_the_cases_above_hold_ones_that_greedy_search_gets_wrong():
    wrong = empty = 0
    for seed in range(6):
        model = network(seed, 3.0, classes=3)
        features = torch.randn(1, 6, 12)
        found = beam_search(model, features, torch.tensor([6]), beam=400, max_symbols=6)
        wrong += greedy(model, features, torch.tensor([6]), 6) != found
        empty += found == [[]]
    assert wrong and empty < 6


@pytest.mark.parametrize("beam", [2, 5])
@torch.no_grad()
def test_utterances_have_no_influence_on_each_other(beam):
    model = network(1, 0.5, scale=8.0)
    features, lengths = torch.randn(5, 24, 12), torch.tensor([24, 2, 11, 1, 6])
    together = beam_search(model, features, lengths, beam, max_symbols=3)
    alone = [
        beam_search(model, features[i : i + 1, :n], lengths[i : i + 1], beam, 3)[0] for i, n in enumerate(lengths.tolist())
    ]
    assert together == alone and together[3] == [] and max(map(len, together)) > 1


@pytest.mark.parametrize("max_symbols", [1, 4])
def test_a_frame_emits_no_more_than_the_bound(max_symbols):
    model = network(0, 0.5, classes=3)
    left = {0: {}}
    Search(model, 100, max_symbols, [5]).one_frame(torch.randn(1, model.encoder.dim), 0, {0: {(): Hypothesis(0.0, 0)}}, left)
    assert set(left[0]) == {1}, "a blank goes on one frame"
    assert {len(labels) for labels in left[0][1]} == set(range(max_symbols + 1))


def emitted(left: dict, log_probs: list[float], one: Hypothesis, labels: tuple[int, ...], beam: int):
    """The search, and what stays in a frame with one more label, of what has left it by blank."""
    model = network(0, 0.5)
    search = Search(model, beam, 5, [9])
    encoded = torch.zeros(1, model.encoder.dim)
    return search, search.emit(encoded, 0, [(0, labels, one)], torch.tensor([log_probs]), [], {0: {1: left}})


@pytest.mark.parametrize(("beam", "kept"), [(1, {}), (2, {(1, 2), (1, 1)}), (3, {(1, 2), (1, 1), (1, 3)})])
def test_a_longer_sequence_must_beat_the_worst_that_would_be_kept(beam, kept):
    """Of those that have left the frame with scores -1, -4 and -6, the `beam` best would be kept, and the last of these counts:
    -1.5 and -3 are worse than the first of two, -5 is worse than the second and better than the third."""
    left = {(): Hypothesis(-1.0, 0), (1,): Hypothesis(-4.0, 0), (2,): Hypothesis(-6.0, 0)}
    search, staying = emitted(left, [0.0, -2.0, -0.5, -4.0, -7.0, -8.0], Hypothesis(-1.0, 0), (1,), beam)
    assert set(staying.get(0, ())) == set(kept)
    if kept:
        assert [one.score for one in staying[0].values()] == [-1.5, -3.0, -5.0][: len(kept)]
        assert sorted(one.row for one in staying[0].values()) == list(range(1, 1 + len(kept)))
        assert len(search.rows.predicted) == 1 + len(kept)


def test_fewer_than_a_beam_keep_everything():
    log_probs = [0.0, -20.0, -30.0, -40.0, -70.0, -80.0]
    _, staying = emitted({(): Hypothesis(-1.0, 0)}, log_probs, Hypothesis(-50.0, 0), (), 2)
    assert {labels: one.score for labels, one in staying[0].items()} == {(1,): -70.0, (2,): -80.0}


def test_the_best_of_some():
    scores = {(1,): -3.0, (2,): -1.0, (3,): -2.0}
    assert list(best({labels: Hypothesis(score, 0) for labels, score in scores.items()}, 2)) == [(2,), (3,)]


@torch.no_grad()
def test_frames_in_which_the_bound_was_reached_are_counted():
    model = network(0, 0.5, classes=3)
    encoded = torch.randn(1, model.encoder.dim)

    def left_by(kept: dict, max_symbols: int):
        left = {0: {}}
        Search(model, 100, max_symbols, [5]).one_frame(encoded, 0, {0: kept}, left)
        return left[0][1]

    assert {labels: one.capped for labels, one in left_by({(): Hypothesis(0.0, 0, 5)}, 2).items()} == {
        labels: 5 + (len(labels) == 2) for length in range(3) for labels in itertools.product((1, 2), repeat=length)
    }
    for score, capped in ((-90.0, 6), (90.0, 8)):  # of two ways to the same labels the likelier one tells
        assert left_by({(): Hypothesis(0.0, 0, 5), (1,): Hypothesis(score, 0, 8)}, 1)[(1,)].capped == capped
    seen = [
        beam_search(network(seed, 0.5, scale=8.0), torch.randn(3, 24, 12), torch.tensor([24, 10, 1]), 3, 1) for seed in range(9)
    ]
    assert all(found.capped == [len(labels) for labels in found] for found in seen) and any(sum(found.capped) for found in seen)
    assert sum(beam_search(network(0, 100.0), torch.randn(1, 24, 12), torch.tensor([24]), 3, 1).capped) == 0


def test_a_beam_wider_than_the_classes():
    assert beam_search(network(0, 100.0, classes=2), torch.randn(1, 8, 12), torch.tensor([8]), beam=10) == [[]]


def test_a_batch_of_none():
    assert beam_search(network(0, 0.0, classes=3), torch.randn(0, 8, 12), torch.zeros(0, dtype=torch.long), beam=2) == []


def test_the_recipe_says_which_search():
    model, features, lengths = network(2, 0.5, classes=3), torch.randn(3, 24, 12), torch.tensor([24, 24, 24])
    assert search(model, features, lengths, DecodingOptions(max_symbols=3)) == greedy(model, features, lengths, 3)
    wide = DecodingOptions(beam=4, max_symbols=3)
    assert search(model, features, lengths, wide) == beam_search(model, features, lengths, 4, 3)


def test_a_given_beam_takes_the_place_of_the_recipes(tmp_path):
    recipe = replace(tiny_recipe(), decoding=DecodingOptions(beam=3))
    run = Run(recipe, CharacterTokenizer("ab"), {})
    recogniser = Recogniser(*run.make_model(), run, tmp_path)
    assert [recogniser.decoding(beam).beam for beam in (None, 1, 7)] == [3, 1, 7]
    for beam in (0, -3, 1 << 70):
        with pytest.raises(UserError, match=rf"^--beam must be between 1 and 10,000, got {beam}$"):
            recogniser.decoding(beam)


def test_beams_below_one_are_refused():
    with pytest.raises(ValueError, match="beam must be between 1 and 10,000, got 0"):
        DecodingOptions(beam=0)


def test_log_add():
    assert log_add(-float("inf"), -2.0) == -2.0
    assert log_add(-1e4, -1e4) == pytest.approx(-1e4 + 0.6931471805599453)
