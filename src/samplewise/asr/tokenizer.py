"""From text to classes and back. Class 0 is blank, and no text maps to it."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch

from samplewise.asr.errors import UserError
from samplewise.asr.options import SentencePieceOptions
from samplewise.asr.pieces import PieceTokenizer, learn_pieces
from samplewise.asr.recipe import CharactersOptions, WordsOptions
from samplewise.asr.texts import UNKNOWN, composed, learnt

BLANK = 0


class OutOfVocabularyError(ValueError):
    """A text holds something that the vocabulary lacks."""


class Tokenizer(Protocol):
    """Text to class indices (1 and up; 0 is blank) and back."""

    size: int

    @property
    def unknown(self) -> int | None:
        """The class of what is not in the vocabulary, if there is one."""

    def normalise(self, text: str) -> str:
        """The text that `decode` would give if every label of it were found: what errors are counted against."""

    def encode(self, text: str) -> list[int]: ...
    def decode(self, ids: Sequence[int]) -> str: ...
    def to_plain(self) -> dict[str, Any]: ...


class CharacterTokenizer:
    """Every character is a class, the space included.

    Args:
        characters: all different; class i is characters[i - 1].
        lowercase: texts are put in lower case first.
        unknown: a last class stands for characters that are not among them.
    """

    def __init__(self, characters: str, lowercase: bool = True, unknown: bool = False):
        if len(set(characters)) != len(characters):
            raise UserError(f"tokenizer.characters holds a character twice: {characters!r}")
        if not characters:
            raise UserError("the vocabulary is empty: the training texts hold no characters")
        self.characters = characters
        self.lowercase = lowercase
        self.unknown = 1 + len(characters) if unknown else None
        self.size = 1 + len(characters) + unknown  # with blank
        self._ids = {character: i for i, character in enumerate(characters, start=BLANK + 1)}

    def normalise(self, text: str) -> str:
        """The text as it is learnt: composed, runs of white space are one space, lower case if the recipe says so."""
        return learnt(text, self.lowercase)

    def encode(self, text: str) -> list[int]:
        """Raises OutOfVocabularyError naming the characters that are not in the vocabulary, if it has no class for them."""
        text = self.normalise(text)
        found = [(character, self._classes(character)) for character in text]
        unknown = sorted({character for character, classes in found if not classes})
        if unknown and self.unknown is None:
            raise OutOfVocabularyError(f"{', '.join(map(repr, unknown))} in {text[:60]!r}")
        return [i for _, classes in found for i in classes]

    def _classes(self, character: str) -> list[int]:
        """Of a vocabulary that has letters and their marks apart there are several; none of what it lacks."""
        if character in self._ids:
            return [self._ids[character]]
        parts = unicodedata.normalize("NFD", character)
        if all(part in self._ids for part in parts):
            return [self._ids[part] for part in parts]
        return [] if self.unknown is None else [self.unknown]

    def decode(self, ids: Sequence[int]) -> str:
        """White space as in `normalise`, so that a stray space costs no word; an unknown character is shown as ⁇."""
        return composed("".join(UNKNOWN if i == self.unknown else self.characters[i - 1] for i in ids if i != BLANK))

    def to_plain(self) -> dict[str, Any]:
        options = {"lowercase": self.lowercase, "unknown": self.unknown is not None}
        return {"kind": "characters", "characters": self.characters, **options}


class WordTokenizer:
    """Every word is a class; a last class stands for words that are not among them.

    Args:
        words: all different; class i is words[i - 1].
        lowercase: texts are put in lower case first.
    """

    def __init__(self, words: Sequence[str], lowercase: bool = True):
        if not words or len(set(words)) != len(words):
            raise UserError("a vocabulary of words must not be empty, nor hold a word twice")
        self.words = list(words)
        self.lowercase = lowercase
        self.unknown = 1 + len(words)
        self.size = 2 + len(words)  # with blank and the unknown
        self._ids = {composed(word): i for i, word in enumerate(words, start=BLANK + 1)}

    def normalise(self, text: str) -> str:
        """The text as it is learnt: composed, runs of white space are one space, lower case if the recipe says so."""
        return learnt(text, self.lowercase)

    def encode(self, text: str) -> list[int]:
        """Words never seen in training become the unknown class."""
        return [self._ids.get(word, self.unknown) for word in self.normalise(text).split()]

    def decode(self, ids: Sequence[int]) -> str:
        """The text; an unknown word is shown as ⁇."""
        return composed(" ".join(UNKNOWN if i == self.unknown else self.words[i - 1] for i in ids if i != BLANK))

    def to_plain(self) -> dict[str, Any]:
        return {"kind": "words", "words": self.words, "lowercase": self.lowercase}


def make_tokenizer(options: CharactersOptions | SentencePieceOptions | WordsOptions, texts: Iterable[str]) -> Tokenizer:
    """The tokenizer that the recipe names; without given characters, or for pieces, learnt from the training texts."""
    if isinstance(options, SentencePieceOptions):
        return learn_pieces(options, texts)
    if isinstance(options, WordsOptions):
        found = {word for text in texts for word in learnt(text, options.lowercase).split()}
        return WordTokenizer(sorted(found), options.lowercase)
    characters = options.characters
    if characters is None:
        characters = "".join(sorted(set().union(*(learnt(text, options.lowercase) for text in texts))))
    elif options.lowercase and characters != characters.lower():
        raise UserError("tokenizer.characters has upper-case letters, but tokenizer.lowercase is true")
    return CharacterTokenizer(characters, options.lowercase, options.unknown)


def class_counts(tokenizer: Tokenizer, texts: Iterable[str]) -> torch.Tensor:
    """How often each class (V,) occurs in texts; those that hold something outside of the vocabulary do not count."""
    counts = torch.zeros(tokenizer.size, dtype=torch.float64)
    for text in texts:
        try:
            counts += torch.bincount(torch.tensor(tokenizer.encode(text), dtype=torch.int64), minlength=tokenizer.size)
        except OutOfVocabularyError:
            continue
    return counts


def tokenizer_from_plain(values: dict[str, Any]) -> Tokenizer:
    """The tokenizer that a checkpoint was trained with."""
    values = dict(values)
    return TOKENIZERS[values.pop("kind")](**values)


TOKENIZERS: dict[str, Callable[..., Tokenizer]] = {
    "characters": CharacterTokenizer,
    "sentencepiece": PieceTokenizer,
    "words": WordTokenizer,
}
