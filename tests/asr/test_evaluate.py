"""Word errors: counted over everything, whatever the batches."""

from __future__ import annotations

import math

import pytest
import torch

from samplewise.asr import evaluate as evaluating
from samplewise.asr.beam import Decoded
from samplewise.asr.checkpoint import Run, make_preparation
from samplewise.asr.corpus import TEST, DigitStrings, Utterance, split_recordings
from samplewise.asr.errors import UserError
from samplewise.asr.evaluate import Errors, count_errors, evaluate, per_speaker
from samplewise.asr.examples import EvaluationExamples
from samplewise.asr.features import make_features
from samplewise.asr.model import Transducer
from samplewise.asr.problems import BadDataLog
from samplewise.asr.recipe import DecodingOptions
from samplewise.asr.tokenizer import CharacterTokenizer

from .made import RATE, tiny_recipe, tone


def test_a_ratio_of_sums_and_not_a_mean_of_ratios():
    nine = "one two three four five six seven eight nine"
    errors = count_errors(["one", nine], ["two", nine])
    assert errors.rate == pytest.approx(1 / 10)  # the mean of the ratios is 1/2
    assert (errors.units, errors.utterances, errors.utterances_wrong) == (10, 2, 1)


def test_insertions_deletions_substitutions():
    errors = count_errors(["one two three", "four", "five six"], ["one three", "four four", "five nine"])
    assert (errors.insertions, errors.deletions, errors.substitutions) == (1, 1, 1)
    assert str(errors).startswith("WER 50.00% (3 errors in 6 words: 1 insertions, 1 deletions, 1 substitutions")


def test_errors_in_characters_ignore_spaces_and_have_another_name():
    errors = count_errors(["今日は 晴れ", "雨"], ["今日も晴れ", "大雨"], "character")
    assert (errors.units, errors.substitutions, errors.insertions, errors.deletions) == (6, 1, 1, 0)
    assert str(errors).startswith("CER 33.33% (2 errors in 6 characters")
    assert errors.to_plain() == {
        "cer": pytest.approx(1 / 3),
        "characters": 6,
        "substitutions": 1,
        "deletions": 0,
        "insertions": 1,
        "utterances": 2,
        "utterances_wrong": 2,
    }
    assert set(count_errors(["a"], ["a"]).to_plain()) > {"wer", "words"}


def test_an_empty_hypothesis_is_all_deletions():
    assert count_errors(["one two"], [""]).deletions == 2


def test_nothing_is_no_error_rate():
    assert count_errors([], []) == Errors()
    assert Errors().rate != Errors().rate  # NaN


def test_speakers_add_up():
    texts = [("a", "one two", "one"), ("b", "three", "three"), ("c", "four", "five")]
    found = per_speaker(texts, ["ann", "bob", "ann"])
    assert (found["ann"].units, found["ann"].errors, found["bob"].errors) == (3, 2, 0)
    assert per_speaker(texts, ["ann"] * 3) == {}


def model_and_examples(recordings):
    recipe = tiny_recipe(data__test_strings=7)
    tokenizer = CharacterTokenizer(" efghinorstuvwxz")
    features = make_features(recipe.features)
    torch.manual_seed(0)
    model = Transducer(recipe, features.dim, tokenizer.size)
    with torch.no_grad():
        model.joiner.output.bias[0] -= 1.0
    chosen = split_recordings(recordings, TEST, recipe.data)
    corpus = DigitStrings(chosen, recipe.data, part=TEST, seed=1, sample_rate=RATE)
    prepare = make_preparation(Run(recipe, tokenizer, {}), model, features)
    return model, EvaluationExamples(corpus, prepare, BadDataLog()), tokenizer


def test_batches_have_no_influence(recordings):
    model, examples, tokenizer = model_and_examples(recordings)
    found = [evaluate(model, examples, tokenizer.decode, DecodingOptions(max_symbols=3, batch_size=size)) for size in (1, 3, 7)]
    assert model.training, "the mode is given back"
    assert found[0].errors == found[1].errors == found[2].errors
    assert found[0].errors.utterances == 7 and found[0].errors.errors > 0
    assert sorted(found[0].texts) == sorted(found[1].texts)
    assert found[1].nats_per_label == pytest.approx(found[0].nats_per_label, rel=1e-5)
    assert found[2].nats_per_label == pytest.approx(found[0].nats_per_label, rel=1e-5)


def test_the_loss_is_per_label(recordings):
    model, examples, tokenizer = model_and_examples(recordings)
    found = evaluate(model, examples, tokenizer.decode, DecodingOptions(max_symbols=3, batch_size=2))
    model.eval()
    nats = labels = 0.0
    for example in examples.examples:
        lengths = torch.tensor([len(example.features)]), torch.tensor([len(example.targets)])
        losses = model(example.features[None], lengths[0], example.targets[None], lengths[1])
        nats += losses["transducer"].item()
        labels += len(example.targets)
    assert found.nats_per_label == pytest.approx(nats / labels, rel=1e-5)


class Spoken:
    """A corpus of tones with given texts."""

    def __init__(self, *texts: str):
        self.given = texts

    def __len__(self) -> int:
        return len(self.given)

    def utterance(self, epoch, index):
        return Utterance(tone(index % 10, 0, 0, 0.5), self.given[index], f"utterance {index}", f"speaker {index % 2}")


