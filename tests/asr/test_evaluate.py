"""Word errors: counted over everything, whatever the batches."""

from __future__ import annotations

import pytest
import torch

from samplewise.asr.checkpoint import Run, make_preparation
from samplewise.asr.corpus import TEST, DigitStrings, split_recordings
from samplewise.asr.evaluate import Errors, count_errors, evaluate, per_speaker
from samplewise.asr.examples import EvaluationExamples
from samplewise.asr.features import make_features
from samplewise.asr.model import Transducer
from samplewise.asr.problems import BadDataLog, UserError
from samplewise.asr.recipe import DecodingOptions
from samplewise.asr.tokenizer import CharacterTokenizer

from .made import RATE, tiny_recipe


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


def test_nothing_usable_is_an_error(recordings):
    model, examples, tokenizer = model_and_examples(recordings)
    examples.examples.clear()
    with pytest.raises(UserError, match="nothing to evaluate"):
        evaluate(model, examples, tokenizer.decode, DecodingOptions(max_symbols=3, batch_size=2))
