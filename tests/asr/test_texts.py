"""One form of a text for both sides of a comparison; words of all scripts."""

from __future__ import annotations

import unicodedata
from typing import get_args, get_type_hints

import pytest

from samplewise.asr.recipe import DecodingOptions
from samplewise.asr.texts import FORMS, UNKNOWN, clean, composed, learnt, words

DECOMPOSED = unicodedata.normalize("NFD", "Vår husläkare")


def test_the_same_letters_written_otherwise_are_the_same():
    assert DECOMPOSED != "Vår husläkare" and clean(DECOMPOSED) == "Vår husläkare"
    assert learnt(DECOMPOSED + "\n", lowercase=True) == "vår husläkare"
    assert learnt("J\u030c", lowercase=True) == "\u01f0", "a pair that is one sign in lower case alone"
    assert clean(" a\t\u3000b\xa0\x85c ") == "a b c"


def test_no_text_from_outside_holds_the_sign_for_the_unknown():
    assert UNKNOWN not in clean(f"a{UNKNOWN}b")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("“Vår husläkare”, he said.", "vår husläkare he said"),
        (DECOMPOSED, "vår husläkare"),
        ("Go forward 10 meters!", "go forward 10 meters"),
        ("don’t DON‘T don`t donʼt o′clock don＇t 'tis dogs’", "don't don't don't don't o'clock don't 'tis dogs'"),
        ("‘Hello’ - she said ' ’", "hello' she said"),
        ("हिन्दी में, “नमस्ते”।", "हिन्दी में नमस्ते"),  # vowel signs and the virama are marks
        ("Привет, мир…  今日は。晴れ！", "привет мир 今日は 晴れ"),
        ("العربيّة؟ ١٢٣", "العربيّة ١٢٣"),
        ("می\u200cخواهم \u200c x", "می\u200cخواهم x"),  # what joins or parts letters belongs to the word
        ("co\xadop\ufeff one\u200btwo a_b 3-fold", "coop one two a b 3 fold"),
        ("I ❤️ it 1️⃣", "i it 1\u20e3"),
        ("§ %", ""),
        (f"w{UNKNOWN}rld {UNKNOWN}", f"w{UNKNOWN}rld {UNKNOWN}"),
    ],
)
def test_words_are_letters_marks_and_digits_of_all_scripts(text, expected):
    assert words(text) == expected


def test_words_of_plain_english_are_as_ever():
    assert words("The LORD, (he said) children's; --and") == "the lord he said children's and"


def test_every_form_has_a_key_and_leaves_its_own_texts_alone():
    assert get_args(get_type_hints(DecodingOptions)["normalisation"]) == tuple(FORMS)
    signs = [chr(i) for i in range(0x20, 0x3100) if unicodedata.category(chr(i)) != "Cn"]
    for form in FORMS.values():
        for sign in signs:
            once = form(f"A{sign}É{sign}")
            assert form(once) == once == composed(once), hex(ord(sign))
