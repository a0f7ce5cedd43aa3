"""What every corpus offers to `samplewise prepare`, and manifests from the sets that lhotse's recipes return."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from samplewise.asr.errors import UserError
from samplewise.asr.manifest_lines import numbered_lines, values_of
from samplewise.asr.problems import BadDataError

Line = dict[str, Any]  # of a manifest: id, audio, text, duration, speaker, split; start where an utterance is a piece of a file


class CorpusFiles(Protocol):
    """A corpus as its publisher lays it out.

    Attributes:
        root: the directory that holds it.
        parts: names of the parts that are there.
        complete: number of utterances of the parts of the published corpus, where it is known.
        speakers: number of speakers (or talks) of parts, where it is known.
        unions: parts that a recipe trains on together, by the name of their common manifest.
        recipes: what to train with.
    """

    root: Path
    parts: tuple[str, ...]
    complete: Mapping[str, int]
    speakers: Mapping[str, int]
    unions: Mapping[str, tuple[str, ...]]
    recipes: tuple[str, ...]

    def lines(self, parts: Sequence[str], jobs: int) -> Iterator[tuple[str, list[Line]]]:
        """Each of the parts with the lines of its manifest, one part after the other."""
        ...


@dataclass(frozen=True)
class Sets:
    """Recordings and supervisions as lhotse's recipes return them."""

    recordings: Iterable[Any]
    supervisions: Iterable[Any]

    def lines(self, split: str) -> list[Line]:
        """Lines of a manifest, in the order of their ids; a supervision of a piece of its recording has a `start`."""
        recordings = {recording.id: recording for recording in self.recordings}
        lines = []
        for piece in self.supervisions:
            recording = recordings[piece.recording_id]
            line = {
                "id": piece.id,
                "audio": str(Path(recording.sources[0].source).resolve()),
                "text": piece.text,
                "duration": round(piece.duration, 6),
                "speaker": piece.speaker,
                "split": split,
            }
            if piece.start > 0 or piece.duration < recording.duration - 1e-3:
                line["start"] = round(piece.start, 6)
            lines.append(line)
        return sorted(lines, key=lambda line: line["id"])


def read_lines(path: Path) -> list[Line]:
    """The lines of a manifest that was written here; UserError if it has been damaged since."""
    try:
        return [values_of(line, f"{path}:{number}") for number, line in numbered_lines(path)]
    except BadDataError as error:
        raise UserError(f"{error}; remove the file, and prepare the part again") from None


def wrong_layout(root: Path, found: str, expected: str, hint: str = "") -> UserError:
    """The error for a directory that is not laid out as the corpus: what is there, and what ought to be."""
    return UserError(f"{root}: {found}. Expected:\n{expected.rstrip()}" + (f"\n{hint}" if hint else ""))


def listing(directory: Path, most: int = 6) -> str:
    """What a directory holds, in a few words for an error."""
    if not directory.is_dir():
        return "no such directory"
    names = sorted(path.name + "/" * path.is_dir() for path in directory.iterdir())
    return f"it holds {', '.join(names[:most])}{', ...' if len(names) > most else ''}" if names else "it is empty"
