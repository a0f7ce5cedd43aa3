"""Weights of another run: refused where they would mean something else, and said where the runs differ otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from samplewise.asr.checkpoint import Recogniser, Run
from samplewise.asr.errors import UserError
from samplewise.asr.recipe import Recipe
from samplewise.asr.start import compared, take_weights
from samplewise.asr.tokenizer import CharacterTokenizer

from .made import tiny_recipe

STATELESS = {"kind": "stateless", "embedding": 8, "hidden": 16}
CONFORMER = {"kind": "conformer", "layers": 1, "hidden": 16, "heads": 2, "channels": 8, "feed_forward": 16}
WORDS = {"kind": "words"}
MUST = [  # change of the recipe, what is said, and whether it concerns the encoder alone
    ({"features__sample_rate": 16000}, "features.sample_rate: 8000 there, 16000 here", True),
    ({"features__hop": 0.0125}, "features.hop: 0.01 there, 0.0125 here", True),
    ({"features__window": 0.02}, "features.window: 0.025 there, 0.02 here", True),
    ({"features__mels": 20}, "features.mels: 12 there, 20 here", True),
    ({"features__low": 60.0}, "features.low: 20.0 there, 60.0 here", True),
    ({"features__normalise": False}, "features.normalise: True there, False here", True),
    ({"encoder__stack": 3}, "encoder.stack: 2 there, 3 here", True),
    ({"encoder": CONFORMER}, "encoder.kind: 'lstm' there, 'conformer' here", True),
    ({"predictor": STATELESS}, "predictor.kind: 'gru' there, 'stateless' here", False),
    ({"joiner__activation": "relu"}, "joiner.activation: 'tanh' there, 'relu' here", False),
    ({"joiner__dim": 8}, "joiner.dim: 16 there, 8 here", False),
    ({"tokenizer": WORDS}, "tokenizer.kind: 'characters' there, 'words' here", False),
    ({"tokenizer__lowercase": False}, "tokenizer.lowercase: True there, False here", False),
    ({"loss": {"topology": "hat"}}, "loss.topology: 'regular' there, 'hat' here", False),
    (
        {"joiner": {"dim": 16, "blank_head": True}, "loss": {"topology": "hat"}},
        "joiner.blank_head: False there, True here",
        False,
    ),
    ({"ctc": {"weight": 0.0}}, "ctc.weight: 0.3 there, 0.0 here, and with 0 there is no CTC head", False),
]


def started(recipe: Recipe, before: Recipe) -> list[str]:
    tokenizer = CharacterTokenizer("abc")
    run = Run(before, tokenizer, {})
    model, _ = Run(recipe, tokenizer, {}).make_model()
    other = run.make_model()
    said = take_weights(model, Recogniser(*other, run, Path("runs/first")), recipe)
    for name, weight in model.encoder.state_dict().items():
        torch.testing.assert_close(weight, other[0].encoder.state_dict()[name])
    return said


@pytest.mark.parametrize("part", ["model", "encoder"])
@pytest.mark.parametrize(("change", "message", "encoder"), MUST, ids=["-".join(change) for change, _, _ in MUST])
def test_another_kind_of_model_is_refused_with_both_values(change, message, encoder, part):
    recipe = tiny_recipe(training__start_with=part, **change)
    if part == "encoder" and not encoder:
        assert message.split(",")[0] in "\n".join(started(recipe, tiny_recipe())).replace(";", ",")
        return
    with pytest.raises(UserError) as error:
        started(recipe, tiny_recipe())
    assert message in str(error.value) and "runs/first" in str(error.value)


def test_all_that_is_apart_is_said_at_once_and_of_another_kind_the_kind_alone():
    apart, other = compared(tiny_recipe(), tiny_recipe(encoder=CONFORMER, features__hop=0.02, joiner__dim=8), "model")
    assert [line.split(":")[0] for line in apart] == ["features.hop", "encoder.kind", "joiner.dim"] and other == []


def test_what_may_differ_is_said_and_the_data_are_expected_to():
    changes = {"encoder__dropout": 0.3, "ctc": {"weight": 0.5}, "augment": {"time_masks": 1}, "seed": 7}
    said = started(tiny_recipe(**changes, training__steps=3, data__valid_strings=8), tiny_recipe())
    assert said[0] == "starting from runs/first: the whole model, and its vocabulary of 4 classes"
    assert said[1] == (
        "not as they were there: data.valid_strings: 4 there, 8 here; augment: 'none' there, 'spec_augment' here; "
        "ctc.weight: 0.3 there, 0.5 here; encoder.dropout: 0.1 there, 0.3 here"
    )
    assert started(tiny_recipe(), tiny_recipe()) == said[:1]
