"""Characters as classes: a round trip, blank left alone, the unknown named."""

from __future__ import annotations

import unicodedata

import pytest

from samplewise.asr.errors import UserError
from samplewise.asr.recipe import CharactersOptions, WordsOptions
from samplewise.asr.tokenizer import (
    BLANK,
    CharacterTokenizer,
    OutOfVocabularyError,
    WordTokenizer,
    make_tokenizer,
    tokenizer_from_plain,
)


def test_round_trip_and_blank_is_no_character():
    tokenizer = CharacterTokenizer(" abc")
    ids = tokenizer.encode("  Cab\tbac ")
    assert BLANK not in ids
    assert max(ids) < tokenizer.size == 5
    assert tokenizer.decode(ids) == "cab bac"


def test_decoding_drops_blanks_and_stray_spaces():
    tokenizer = CharacterTokenizer(" ab")
    assert tokenizer.decode([1, 2, 0, 1, 1, 3, 1]) == "a b"


def test_characters_of_the_training_texts():
    tokenizer = make_tokenizer(CharactersOptions(), ["Two", "one  three"])
    assert tokenizer.characters == " ehnortw"
    assert tokenizer_from_plain(tokenizer.to_plain()).encode("two") == tokenizer.encode("two")


def test_there_is_a_class_for_the_space_only_where_texts_have_one():
    assert make_tokenizer(CharactersOptions(), ["天 ", "地"]).size == 3


def test_case_is_kept_if_wanted():
    assert make_tokenizer(CharactersOptions(lowercase=False), ["Ab"]).decode([1, 2]) == "Ab"


def test_unknown_characters_are_named():
    with pytest.raises(OutOfVocabularyError, match="'!', 'é' in 'é ab!'"):
        CharacterTokenizer(" ab").encode("é ab!")


def test_a_class_for_unknown_characters():
    tokenizer = make_tokenizer(CharactersOptions(unknown=True), ["ab"])
    assert tokenizer.size == 4 and tokenizer.unknown == 3
    assert tokenizer.encode("aéb") == [1, 3, 2]
    assert tokenizer.decode([1, 3, 2]) == "a⁇b"
    loaded = tokenizer_from_plain(tokenizer.to_plain())
    assert loaded.unknown == 3 and loaded.encode("é") == [3]
    assert make_tokenizer(CharactersOptions(), ["ab"]).unknown is None


@pytest.mark.parametrize("options", [CharactersOptions(characters="aa"), CharactersOptions(characters="aB")])
def test_wrong_vocabularies_are_refused(options):
    with pytest.raises(UserError):
        make_tokenizer(options, [])


def test_an_empty_vocabulary_is_refused():
    with pytest.raises(UserError, match="empty"):
        make_tokenizer(CharactersOptions(), [])


COMPOSED = "vår é"
APART = unicodedata.normalize("NFD", COMPOSED)


@pytest.mark.parametrize("learnt_from", [COMPOSED, APART])
@pytest.mark.parametrize("options", [CharactersOptions(), WordsOptions()])
def test_composed_or_not_the_text_is_the_same(options, learnt_from):
    tokenizer = make_tokenizer(options, [learnt_from])
    assert tokenizer.encode(APART) == tokenizer.encode(COMPOSED)
    assert tokenizer.unknown not in tokenizer.encode(APART)
    assert tokenizer.decode(tokenizer.encode(APART)) == tokenizer.normalise(APART) == COMPOSED


def test_a_vocabulary_learnt_before_texts_were_composed_still_serves():
    """Its classes are letters and marks of their own; their order is that of trained weights, so it stays."""
    old = CharacterTokenizer("".join(sorted(set(APART))))
    assert old.decode(old.encode(COMPOSED)) == COMPOSED
    words = WordTokenizer(sorted(APART.split()))
    assert words.unknown not in words.encode(COMPOSED) and words.decode(words.encode(COMPOSED)) == COMPOSED


def test_an_unknown_sign_in_a_text_is_not_what_a_recogniser_shows():
    for tokenizer in (make_tokenizer(CharactersOptions(unknown=True), ["ab"]), make_tokenizer(WordsOptions(), ["ab"])):
        heard = tokenizer.decode(tokenizer.encode("é"))
        assert heard == "⁇" != tokenizer.normalise(heard)
