"""Hours of synthetic speech: which phrase is read by which voice, files written one by one, manifests at the end.

Utterance i of a part is a pure function of the seed, the part and i; a file that is there is kept, so a run that was
stopped goes on.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from rich.console import Console
from rich.progress import Progress

from samplewise import strict_json
from samplewise.asr.checkpoint import read_json
from samplewise.asr.errors import UserError
from samplewise.asr.problems import BadData, BadDataError, BadDataLog, named
from samplewise.asr.spoken.needs import VOICES
from samplewise.asr.spoken.texts import phrases, transcript, without
from samplewise.asr.spoken.voices import Speak
from samplewise.asr.writing import make_directory, write_bytes, write_json, write_lines

PARTS = ("test", "valid", "train")  # also the streams of random numbers
NOTE = "synthesised.json"  # in the target: what it was made by
BLOCK = 32  # utterances between looks at the hours that are there
Say = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """What is made.

    Attributes:
        hours: at least so much training speech.
        voices: take turns.
        words: fewest and most words of an utterance.
        speed, pitch: slowest and fastest, lowest and highest factor.
        test, valid: utterances of these parts; their sentences are not in the others.
        sample_rate: of the files (Hz).
    """

    hours: float = 3.0
    voices: tuple[str, ...] = VOICES
    words: tuple[int, int] = (5, 12)
    speed: tuple[float, float] = (0.9, 1.2)
    pitch: tuple[float, float] = (0.92, 1.08)
    test: int = 300
    valid: int = 60
    seed: int = 1
    sample_rate: int = 16000

    def __post_init__(self) -> None:
        if not self.hours > 0:
            raise UserError(f"--hours must be greater than 0, got {self.hours}")
        if not self.voices:
            raise UserError("--voices names no voice")


@dataclass(frozen=True)
class Reading:
    """One utterance to be read."""

    part: str
    index: int
    phrase: str
    voice: str
    speed: float
    pitch: float

    @property
    def path(self) -> Path:
        """Relative to the target."""
        return Path(self.part) / f"{self.index:06d}_{self.voice}.flac"


def plan(sentences: Sequence[str], options: Options) -> dict[str, list[Reading]]:
    """All readings of each part in their order; sentences are shuffled and then dealt to test, valid and train."""
    order = np.random.default_rng(options.seed).permutation(len(sentences))
    source = iter([phrases(sentences[i], options.words) for i in order])
    wanted = {"test": options.test, "valid": options.valid, "train": len(sentences)}
    found: dict[str, list[Reading]] = {}
    taken: list[str] = []
    for stream, part in enumerate(PARTS):
        texts: list[str] = []
        while len(texts) < wanted[part] and (pieces := next(source, None)) is not None:
            texts += pieces
        texts = without(texts, taken)[: wanted[part] if part != "train" else None]
        taken += texts
        rng = np.random.default_rng((options.seed, stream))
        found[part] = [
            Reading(part, i, text, options.voices[i % len(options.voices)], *drawn(rng, options))
            for i, text in enumerate(texts)
        ]
    return found


def drawn(rng: np.random.Generator, options: Options) -> tuple[float, float]:
    return round(float(rng.uniform(*options.speed)), 4), round(float(rng.uniform(*options.pitch)), 4)


def synthesise(
    sentences: Sequence[str], voices: Mapping[str, Speak], target: Path, options: Options, *, jobs: int = 1, say: Say = print
) -> None:
    """Write `test.jsonl`, `valid.jsonl`, `train.jsonl` and their flac files into the target.

    Raises:
        UserError: the target holds something else, or the texts do not suffice for so many hours.
    """
    keep_note(target, options)
    readings = plan(sentences, options)
    bad = BadDataLog()
    for part in PARTS:
        hours = options.hours if part == "train" else None
        lines = list(read_part(readings[part], voices, target, options, hours, jobs, bad))
        total = sum(line["duration"] for line in lines) / 3600
        if hours is not None and total < hours:
            raise UserError(f"the texts give {total:.2f} hours of speech to train on, {hours:g} are wanted; give more --texts")
        write_lines(target / f"{part}.jsonl", lines)
        say(f"{part}: {len(lines)} utterances, {total:.2f} h, {len({w for line in lines for w in line['text'].split()})} words")
    if report := bad.report():
        say(report)
    say(f"SYNTHETIC SPEECH in {target}: error rates on it say nothing about people's.")


def read_part(
    readings: Sequence[Reading],
    voices: Mapping[str, Speak],
    target: Path,
    options: Options,
    hours: float | None,
    jobs: int,
    bad: BadDataLog,
) -> Iterator[dict[str, Any]]:
    """The manifest lines of a part, as many as its hours take; what has no file yet is read aloud, or goes to `bad`."""
    done = 0.0
    part = readings[0].part if readings else ""
    make_directory(target / part)
    console = Console(stderr=True)
    with ThreadPoolExecutor(jobs) as pool, Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        total = 3600 * hours if hours is not None else len(readings)
        task = bar.add_task(f"reading ({part})", total=total)
        for first in range(0, len(readings), BLOCK):
            block = readings[first : first + BLOCK]
            for reading, seconds in zip(block, pool.map(lambda one: read(one, voices, target, options), block), strict=True):
                if isinstance(seconds, BadData):
                    bad.add(seconds)
                    continue
                done += seconds
                bar.update(task, completed=done if hours is not None else reading.index)
                yield line(reading, seconds)
            if hours is not None and done >= 3600 * hours:
                return


def read(reading: Reading, voices: Mapping[str, Speak], target: Path, options: Options) -> float | BadData:
    """Make the file of an utterance unless a whole one is there; its seconds, or why it cannot be spoken."""
    path = target / reading.path
    try:
        return seconds_in(path)
    except BadDataError:
        pass
    try:
        samples = voices[reading.voice](reading.phrase, reading.speed, reading.pitch)
    except BadDataError as error:
        return BadData(f"{reading.path}: {reading.phrase!r}", error.problem.reason, error.problem.detail)
    encoded = io.BytesIO()  # libsndfile does not tell of a full disk
    soundfile.write(encoded, np.clip(samples, -1, 1), options.sample_rate, format="FLAC", subtype="PCM_16")
    write_bytes(path, encoded.getbuffer())
    return seconds_in(path)


def seconds_in(path: Path) -> float:
    """Length of a file (s); BadDataError if it is not there, or not sound."""
    with named(str(path)):
        return soundfile.info(path).duration


def line(reading: Reading, seconds: float) -> dict[str, Any]:
    return {
        "audio": reading.path.as_posix(),
        "text": transcript(reading.phrase),
        "duration": round(seconds, 4),
        "speaker": reading.voice,
        "split": reading.part,
        "synthetic": True,
        "speed": reading.speed,
        "pitch": reading.pitch,
    }


def keep_note(target: Path, options: Options) -> None:
    """Write down what is made here, or see that it is the same as before; only the hours may change."""
    values = json.loads(strict_json.text(asdict(options)))
    if target.exists() and not target.is_dir():
        raise UserError(f"{target} is a file, not a directory for recordings")
    if (target / NOTE).is_file():
        before = read_json(target / NOTE)
        changed = [key for key in values if key != "hours" and values[key] != before.get(key)]
        if changed:
            lines = ", ".join(f"{key} {before.get(key)} became {values[key]}" for key in changed)
            raise UserError(f"{target} holds speech made otherwise ({lines}); choose another directory by --to")
    elif target.is_dir() and os.listdir(target):
        raise UserError(f"{target} is not empty, and what is in it was not made by this command; choose another by --to")
    make_directory(target)
    write_json(target / NOTE, values)
