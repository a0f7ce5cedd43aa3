"""The corpora of a recipe: empty texts are for scoring only, and texts are what the recipe wants of them."""

from __future__ import annotations

import json

import pytest

from samplewise.asr.corpora import make_corpora
from samplewise.asr.errors import UserError
from samplewise.asr.problems import BadDataLog

from .made import RATE, tiny_recipe


def corpora(directory, bad, *texts: str, **options):
    """Manifests of the same lines to train and to test on."""
    (directory / "a.wav").touch()
    lines = [json.dumps({"audio": "a.wav", "text": text}) for text in texts]
    (directory / "m.jsonl").write_text("\n".join(lines))
    parts = {name: {"manifest": "m.jsonl"} for name in ("train", "test")}
    recipe = tiny_recipe(data={"kind": "manifest", "root": str(directory), **parts, **options})
    return make_corpora(recipe, None, RATE, bad, lambda line: None)


def test_an_empty_text_is_scored_and_not_learnt(tmp_path, bad):
    found = corpora(tmp_path, bad, "one", " ", "two")
    assert (found.train.texts(), found.test.texts()) == (["one", "two"], ["one", " ", "two"])
    assert bad.counts() == {"empty transcript": 1}
    with pytest.raises(UserError, match=r"m\.jsonl: none of its 2 usable lines has a text to learn(.|\n)*2 x empty"):
        corpora(tmp_path, BadDataLog(), "", " ")


def test_words_alone_are_of_any_script(tmp_path, bad):
    found = corpora(tmp_path, bad, "Vår husläkare!", "Go 10 metres; don’t", "هذا؟", text="words")
    assert found.train.texts() == ["vår husläkare", "go 10 metres don't", "هذا"]
