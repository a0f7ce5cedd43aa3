"""Where the recordings of spoken digits come from.

The Free Spoken Digit Dataset (FSDD, CC BY-SA 4.0, github.com/Jakobovski/free-spoken-digit-dataset): six speakers, ten
digits, fifty recordings each at 8 kHz; the first five of each are the test split. Looked for, in this order: the
directory given, the cache, `../shared/data/fsdd`, the network, and last eSpeak NG, which is synthetic speech.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import tarfile
import tempfile
import urllib.request
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samplewise.asr.corpus import WORDS, Recording, read_entries, usable_recordings
from samplewise.asr.errors import UserError, WriteError
from samplewise.asr.problems import BadDataError, BadDataLog
from samplewise.asr.progress import reading
from samplewise.asr.synthesis import synthesise_digits
from samplewise.asr.writing import FULL, REFUSED, explained
from samplewise.cache import cache_directory, expanded

URL = "https://github.com/Jakobovski/free-spoken-digit-dataset/archive/refs/tags/v1.0.10.tar.gz"
NAME = re.compile(r"(\d)_([a-z]+)_(\d+)\.(wav|flac)")
SPEAKERS, TAKES, TEST_TAKES = 6, 50, 5
COMPLETE = len(WORDS) * SPEAKERS * TAKES
TIMEOUT = 30  # seconds without an answer
SYNTHETIC = "synthetic"
ADVICE = (
    f"To use the real recordings, download {URL} on a machine with a network, unpack it, and give its directory with "
    f"--data DIR; or put its recordings in the cache. `--data {SYNTHETIC}` asks for synthetic speech at once."
)

Candidate = tuple[Path, int, str, str]  # path, digit, speaker, split
Say = Callable[[str], None]


@dataclass(frozen=True)
class DigitSource:
    """Recordings and what they are.

    Attributes:
        kind: `fsdd` or `synthetic`.
        where: the directory, or how they were made.
        fingerprint: a digest of all samples and names: the same recordings from anywhere have the same one.
    """

    kind: str
    where: str
    recordings: list[Recording]
    fingerprint: str


def find_digits(data: str | None, sample_rate: int, bad: BadDataLog, say: Say = print) -> DigitSource:
    """The recordings from the first place that has them.

    Args:
        data: a directory of recordings (used, or refused with an error), `synthetic`, or None to look around.
        sample_rate: what the recordings are resampled to (Hz).
        bad: notes or refuses single unusable recordings.
        say: takes the lines that tell what was found.

    Raises:
        UserError: the directory given is not what is expected, or nothing works at all.
    """
    if data == SYNTHETIC:
        return synthetic(sample_rate, say)
    if data is not None:
        return load(expanded(data), sample_rate, bad, say)
    for directory in (cache_directory() / "fsdd", *shared_directories()):
        if directory.is_dir():
            return load(directory, sample_rate, bad, say)
    try:
        return load(download(cache_directory(), say), sample_rate, bad, say)
    except UserError as error:
        say(f"NO REAL RECORDINGS: {error}")
        return synthetic(sample_rate, say)


def shared_directories() -> list[Path]:
    """`../shared/data/fsdd` as seen from here and from a checkout of this project."""
    places = [Path.cwd(), Path(__file__).resolve().parents[3]]
    return [place.parent / "shared" / "data" / "fsdd" for place in dict.fromkeys(places)]


def load(directory: Path, sample_rate: int, bad: BadDataLog, say: Say) -> DigitSource:
    """Read a directory of FSDD: a `manifest.jsonl`, or wav files named DIGIT_SPEAKER_TAKE.wav."""
    candidates = list_recordings(directory, bad)
    check_complete(directory, candidates)
    recordings = usable_recordings(candidates, sample_rate, bad)
    note = "" if len(candidates) == COMPLETE else f" (the whole data set has {COMPLETE})"
    say(f"data: {len(recordings)} recordings of spoken digits in {directory}{note}")
    return DigitSource("fsdd", str(directory), recordings, fingerprint(recordings))


def synthetic(sample_rate: int, say: Say) -> DigitSource:
    recordings = synthesise_digits(sample_rate)
    say(f"SYNTHETIC SPEECH: {len(recordings)} digits spoken by eSpeak NG. A WER on them says nothing about people.")
    say(ADVICE)
    return DigitSource("synthetic", "eSpeak NG", recordings, fingerprint(recordings))


def list_recordings(directory: Path, bad: BadDataLog) -> list[Candidate]:
    """Path, digit, speaker and split of every recording; raise UserError if it is no directory of digits."""
    if not directory.is_dir():
        raise UserError(f"no directory {directory} for --data.\n{ADVICE}")
    manifest = directory / "manifest.jsonl"
    if manifest.is_file():
        return read_entries(manifest, bad, None, parse_digit)
    for folder in (directory / "recordings", directory):
        found = sorted(path for path in folder.glob("*_*_*.*") if NAME.fullmatch(path.name))
        if found:
            return [from_name(path) for path in found]
    raise UserError(
        f"{directory} is not a directory of spoken digits: it has neither a manifest.jsonl nor files such as "
        f"recordings/7_jackson_32.wav.\n{ADVICE}"
    )


def from_name(path: Path) -> Candidate:
    match = NAME.fullmatch(path.name)
    assert match is not None, path
    digit, speaker, take = int(match[1]), match[2], int(match[3])
    return path, digit, speaker, "test" if take < TEST_TAKES else "train"


def parse_digit(values: dict[str, Any], manifest: Path, where: str) -> Candidate:
    """One line of a manifest of single digits."""
    audio, text, speaker, split = (values.get(name) for name in ("audio", "text", "speaker", "split"))
    if not isinstance(audio, str) or text not in WORDS or not isinstance(speaker, str) or split not in ("train", "test"):
        expected = "expected audio, text (a digit's name), speaker and split (train or test)"
        raise BadDataError(where, "not a recording of one digit", expected)
    return manifest.parent / audio, WORDS.index(text), speaker, split


def check_complete(directory: Path, candidates: list[Candidate]) -> None:
    """Every speaker needs recordings of every digit in both splits."""
    speakers = sorted({speaker for _, _, speaker, _ in candidates})
    there = {(speaker, digit, split) for _, digit, speaker, split in candidates}
    for speaker in speakers:
        for split in ("train", "test"):
            lacking = [WORDS[digit] for digit in range(10) if (speaker, digit, split) not in there]
            if lacking:
                raise UserError(
                    f"{directory} holds {len(candidates)} recordings of {', '.join(speakers)}, but {speaker} has none "
                    f"of {', '.join(lacking)} in the {split} split; is it a part of the data set?\n{ADVICE}"
                )


def fingerprint(recordings: list[Recording]) -> str:
    digest = hashlib.sha256()
    for recording in sorted(recordings, key=lambda r: (r.speaker, r.digit, Path(r.key).stem)):
        digest.update(f"{recording.speaker} {recording.digit} {recording.split}".encode())
        digest.update(recording.samples.tobytes())
    return digest.hexdigest()[:16]


def download(cache: Path, say: Say, url: str = URL) -> Path:
    """Fetch and unpack the archive into the cache; raise UserError, with nothing left behind, if anything is amiss."""
    say(f"data: downloading {url}")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            archive = fetch(url, Path(folder) / "fsdd.tar.gz")
            unpacked = unpack(archive, Path(folder) / "fsdd")
            check_count(unpacked)
            target = cache / "fsdd"
            shutil.rmtree(target, ignore_errors=True)
            unpacked.rename(target)
    except (OSError, EOFError, tarfile.TarError) as error:
        if getattr(error, "errno", None) in (*FULL, *REFUSED):
            raise WriteError(explained(cache / "fsdd", error, None)) from None
        raise UserError(f"the download of {url} failed ({error or type(error).__name__}).\n{ADVICE}") from None
    return target


def fetch(url: str, path: Path) -> Path:
    with urllib.request.urlopen(url, timeout=TIMEOUT) as answer, path.open("wb") as file:
        expected = int(answer.headers.get("Content-Length") or 0)
        with reading(answer, expected, "downloading") as reader:
            shutil.copyfileobj(reader, file)
    if expected and path.stat().st_size != expected:
        raise OSError(f"{path.stat().st_size} of {expected} bytes arrived")
    return path


def unpack(archive: Path, target: Path) -> Path:
    """Take the recordings out of the archive by name; nothing else in it is written anywhere."""
    recordings = target / "recordings"
    recordings.mkdir(parents=True)
    with tarfile.open(archive) as tar:
        for member in tar:
            name = Path(member.name)
            if member.isfile() and name.parent.name == "recordings" and NAME.fullmatch(name.name):
                content = tar.extractfile(member)
                assert content is not None
                (recordings / name.name).write_bytes(content.read())
    return target


def check_count(directory: Path) -> None:
    """The archive must hold every recording of the data set, so that everybody has the same one."""
    counts = Counter((speaker, digit) for _, digit, speaker, _ in map(from_name, (directory / "recordings").iterdir()))
    if len(counts) != len(WORDS) * SPEAKERS or set(counts.values()) != {TAKES}:
        raise UserError(
            f"the archive holds {sum(counts.values())} recordings of {len(counts)} speaker-digit pairs; expected "
            f"{COMPLETE} of {len(WORDS) * SPEAKERS}, {TAKES} each.\n{ADVICE}"
        )
