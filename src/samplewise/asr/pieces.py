"""Pieces of words as classes: SentencePiece (Kudo and Richardson 2018, arXiv 1808.06226)."""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

from samplewise.asr.errors import UserError
from samplewise.asr.options import SentencePieceOptions
from samplewise.asr.texts import UNKNOWN as UNKNOWN_SIGN
from samplewise.asr.texts import composed, learnt

with warnings.catch_warnings():  # its SWIG types have no __module__, which newer Pythons mention on import
    warnings.simplefilter("ignore", DeprecationWarning)
    import sentencepiece

BLANK, UNKNOWN = 0, 1
SPACE = "▁"  # as the pieces have it
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
        """The text as it is learnt: lower case if the recipe says so, and what SentencePiece makes of it, as 1⁄2 of ½."""
        return composed(self._pieces.normalize(learnt(text, self.lowercase)).replace(SPACE, " "))

    def encode(self, text: str) -> list[int]:
        """Classes of the pieces; characters never seen in training become the unknown class."""
        return self._pieces.encode(learnt(text, self.lowercase))

    def decode(self, ids: Sequence[int]) -> str:
        """The text; an unknown piece is shown as ⁇ within its word (by SentencePiece it would be a word of its own)."""
        shown = (UNKNOWN_SIGN if i == UNKNOWN else self._pieces.id_to_piece(int(i)) for i in ids if i != BLANK)
        return composed("".join(shown).replace(SPACE, " "))

    def to_plain(self) -> dict[str, Any]:
        return {"kind": "sentencepiece", "model": base64.b64encode(self.model).decode(), "lowercase": self.lowercase}


def learn_pieces(options: SentencePieceOptions, texts: Iterable[str]) -> PieceTokenizer:
    """Learn the pieces from the training texts; the same texts give the same pieces.

    Raises:
        UserError: the texts are too few for so many classes, or the classes too few for so many characters.
    """
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(learnt(text, options.lowercase) for text in texts),
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
