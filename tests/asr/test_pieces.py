"""SentencePiece: blank and the unknown keep their places, the same texts give the same pieces, and errors tell why."""

from __future__ import annotations

import pytest

from samplewise.asr.errors import UserError
from samplewise.asr.evaluate import count_errors
from samplewise.asr.options import SentencePieceOptions
from samplewise.asr.pieces import BLANK, UNKNOWN, PieceTokenizer
from samplewise.asr.tokenizer import make_tokenizer, tokenizer_from_plain

ADJECTIVES, NOUNS = ("OLD", "NEW", "LONG", "GREEN"), ("HOUSE", "SHIP", "ROAD", "FIELD", "LANTERN")
TEXTS = [f"THE {adjective} {noun} WAS {adjective}ER THAN THE {noun}S" for adjective in ADJECTIVES for noun in NOUNS]


def learn(vocab_size: int = 32, **options) -> PieceTokenizer:
    tokenizer = make_tokenizer(SentencePieceOptions(vocab_size=vocab_size, **options), TEXTS)
    assert isinstance(tokenizer, PieceTokenizer)
    return tokenizer


@pytest.mark.parametrize("model", ["unigram", "bpe"])
def test_round_trip_without_blank_and_unknown(model):
    tokenizer = learn(model=model)
    assert tokenizer.size == 32
    for text in TEXTS:
        ids = tokenizer.encode(f" {text} ")
        assert not {BLANK, UNKNOWN} & set(ids) and max(ids) < tokenizer.size
        assert len(ids) < len(text)
        assert tokenizer.decode(ids) == tokenizer.normalise(text) == text.lower()


def test_the_same_texts_give_the_same_pieces_and_a_checkpoint_keeps_them():
    tokenizer = learn()
    assert learn().model == tokenizer.model
    loaded = tokenizer_from_plain(tokenizer.to_plain())
    assert loaded.size == tokenizer.size
    assert loaded.encode(TEXTS[0]) == tokenizer.encode(TEXTS[0])


def test_blanks_say_nothing_and_the_unknown_is_an_error_that_shows():
    tokenizer = learn()
    ids = tokenizer.encode("the ship")
    assert tokenizer.decode([BLANK, *ids, BLANK]) == "the ship"
    assert UNKNOWN in tokenizer.encode("the quay")
    assert tokenizer.decode(tokenizer.encode("the house é hoüse éä")) == "the house ⁇ ho⁇se ⁇"


def test_case_is_kept_if_wanted():
    assert learn(lowercase=False).decode(learn(lowercase=False).encode("THE ROAD")) == "THE ROAD"


@pytest.mark.parametrize("vocab_size", [5, 5000])
def test_too_few_and_too_many_classes_are_told(vocab_size):
    with pytest.raises(UserError, match=f"tokenizer.vocab_size={vocab_size} unigram pieces"):
        learn(vocab_size)


def heard(tokenizer: PieceTokenizer, text: str) -> tuple[list[str], list[str]]:
    """A reference, and what a recogniser without faults makes of it."""
    return [tokenizer.normalise(text)], [tokenizer.decode(tokenizer.encode(text))]


def test_an_unknown_sign_is_one_sign_of_its_word():
    tokenizer = make_tokenizer(SentencePieceOptions(vocab_size=11), ["hello world"] * 3)
    words = count_errors(*heard(tokenizer, "hello wörld"))
    assert (words.errors, words.units) == (1, 2)
    characters = count_errors(*heard(tokenizer, "hello wörld"), "character")
    assert (characters.errors, characters.units) == (1, 10)


@pytest.mark.parametrize("text", ["½ cup", "ﬁve ™ signs…", "vår ｋ　歌", "①"])
def test_references_are_what_sentencepiece_makes_of_them(text):
    tokenizer = make_tokenizer(SentencePieceOptions(vocab_size=30, model="bpe"), [text + " and other words"] * 3)
    assert count_errors(*heard(tokenizer, text)).errors == 0
