"""What is read aloud: phrases of the King James Bible, or of any text."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from samplewise.asr.errors import UserError
from samplewise.asr.texts import clean
from samplewise.asr.texts import words as words_of

WHOLE = "gen1:1-rev22:21"
COLUMNS = 4000  # longer than any verse
ADVICE = "install Debian's package bible-kjv (apt-get install bible-kjv), or give a text file with --texts"


def sentences(path: str | None = None) -> list[str]:
    """The verses that the `bible` command prints, or the lines of a text file that are not empty.

    Raises:
        UserError: no such command or file, or nothing in it.
    """
    if path is not None:
        try:
            lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read the texts in {path}: {error}") from None
        found = [line.strip() for line in lines if line.strip()]
    else:
        if shutil.which("bible") is None:
            raise UserError(f"no texts to read: there is no `bible` command; {ADVICE}")
        done = subprocess.run(["bible", f"-l{COLUMNS}", WHOLE], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        found = [match[1] for line in done.stdout.splitlines() if (match := re.fullmatch(r"\s*\d+\s+(\S.*)", line))]
    if not found:
        raise UserError(f"no texts to read in {path or 'what the `bible` command prints'}; {ADVICE}")
    return found


def phrases(sentence: str, words: tuple[int, int]) -> list[str]:
    """Pieces of a sentence between its punctuation marks, joined until they have `words` (fewest, most); others are left out.

    >>> phrases("In the beginning God created the heaven and the earth; and it was so.", (4, 12))
    ['In the beginning God created the heaven and the earth', 'and it was so']
    """
    found: list[str] = []
    pending = ""
    for piece in re.split(r"(?<=[.,;:?!])\s+", sentence):
        joined = f"{pending} {piece}".strip()
        if pending and len(joined.split()) > words[1]:
            found.append(pending)
            joined = piece
        pending = joined
        if len(pending.split()) >= words[0] and pending[-1] != ",":
            found.append(pending)
            pending = ""
    found.append(pending)
    clean = (phrase.strip(" .,;:?!()") for phrase in found)
    return [phrase for phrase in clean if words[0] <= len(phrase.split()) <= words[1]]


def transcript(phrase: str) -> str:
    """Lower-case words of letters, digits and apostrophes, see `samplewise.asr.texts.words`."""
    return words_of(clean(phrase))


def without(phrases: Iterable[str], others: Sequence[str]) -> list[str]:
    """The phrases of words that are neither said twice nor among the others."""
    seen = {"", *map(transcript, others)}
    found = []
    for phrase in phrases:
        if (words := transcript(phrase)) not in seen:
            seen.add(words)
            found.append(phrase)
    return found
