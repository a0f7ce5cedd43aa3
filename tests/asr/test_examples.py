"""From utterances to batches: what is refused, and what stands in for it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from samplewise.asr.corpus import Utterance
from samplewise.asr.errors import UserError
from samplewise.asr.examples import (
    EvaluationExamples,
    Example,
    Preparation,
    TrainingExamples,
    collate,
)
from samplewise.asr.features import LogMel
from samplewise.asr.problems import BadData, BadDataError, BadDataLog
from samplewise.asr.recipe import LogMelOptions
from samplewise.asr.tokenizer import CharacterTokenizer

from .made import RATE, tone


class Listed:
    """A corpus of given utterances; an entry of text None cannot be read."""

    def __init__(self, *texts: str | None, seconds: float = 0.5):
        self.all = [Utterance(tone(i % 10, 0, 0, seconds), text, f"utterance {i}") for i, text in enumerate(texts)]

    def __len__(self) -> int:
        return len(self.all)

    def utterance(self, epoch, index):
        if self.all[index].text is None:
            raise BadDataError(self.all[index].key, "unreadable recording")
        return self.all[index]

    def seconds(self, epoch, index):
        return len(self.all[index].samples) / RATE


def preparation(stack: int = 4, ctc: bool = True) -> Preparation:
    features = LogMel(LogMelOptions(sample_rate=RATE, mels=8))
    return Preparation(features, CharacterTokenizer(" abc"), lambda frames: frames // stack, ctc)


def reason(utterance: Utterance, **options) -> str:
    with pytest.raises(BadDataError) as error:
        preparation(**options)(utterance)
    assert error.value.problem.key == utterance.key
    return error.value.problem.reason


def test_a_good_utterance():
    example = preparation()(Utterance(tone(1, 0, 0), " A  b", "x", "ann"))
    assert (example.text, example.targets.tolist(), example.speaker) == ("a b", [2, 1, 3], "ann")
    assert example.features.shape == (18, 8)


def test_what_cannot_be_learnt_is_named():
    assert reason(Utterance(tone(1, 0, 0), "abz", "x")) == "character outside the vocabulary"
    assert reason(Utterance(tone(1, 0, 0), " \t", "x")) == "empty transcript"
    assert reason(Utterance(tone(1, 0, 0), "ab" * 10, "x")) == "too few frames"
    assert reason(Utterance(tone(1, 0, 0)[:100], "a", "x"), ctc=False) == "too few frames"


def test_the_encoder_is_asked_for_lengths_and_ctc_needs_blanks_between_repeats():
    utterance = Utterance(tone(1, 0, 0), "aabb", "x")  # 18 frames
    assert len(preparation(stack=3)(utterance).targets) == 4  # 6 encoder frames: 4 labels and 2 blanks just fit
    assert reason(utterance, stack=4) == "too few frames"  # 4 encoder frames
    assert len(preparation(stack=18, ctc=False)(utterance).targets) == 4  # one frame is enough for a transducer


def test_training_takes_the_next_usable_utterance_instead():
    bad = BadDataLog()
    examples = TrainingExamples(Listed("a", None, "z", "b"), preparation(), bad)
    assert [examples[0, index].text for index in range(4)] == ["a", "b", "b", "b"]
    assert bad.counts() == {"unreadable recording": 1, "character outside the vocabulary": 1}
    assert "skipped 2 utterances" in bad.report()


def test_training_refuses_where_the_recipe_says_so():
    with pytest.raises(UserError, match=r"utterance 1: unreadable recording(.|\n)*on_bad_data: skip"):
        TrainingExamples(Listed("a", None), preparation(), BadDataLog("raise"))[0, 1]


def test_training_on_nothing_usable_is_an_error_and_not_an_endless_loop():
    with pytest.raises(UserError, match="not one utterance"):
        TrainingExamples(Listed(None, "z"), preparation(), BadDataLog())[0, 0]


def test_evaluation_leaves_out_and_counts():
    bad = BadDataLog()
    examples = EvaluationExamples(Listed("a", None, "b"), preparation(), bad)
    assert [example.text for example in examples.examples] == ["a", "b"]
    assert bad.counts() == {"unreadable recording": 1}


def test_all_that_can_be_heard_is_scored_and_what_has_no_loss_says_why():
    bad = BadDataLog("raise")
    examples = EvaluationExamples(Listed("a", "zö", "", " ", "ab" * 10, seconds=0.2), preparation(), bad).examples
    assert [example.text for example in examples] == ["a", "zö", "", "", "ab" * 10]
    reasons = [example.without_loss.reason if example.without_loss else None for example in examples]
    assert reasons == [None, "character outside the vocabulary", None, None, "too few frames"]
    assert "'z', 'ö'" in examples[1].without_loss.detail
    assert [len(example.targets) for example in examples[:4]] == [1, 0, 0, 0] and examples[2].targets.dtype == torch.int64
    assert bad.counts() == {}


def test_a_class_for_the_unknown_has_no_loss_in_evaluation():
    prepare = replace(preparation(), tokenizer=CharacterTokenizer(" abc", unknown=True))
    utterance = Utterance(tone(1, 0, 0), "aéb", "x")
    assert prepare.to_score(utterance).without_loss == BadData("x", "outside the vocabulary", "aéb")
    assert prepare(utterance).targets.tolist() == [2, 5, 3], "training learns it"


def test_what_is_too_short_to_be_heard_is_not_scored():
    with pytest.raises(BadDataError, match="too few frames"):
        preparation(ctc=False).to_score(Utterance(tone(1, 0, 0)[:100], "a", "x"))


def test_collate_pads():
    examples = [
        Example(torch.ones(3, 2), torch.tensor([1, 2]), "k1", "ab", "s"),
        Example(torch.ones(5, 2), torch.tensor([3]), "k2", "c", "s"),
    ]
    batch = collate(examples)
    assert batch["features"].shape == (2, 5, 2)
    assert batch["features"][0, 3:].abs().sum() == 0
    assert batch["targets"].tolist() == [[1, 2], [3, 0]]
    assert (batch["feature_lengths"].tolist(), batch["target_lengths"].tolist()) == ([3, 5], [2, 1])
    assert batch["keys"] == ["k1", "k2"]
