"""What is spoken and how: utterances of a manifest, or digit strings put together from single recordings.

A corpus gives `utterance(epoch, index)`, a pure function of the recipe's seed, the epoch and the index, so that a
resumed run, another worker or another rank sees the very same data.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import soxr

from samplewise.asr.audio import read_audio
from samplewise.asr.errors import UserError
from samplewise.asr.manifest_lines import duration_of, file_of, numbered_lines, seconds_of, text_of, values_of
from samplewise.asr.problems import BadData, BadDataError, BadDataLog, named, printable
from samplewise.asr.progress import bar
from samplewise.asr.recipe import DigitStringsOptions

E = TypeVar("E")
Parse = Callable[[dict[str, Any], Path, str], E]  # the values of a line, its manifest, and its place there
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
TRAIN, VALID, TEST = 0, 1, 2  # also the streams of random numbers: the same seed gives each its own
FIXED_SEED = 2026  # of validation and test strings, which do not change with the recipe's seed
VALID_RECORDINGS = 2  # of each digit and speaker, kept from training when there are validation strings


@dataclass(frozen=True)
class Utterance:
    """Samples (S,) float32 at the corpus' rate, or stored features (F, M); what is said, and where they come from."""

    samples: np.ndarray
    text: str
    key: str
    speaker: str = ""


class Corpus(Protocol):
    """Utterances by epoch and index; `seconds` estimates a duration without reading audio, 0 if it cannot."""

    def __len__(self) -> int: ...
    def utterance(self, epoch: int, index: int) -> Utterance: ...
    def seconds(self, epoch: int, index: int) -> float: ...
    def texts(self) -> Iterable[str]: ...


@dataclass(frozen=True)
class Recording:
    """One spoken digit: samples (S,) float32."""

    samples: np.ndarray
    digit: int
    speaker: str
    split: str
    key: str


@dataclass(frozen=True)
class StringPlan:
    """Which recordings a digit string is made of, and the silence around them in samples (one more than digits)."""

    speaker: str
    recordings: tuple[Recording, ...]
    pauses: tuple[int, ...]
    rng: np.random.Generator


