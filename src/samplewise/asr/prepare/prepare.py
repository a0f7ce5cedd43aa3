"""`samplewise prepare`: a manifest for every part of a corpus. Audio stays where it is."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from samplewise.asr.checkpoint import read_json
from samplewise.asr.errors import UserError
from samplewise.asr.prepare.manifests import CorpusFiles, Line, read_lines
from samplewise.asr.problems import BadDataError, BadDataLog, named
from samplewise.asr.texts import clean
from samplewise.asr.typed import suggest
from samplewise.asr.writing import make_directory, write_json, write_lines

CORPORA = {  # module and class of each
    "librispeech": ("librispeech", "LibriSpeech"),
    "aishell1": ("aishell", "Aishell"),
    "csj-aps": ("csj", "AcademicTalks"),
}
NOTE = "prepared.json"  # in the target: which corpus from where, so that manifests of two are not mixed up
NEEDS_LHOTSE = "preparing corpora needs lhotse: pip install 'samplewise[corpora]' ({error})"
Say = Callable[[str], None]


def prepare(
    corpus: str, source: str | Path, target: str | Path, *, parts: Sequence[str] | None = None, jobs: int = 1, say: Say = print
) -> None:
    """Write `PART.jsonl` into the target for every part, and for parts that are trained on together a common one.

    A manifest is written whole or not at all, and one that is there is kept: the same command goes on after a stop.

    Args:
        corpus: a name in `CORPORA`.
        source: where the corpus was unpacked.
        target: directory for the manifests.
        parts: only these; None: all that are there.
        jobs: threads that read recordings.
        say: takes lines for the user.

    Raises:
        UserError: an unknown corpus or part, a directory that is not laid out as the corpus, an unreadable transcript.
    """
    if jobs < 1:
        raise UserError(f"--jobs must be at least 1, got {jobs}")
    files = open_corpus(corpus, Path(source))
    wanted = list(parts or files.parts)
    for part in wanted:
        if part not in files.parts:
            raise UserError(f"no part {part!r} in {files.root}{suggest(part, files.parts)}")
    target = Path(target)
    keep_note(target, corpus, files.root)
    for part in wanted:
        if manifest(target, part).is_file():
            say(f"{part}: kept, {manifest(target, part)} is there already; remove it to prepare the part again")
    todo = [part for part in wanted if not manifest(target, part).is_file()]
    bad = BadDataLog()
    for part, lines in read_parts(files, todo, jobs, bad):
        write_lines(manifest(target, part), lines)
        say(f"{part}: {described(lines)}{shortfall(files, part, lines)}")
    for name, members in files.unions.items():
        join(target, name, members, anew=bool(set(todo) & set(members)), say=say)
    if report := bad.report():
        say(report)
    say(f"manifests: {target}")
    say(f"next: samplewise train {files.recipes[0]} --data {target}")


def open_corpus(corpus: str, source: Path) -> CorpusFiles:
    """The files of a corpus, its layout checked."""
    if corpus not in CORPORA:
        raise UserError(f"no corpus {corpus!r}{suggest(corpus, CORPORA)}")
    if not source.is_dir():
        raise UserError(f"no directory {source}; --from names the one that the corpus was unpacked into")
    module, name = CORPORA[corpus]
    try:
        return getattr(importlib.import_module(f"samplewise.asr.prepare.{module}"), name)(source)
    except ImportError as error:
        raise UserError(NEEDS_LHOTSE.format(error=error)) from None


def read_parts(files: CorpusFiles, parts: Sequence[str], jobs: int, bad: BadDataLog) -> Iterator[tuple[str, list[Line]]]:
    """`files.lines` without those whose recording cannot be read, which go to `bad`; errors name the corpus."""
    if not parts:
        return
    recordings = importlib.import_module("samplewise.asr.prepare.recordings")
    try:
        reason = f"a transcript or a recording of {', '.join(parts)} cannot be read"
        with named(str(files.root), reason), recordings.unreadable_noted(bad) as unreadable:
            for part, lines in files.lines(parts, jobs):
                readable = [line for line in lines if line["audio"] not in unreadable]
                if not readable:
                    raise UserError(f"{files.root}: not one utterance of {part} has both a transcript and a recording")
                yield part, readable
    except BadDataError as error:  # lhotse raises whatever its parsers stumble over
        raise UserError(str(error)) from error


def manifest(target: Path, part: str) -> Path:
    return target / f"{part}.jsonl"


def keep_note(target: Path, corpus: str, root: Path) -> None:
    """Write down what is prepared here, or see that it is the same as before."""
    if target.exists() and not target.is_dir():
        raise UserError(f"{target} is a file, not a directory for manifests")
    make_directory(target)
    values = {"corpus": corpus, "from": str(root.resolve())}
    if not (target / NOTE).is_file():
        write_json(target / NOTE, values)
    elif (before := read_json(target / NOTE)) != values:
        raise UserError(
            f"{target} holds manifests of {before.get('corpus')} from {before.get('from')}, not of {corpus} from "
            f"{values['from']}; choose another directory by --to, or remove that one"
        )


def described(lines: Sequence[Line]) -> str:
    hours = sum(line["duration"] for line in lines) / 3600
    characters = len({character for line in lines for character in clean(line["text"])} - {" "})
    return f"{len(lines)} utterances, {hours:.2f} h, {len(speakers(lines))} speakers, {characters} different characters"


def shortfall(files: CorpusFiles, part: str, lines: Sequence[Line]) -> str:
    """What a part lacks of the published one; empty if nothing."""
    found = {"utterances": (len(lines), files.complete), "speakers": (len(speakers(lines)), files.speakers)}
    lacking = [f"{known[part]} {name}" for name, (count, known) in found.items() if known.get(part, count) != count]
    return f" (NOT COMPLETE: the published part has {' and '.join(lacking)})" if lacking else ""


def speakers(lines: Sequence[Line]) -> set[str]:
    return {line["speaker"] for line in lines}


def join(target: Path, name: str, members: Sequence[str], *, anew: bool, say: Say) -> None:
    """The manifest of several parts, once all of them are prepared."""
    if not all(manifest(target, part).is_file() for part in members) or (manifest(target, name).is_file() and not anew):
        return
    lines = [line for part in members for line in read_lines(manifest(target, part))]
    write_lines(manifest(target, name), lines)
    say(f"{name}: {', '.join(members)} together, {described(lines)}")
