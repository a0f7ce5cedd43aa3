"""Pieces of words as classes: SentencePiece (Kudo and Richardson 2018, arXiv 1808.06226)."""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

from samplewise.asr.options import SentencePieceOptions
from samplewise.asr.problems import UserError

with warnings.catch_warnings():  # its SWIG types have no __module__, which newer Pythons mention on import
    warnings.simplefilter("ignore", DeprecationWarning)
    import sentencepiece

BLANK, UNKNOWN = 0, 1
THREADS = 8  # of the learning: another number adds in another order, and the pieces would depend on the machine


class PieceTokenizer:
    """A SentencePiece model whose piece 0 stands for blank and whose piece 1 is what it does not know.

    Args:
        model: the serialised model, as bytes or as base64 text.
        lowercase: texts are put in lower case first.
    """

    unknown = UNKNOWN

    def __init__(self, model: bytes | str, lowercase: bool = True):
        self.model = base64.b64decode(model) if isinstance(model, str) else model
        self.lowercase = lowercase
        self._pieces = sentencepiece.SentencePieceProcessor(model_proto=self.model)
        self.size = self._pieces.get_piece_size()

    def normalise(self, text: str) -> str:
        """The text as it is learnt: runs of white space are one space, lower case if the recipe says so."""
        text = " ".join(text.split())
        return text.lower() if self.lowercase else text

    def encode(self, text: str) -> list[int]:
        """Classes of the pieces; characters never seen in training become the unknown class."""
        return self._pieces.encode(self.normalise(text))

    def decode(self, ids: Sequence[int]) -> str:
        """The text; an unknown piece is shown as ⁇."""
        return " ".join(self._pieces.decode([int(i) for i in ids if i != BLANK]).split())

    def to_plain(self) -> dict[str, Any]:
        return {"kind": "sentencepiece", "model": base64.b64encode(self.model).decode(), "lowercase": self.lowercase}


def learn_pieces(options: SentencePieceOptions, texts: Iterable[str]) -> PieceTokenizer:
    """Learn the pieces from the training texts; the same texts give the same pieces.

    Raises:
        UserError: the texts are too few for so many classes, or the classes too few for so many characters.
    """
    model = io.BytesIO()
    lower = str.lower if options.lowercase else str
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(lower(" ".join(text.split())) for text in texts),
            model_writer=model,
            vocab_size=options.vocab_size,
            model_type=options.model,
            character_coverage=options.coverage,
            pad_id=BLANK,
            pad_piece="<blank>",
            unk_id=UNKNOWN,
            bos_id=-1,
            eos_id=-1,
            num_threads=THREADS,
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:
        reason = str(error).rpartition("] ")[2].strip()
        raise UserError(
            f"SentencePiece cannot learn tokenizer.vocab_size={options.vocab_size} {options.model} pieces from the training "
            f"texts: {reason or error}"
        ) from None
    return PieceTokenizer(model.getvalue(), options.lowercase)