class DigitStrings:
    """Digit strings of one speaker each, joined with random pauses.

    Training strings are drawn anew every epoch, with random level and noise. Validation and test strings are fixed
    and clean: speakers take turns, and each of their recordings is used equally often.

    Args:
        recordings: those of one split, `train` for part TRAIN or VALID, `test` for part TEST.
        options: lengths, pauses, level and noise.
        part: TRAIN, VALID or TEST.
        seed: the recipe's; it has no effect on validation and test strings.
    """

    def __init__(
        self,
        recordings: Sequence[Recording],
        options: DigitStringsOptions,
        *,
        part: int,
        seed: int,
        sample_rate: int,
    ):
        self.options = options
        self.part = part
        self.seed = seed if part == TRAIN else FIXED_SEED
        self.sample_rate = sample_rate
        self.by_digit: dict[str, list[list[Recording]]] = {}
        for recording in recordings:
            self.by_digit.setdefault(recording.speaker, [[] for _ in WORDS])[recording.digit].append(recording)
        if not self.by_digit:
            raise UserError("no digit recordings to make strings from")
        self.speakers = sorted(self.by_digit)
        for speaker, digits in self.by_digit.items():
            lacking = [word for word, found in zip(WORDS, digits, strict=True) if not found]
            if lacking:
                raise UserError(f"no usable recordings of {', '.join(lacking)} by {speaker}")
        self._fixed = self._plan_fixed() if part != TRAIN else []

    def __len__(self) -> int:
        return self.options.strings_per_epoch if self.part == TRAIN else len(self._fixed)

    def plan(self, epoch: int, index: int) -> StringPlan:
        """What string `index` of `epoch` is made of."""
        if self.part != TRAIN:
            return self._fixed[index]
        rng = np.random.default_rng((self.seed, self.part, epoch, index))
        speaker = self.speakers[rng.integers(len(self.speakers))]
        digits = rng.integers(10, size=self._length(rng))
        found = [self.by_digit[speaker][digit] for digit in digits]
        recordings = tuple(choices[rng.integers(len(choices))] for choices in found)
        return StringPlan(speaker, recordings, self._pauses(rng, len(recordings)), rng)

    def seconds(self, epoch: int, index: int) -> float:
        plan = self.plan(epoch, index)
        return (sum(len(r.samples) for r in plan.recordings) + sum(plan.pauses)) / self.sample_rate

    def utterance(self, epoch: int, index: int) -> Utterance:
        plan = self.plan(epoch, index)
        pieces = [np.zeros(plan.pauses[0], dtype=np.float32)]
        for recording, pause in zip(plan.recordings, plan.pauses[1:], strict=True):
            pieces += [recording.samples, np.zeros(pause, dtype=np.float32)]
        samples = np.concatenate(pieces)
        if self.part == TRAIN:
            samples = self._vary(samples, plan.rng)
        text = " ".join(WORDS[recording.digit] for recording in plan.recordings)
        part = ("train", "valid", "test")[self.part]
        return Utterance(samples, text, f"{part} string {epoch}:{index} ({text})", plan.speaker)

    def texts(self) -> Iterable[str]:
        return [" ".join(WORDS)]

    def _vary(self, samples: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        level = float(np.sqrt(np.mean(np.square(samples)))) * 10 ** (rng.uniform(*self.options.noise_db) / 20)
        noise = rng.standard_normal(len(samples), dtype=np.float32) * np.float32(level)
        gain = np.float32(10 ** (rng.uniform(-self.options.gain_db, self.options.gain_db) / 20))
        return (samples + noise) * gain

    def _length(self, rng: np.random.Generator) -> int:
        return int(rng.integers(self.options.digits[0], self.options.digits[1] + 1))

    def _pauses(self, rng: np.random.Generator, digits: int) -> tuple[int, ...]:
        seconds = rng.uniform(*self.options.pause, size=digits + 1)
        return tuple(int(pause * self.sample_rate) for pause in seconds)

    def _plan_fixed(self) -> list[StringPlan]:
        rng = np.random.default_rng((self.seed, self.part))
        count = self.options.valid_strings if self.part == VALID else self.options.test_strings
        stock: dict[str, list[Recording]] = defaultdict(list)
        plans = []
        for i in range(count):
            speaker = self.speakers[i % len(self.speakers)]
            chosen = []
            for _ in range(self._length(rng)):
                if not stock[speaker]:
                    everything = [r for digit in self.by_digit[speaker] for r in digit]
                    stock[speaker] = [everything[j] for j in rng.permutation(len(everything))]
                chosen.append(stock[speaker].pop())
            plans.append(StringPlan(speaker, tuple(chosen), self._pauses(rng, len(chosen)), rng))
        return plans


def split_recordings(recordings: Sequence[Recording], part: int, options: DigitStringsOptions) -> list[Recording]:
    """The recordings of a part: the test split, or the training split with or without those kept for validation."""
    if part == TEST:
        return [recording for recording in recordings if recording.split == "test"]
    chosen = []
    seen: dict[tuple[str, int], int] = defaultdict(int)
    for recording in recordings:
        if recording.split != "train":
            continue
        where = (recording.speaker, recording.digit)
        seen[where] += 1
        kept = options.valid_strings > 0 and seen[where] <= VALID_RECORDINGS
        if kept == (part == VALID):
            chosen.append(recording)
    return chosen


@dataclass(frozen=True)
class Entry:
    """One line of a manifest; `path` is resolved, `duration` in seconds if the line has it, and `start` of a piece."""

    path: Path
    text: str
    key: str
    speaker: str
    duration: float | None
    start: float | None = None


class ManifestCorpus:
    """The utterances of a JSON-lines manifest, read from disk as they are needed.

    Args:
        entries: of one manifest.
        sample_rate: of the samples given (Hz).
        speed: slowest and fastest factor at which an utterance is played, pitch and all; for training.
        seed: the recipe's; the speed of utterance i in epoch e is a pure function of it, e and i.
    """

    def __init__(self, entries: Sequence[Entry], sample_rate: int, speed: tuple[float, float] = (1.0, 1.0), seed: int = 0):
        self.entries = entries
        self.sample_rate = sample_rate
        self.speed = speed
        self.seed = seed

    def __len__(self) -> int:
        return len(self.entries)

    def utterance(self, epoch: int, index: int) -> Utterance:
        entry = self.entries[index]
        try:
            samples = read_audio(entry.path, self.sample_rate, entry.duration, entry.start)
        except BadDataError as error:  # the same file may stand in several lines
            raise BadDataError(entry.key, error.problem.reason, error.problem.detail) from None
        if self.speed != (1.0, 1.0):
            rng = np.random.default_rng((self.seed, TRAIN, epoch, index))
            samples = soxr.resample(samples, self.sample_rate * rng.uniform(*self.speed), self.sample_rate)
        return Utterance(samples, entry.text, entry.key, entry.speaker)

    def seconds(self, epoch: int, index: int) -> float:
        """At the slowest speed: to draw the right one takes too long for the millions of utterances of a long run."""
        return (self.entries[index].duration or 0.0) / self.speed[0]

    def texts(self) -> Iterable[str]:
        return [entry.text for entry in self.entries]


def read_manifest(path: str | Path, bad: BadDataLog, split: str | None = None) -> list[Entry]:
    """Read `{"audio": PATH, "text": TEXT, "duration": SECONDS, "speaker": NAME, "split": NAME}` a line.

    Only `audio` and `text` are needed. With `"start": SECONDS` an utterance is the piece of `duration` from there. Audio
    paths are relative to the manifest. A line that is not JSON, without a text, or whose file is missing goes to `bad`, as
    does one with times that are none; an empty text is one.

    Args:
        path: the manifest, or a directory with a `manifest.jsonl`.
        bad: notes or refuses what cannot be used.
        split: take only lines of this split.

    Raises:
        UserError: no such manifest, or nothing usable in it.
    """
    return read_entries(path, bad, split, parse_entry)


def read_entries(path: str | Path, bad: BadDataLog, split: str | None, parse: Parse[E]) -> list[E]:
    """What `parse` makes of the lines of a manifest that are of the split; a line that cannot be used goes to `bad`."""
    path = Path(path)
    path = path / "manifest.jsonl" if os.path.isdir(path) else path
    entries: list[E] = []
    splits: Counter[str] = Counter()
    lines = numbered_lines(path)
    for number, line in lines:
        where = f"{path.name}:{number}"
        try:
            values = values_of(line, where)
            splits[found := str(values.get("split", ""))] += 1
            if split is None or found == split:
                with named(where, "a line that cannot be used"):
                    entries.append(parse(values, path, where))
        except BadDataError as error:
            bad.add(error.problem)
    if not entries:
        if split is not None and split not in splits:
            there = ", ".join(f"{name!r} ({count})" for name, count in splits.most_common(10) if name)
            raise UserError(f"{path}: no line of split {split!r}; those there are: {there or 'none'}\n{bad.report()}".rstrip())
        which = f" of split {split!r}" if split else ""
        raise UserError(f"{path}: none of its {len(lines)} lines{which} can be used\n{bad.report()}".rstrip())
    return entries


def parse_entry(values: dict[str, Any], manifest: Path, where: str) -> Entry:
    """One line of a manifest."""
    audio = values.get("audio")
    if not isinstance(audio, str):
        raise BadDataError(where, "no audio path in the manifest")
    key = printable(f"{where} {audio}")
    text = text_of(values, key)
    path = file_of(manifest.parent / audio, key)
    duration, start = duration_of(values, key), seconds_of(values, "start", key)
    if start is not None:
        if duration is None:
            raise BadDataError(key, "a start without a duration", f"{start:g} s")
        key = f"{key} from {start:g} s"
    return Entry(path, text, key, printable(str(values.get("speaker") or "")), duration, start)


def usable_recordings(candidates: Sequence[tuple[Path, int, str, str]], rate: int, bad: BadDataLog) -> list[Recording]:
    """Read (path, digit, speaker, split) recordings; the unusable go to `bad`."""
    recordings = []
    for path, digit, speaker, split in bar(candidates, "reading recordings"):
        try:
            samples = read_audio(path, rate)
        except BadDataError as error:
            bad.add(BadData(path.name, error.problem.reason, error.problem.detail))
            continue
        recordings.append(Recording(samples, digit, speaker, split, path.name))
    return recordings