def hearing(monkeypatch, heard: str, *texts: str, **options):
    """What is made of an evaluation in which every utterance is heard alike."""
    recipe = tiny_recipe()
    tokenizer = CharacterTokenizer(" efghinorstuvwxz'")
    features = make_features(recipe.features)
    model = Transducer(recipe, features.dim, tokenizer.size)
    examples = EvaluationExamples(
        Spoken(*texts), make_preparation(Run(recipe, tokenizer, {}), model, features), BadDataLog("raise")
    )

    def said(model, features, *_):
        return Decoded([tokenizer.encode(heard)] * len(features), *([0] * len(features) for _ in range(3)))

    monkeypatch.setattr(evaluating, "search", said)
    return evaluate(model, examples, tokenizer.decode, DecodingOptions(**{"batch_size": 2, **options}))


def test_every_utterance_is_scored_whatever_its_characters(monkeypatch):
    found = hearing(monkeypatch, "one", "one", "öne", "Über one", "two")
    assert (found.errors.utterances, found.errors.units, found.errors.errors) == (4, 5, 3)
    assert [problem.key for problem in sorted(found.without_loss, key=str)] == ["utterance 1", "utterance 2"]
    assert found.to_plain()["without_loss"] == {"character outside the vocabulary": 2}
    assert "2 of 4 utterances are scored, but are not in the loss:" in found.notes()
    known = hearing(monkeypatch, "one", "one", "two")
    assert known.notes() == [] and found.losses["labels"] == known.losses["labels"] == 6


def test_words_heard_where_nothing_is_said_are_insertions(monkeypatch):
    found = hearing(monkeypatch, "one two", "", "one")
    assert (found.errors.insertions, found.errors.units, found.errors.utterances) == (3, 1, 2)
    assert found.losses["utterances"] == 2 and math.isfinite(found.losses["loss"])
    silence = hearing(monkeypatch, "one", "", "")
    assert (silence.errors.insertions, silence.errors.units, silence.losses["labels"]) == (2, 0, 0)
    assert str(silence.errors).startswith("WER undefined (2 errors in 0 words")
    assert (silence.to_plain()["wer"], silence.to_plain()["nats_per_label"]) == (None, None), "JSON has no NaN"
    assert hearing(monkeypatch, "one", "ö").loss() == "none of the utterances has one"
    assert "wer" not in silence.metrics() and silence.metrics()["loss"] > 0


@pytest.mark.parametrize(("normalisation", "errors"), [("none", 2), ("lower", 2), ("words", 0)])
def test_texts_are_compared_as_they_are_told(monkeypatch, normalisation, errors):
    found = hearing(monkeypatch, "the fox", "“The fox!”", normalisation=normalisation)
    assert found.errors.errors == errors
    assert found.to_plain()["normalisation"] == normalisation == found.normalisation
    assert found.texts == [("utterance 0", "the fox" if normalisation == "words" else "“the fox!”", "the fox")]


def test_the_shares_of_processes_are_the_whole(monkeypatch):
    texts = ("one", "two", "öne", "", "three")
    whole = hearing(monkeypatch, "one", *texts)
    recipe, parts = tiny_recipe(), []
    monkeypatch.setattr(evaluating, "gather_object", lambda own: parts.append(own) or own)
    torch.manual_seed(0)
    tokenizer = CharacterTokenizer(" efghinorstuvwxz'")
    model = Transducer(recipe, 12, tokenizer.size)
    prepare = make_preparation(Run(recipe, tokenizer, {}), model, make_features(recipe.features))
    examples = EvaluationExamples(Spoken(*texts), prepare, BadDataLog())
    own = [evaluate(model, examples, tokenizer.decode, DecodingOptions(batch_size=1), (rank, 3)) for rank in range(3)]
    assert sum(each.errors.utterances for each in own) == sum(len(each.capped) for each in own) == 5 and len(parts) == 21
    assert sum(each.losses.get("labels", 0) for each in own) == whole.losses["labels"]
    assert sum(len(each.without_loss) for each in own) == 1
    assert all(len(each.steps) == len(each.frames) == len(each.capped) for each in own)


def test_what_decoding_took(recordings):
    model, examples, tokenizer = model_and_examples(recordings)
    found = evaluate(model, examples, tokenizer.decode, DecodingOptions(max_symbols=3, batch_size=3))
    frames = sorted(model.encoder.output_length(len(example.features)) for example in examples.examples)
    assert sorted(found.frames) == frames and len(found.steps) == 7
    assert all(steps >= length for steps, length in zip(found.steps, found.frames, strict=True)), "a node a frame at least"
    plain = found.to_plain()
    assert (plain["joint_steps"], plain["encoder_frames"]) == (sum(found.steps), sum(frames))
    ratio = f"{plain['joint_steps'] / plain['encoder_frames']:.2f}"
    assert found.work() == f"{plain['joint_steps']} joint steps in {plain['encoder_frames']} encoder frames ({ratio} a frame)"


def test_nothing_usable_is_an_error(recordings):
    model, examples, tokenizer = model_and_examples(recordings)
    examples.examples.clear()
    with pytest.raises(UserError, match="nothing to evaluate"):
        evaluate(model, examples, tokenizer.decode, DecodingOptions(max_symbols=3, batch_size=2))
