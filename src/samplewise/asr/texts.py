"""The forms of a text: what is learnt, what is shown, and what is compared when errors are counted.

All of them are in Unicode's composed form (NFC): the same letter may be written as one sign or as several.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Callable
from typing import Literal

Normalisation = Literal["none", "lower", "words"]
UNKNOWN = "⁇"  # shown for what a vocabulary lacks: one sign of its word; no text that is `clean` holds it
OPENING = re.compile(r"(?<!\w)[‘‛`]")  # not an apostrophe where no letter is before it
APOSTROPHES = dict.fromkeys(map(ord, "’‘‛ʼʻ′´`＇՚׳"), "'")
JOINERS = "\u200c\u200d"  # without width, but part of the spelling in Persian and in the scripts of India
ZERO_SPACE = "\u200b"  # ends a word in Thai, Khmer and others


def composed(text: str) -> str:
    """NFC, and one space for every run of white space."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def clean(text: str) -> str:
    """A text from outside, `composed`; the sign that stands for unknown ones is none of a vocabulary's, and is spelled out."""
    return composed(text.replace(UNKNOWN, "??"))


def learnt(text: str, lowercase: bool) -> str:
    """A text from outside as tokenizers take it."""
    return lower(clean(text)) if lowercase else clean(text)


def lower(text: str) -> str:
    """In lower case, composed again: some pairs of a letter and its mark are one sign in lower case alone."""
    return composed(composed(text).lower())


def words(text: str) -> str:
    """Lower-case words of letters, marks and digits of all scripts, and of apostrophes, whatever sign stands for these.

    >>> words("“Vår husläkare”, he said: go 10 meters, don’t stop!")
    "vår husläkare he said go 10 meters don't stop"
    """
    signs = OPENING.sub(" ", lower(text)).translate(APOSTROPHES)
    found = composed("".join(map(kept, signs))).split()
    return " ".join(word for word in found if any(sign.isalnum() or sign == UNKNOWN for sign in word))


@functools.cache
def kept(sign: str) -> str:
    """A sign of a word as it is; of others a space, or nothing where it only controls how a text is set."""
    category = unicodedata.category(sign)
    if sign in ("'", UNKNOWN, *JOINERS):
        return sign
    if (category == "Cf" and sign != ZERO_SPACE) or "\ufe00" <= sign <= "\ufe0f":  # the latter choose how an emoji looks
        return ""
    return sign if category[0] in "LMN" else " "


FORMS: dict[Normalisation, Callable[[str], str]] = {"none": composed, "lower": lower, "words": words}
