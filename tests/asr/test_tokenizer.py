"""Characters as classes: a round trip, blank left alone, the unknown named."""

from __future__ import annotations

import pytest

from samplewise.asr.problems import UserError
from samplewise.asr.recipe import CharactersOptions
from samplewise.asr.tokenizer import (
    BLANK,
    CharacterTokenizer,
    OutOfVocabularyError,
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
