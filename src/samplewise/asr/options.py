"""Options of the parts that large corpora call for; recipe.py puts them into a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from samplewise.asr.typed import positive


@dataclass(frozen=True)
class SentencePieceOptions:
    """Pieces of words, learnt from the training texts when a run begins (Kudo and Richardson 2018, arXiv 1808.06226).

    Attributes:
        vocab_size: number of classes; blank and a class for unknown characters are among them.
        model: how the pieces are found.
        coverage: share of the characters of the training texts that get pieces; the others are unknown.
        lowercase: texts are put in lower case first.
    """

    kind: Literal["sentencepiece"] = "sentencepiece"
    vocab_size: int = 500
    model: Literal["unigram", "bpe"] = "unigram"
    coverage: float = 1.0
    lowercase: bool = True

    def __post_init__(self) -> None:
        positive(vocab_size=self.vocab_size)
        if not 0.9 <= self.coverage <= 1:
            raise ValueError(f"coverage must lie between 0.9 and 1, got {self.coverage}")
