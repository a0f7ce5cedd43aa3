"""Sound files as libsndfile reads them, with the help it needs where a header lacks a length or breaks its promise."""

from __future__ import annotations

import io
import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from samplewise.asr.problems import BadDataError

BLOCK = 2**18  # samples of a channel read at a time
RATES = (1000, 1_000_000)  # Hz; a header that says less or more is damaged, and may ask for more than any memory
UNKNOWN = 2**40  # samples: libsndfile's word for a length that it does not know is far above
PLACEHOLDER = 0x7FFF0000  # bytes: streams are written with such a length or a larger one, before theirs is known
PLACES = {b"RIFF": "<I", b"RIFX": ">I", b".snd": ">I"}  # formats whose length of 0 may stand for an unknown one
TIMES_LONGER = 64  # more than the ratio of MP3's highest bit rate to its lowest
MP3_LENGTH = re.compile(rb"(?:Xing|Info)\0\0\0[\x01-\x0f]")  # in a first frame that tells the length, as the flag 1 says
LARGEST_FRAME = 4096  # bytes; those of MP3 have less
OGG_PAGE = re.compile(rb"OggS\0([\0-\7])")  # and its flags
OGG_FIRST = 2  # flag of the pages that recordings begin with
TAG = 128  # bytes of the tag at the end of an MP3 file
# What libsndfile notes where a file holds less than its header says.
CHUNK = re.compile(r"(?:data|SSND|riff|Data Size)\s*: (\d+) \(should be (\d+)\)")
CUT = re.compile(r"Calculated frame count (?P<there>\d+) does not match value from 'ds64' chunk of (?P<said>\d+)")
WORDS = ("Seems to be a truncated file", "Junk after the last page")
SPHERE = re.compile(rb"sample_count -i (\d+)")


@dataclass(frozen=True)
class Sound:
    """What a file holds: samples (S, channels) float32, their rate (Hz), and the number that its header promised, if it did."""

    samples: np.ndarray
    rate: int
    promised: int | None


class Source:
    """A file by its content alone: soundfile goes by the ending of a name where it is told one.

    What goes wrong in a callback of libsndfile cannot be raised there; it is kept in `error`.
    """

    def __init__(self, file: io.BufferedReader, patch: tuple[int, bytes] = (0, b"")):
        self.file = file
        self.size = os.fstat(file.fileno()).st_size
        self.patch = patch  # a place in the file, and what is read there
        self.at = 0
        self.error: OSError | None = None

    @property
    def length(self) -> int:
        """Bytes that it says to have."""
        return self.size

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self.at = offset + (0, self.at, self.length)[whence]
        return self.at

    def tell(self) -> int:
        return self.at

    def readinto(self, buffer: Any) -> int:  # one of cffi's
        try:
            self.file.seek(self.at)
            count = self.file.readinto(buffer)
        except OSError as error:
            self.error = error
            return 0
        place, patch = self.patch
        for i, byte in enumerate(patch, start=place - self.at):
            if 0 <= i < count:
                buffer[i : i + 1] = bytes([byte])
        self.at += count
        return count


class LongSource(Source):
    """An MP3 file that seems longer than it is: without a length in its first frame, libsndfile guesses one from the first
    bit rate and the size, and stops there. Nothing comes between its true end and the tag that is looked for at the other."""

    @property
    def length(self) -> int:
        return TIMES_LONGER * self.size

    def readinto(self, buffer: Any) -> int:
        if self.at < self.length - TAG:
            return super().readinto(buffer)
        place = self.at
        self.at += self.size - self.length
        count = super().readinto(buffer)
        self.at = place + count
        return count


class Straight(soundfile.SoundFile):
    """Read from the first to the last sample: soundfile seeks after every read, which FLAC of unknown length does not bear."""

    def __init__(self, source: Source):
        self.source = source
        super().__init__(source)

    def seekable(self) -> bool:
        return False

    def skip(self, count: int) -> None:
        """Leave out so many samples."""
        if self.frames < UNKNOWN and super().seekable():
            self.seek(min(count, self.frames))
        else:
            self.take(count)

    def take(self, count: int | None) -> np.ndarray:
        """The next samples (S, channels), as many as there are."""
        blocks, left = [], UNKNOWN if count is None else count
        while left and len(block := self.read(min(left, BLOCK), dtype="float32", always_2d=True)):
            blocks.append(block)
            left -= len(block)
        if len(blocks) == 1:
            return blocks[0]
        return np.concatenate(blocks) if blocks else np.zeros((0, self.channels), dtype=np.float32)


def read_sound(path: Path, start: float | None = None, duration: float | None = None) -> Sound:
    """Read a file, or `duration` seconds of it from `start`. Whatever libsndfile and the system raise is passed on.

    Raises:
        BadDataError: there is less than its header promises, or more recordings than one.
    """
    with path.open("rb") as handle:
        with open_sound(handle) as file:
            if not RATES[0] <= file.samplerate <= RATES[1]:
                raise BadDataError(str(path), "unreadable recording", f"a sampling rate of {file.samplerate} Hz")
            if lacking := find_lacking(file, handle):
                raise BadDataError(str(path), "truncated recording", lacking)
            guessed = isinstance(file.source, LongSource) or file.frames >= UNKNOWN
            promised = None if guessed else file.frames
            if start is None or duration is None:
                samples = file.take(None)
                if promised is not None and is_joined(file, handle):
                    found = "only the first would be read; cut it, or write it anew"
                    raise BadDataError(str(path), "several recordings in one file", found)
            else:
                first, count = round(start * file.samplerate), round(duration * file.samplerate)
                file.skip(first)
                samples = file.take(count)
                promised = None if promised is None else max(0, min(count, promised - first))
        if file.source.error is not None:
            raise file.source.error
        return Sound(samples, file.samplerate, promised)


def open_sound(handle: io.BufferedReader) -> Straight:
    """The file, so that all of it is read."""
    file = Straight(Source(handle))
    if file.format == "MP3" and not tells_length(first_frame(handle)):
        return Straight(LongSource(handle))
    if file.frames == 0 and (place := find_length(handle)) is not None:
        return Straight(Source(handle, (place, b"\xff\xff\xff\xff")))
    return file


def first_frame(handle: io.BufferedReader) -> bytes:
    """About the first frame of an MP3 file."""
    handle.seek(0)
    head = handle.read(10)
    tag = 0
    if head[:3] == b"ID3":
        for byte in head[6:10]:
            tag = tag << 7 | byte & 0x7F
    handle.seek(tag + 10 if tag else 0)
    return handle.read(1024)


def tells_length(frame: bytes) -> bool:
    """Whether the first frame of an MP3 file says how many there are."""
    found = MP3_LENGTH.search(frame)
    return found is not None and found[0][-1] & 1 == 1


def find_length(handle: io.BufferedReader) -> int | None:
    """Where a file that seems empty says so, if it goes on after its header with what can only be sound."""
    handle.seek(0)
    head = handle.read(12)
    layout = PLACES.get(head[:4])
    if layout is None:
        return None
    if head[:4] == b".snd":
        return 8
    while len(chunk := handle.read(8)) == 8:
        if chunk[:4] == b"data":
            place = handle.tell() - 4
            return None if chunks_only(handle, layout) else place
        length = struct.unpack(layout, chunk[4:])[0]
        handle.seek(length + length % 2, os.SEEK_CUR)
    return None


def chunks_only(handle: io.BufferedReader, layout: str) -> bool:
    """Whether a RIFF file holds nothing but whole chunks from here on."""
    size = os.fstat(handle.fileno()).st_size
    while (at := handle.tell()) < size:
        chunk = handle.read(8)
        if len(chunk) < 8 or not chunk[:4].isascii() or not chunk[:4].decode().isprintable():
            return False
        length = struct.unpack(layout, chunk[4:])[0]
        if at + 8 + length > size:
            return False
        handle.seek(length + length % 2, os.SEEK_CUR)
    return True


def find_lacking(file: soundfile.SoundFile, handle: io.BufferedReader) -> str:
    """What the header promises and the file does not hold, in words; empty if nothing."""
    notes = file.extra_info
    for said, there in CHUNK.findall(notes):
        if int(there) < int(said) < PLACEHOLDER:
            return f"its header promises {int(said) - int(there)} bytes more"
    said = there = 0
    if match := CUT.search(notes):
        said, there = int(match["said"]), int(match["there"])
    elif file.format == "NIST":
        handle.seek(0)
        if count := SPHERE.search(handle.read(1024)):
            said, there = int(count[1]), file.frames
    if there < said < UNKNOWN:
        return f"{there} of {said} samples are there"
    return next((f"libsndfile: {words}" for words in WORDS if words in notes), "")


def is_joined(file: Straight, handle: io.BufferedReader) -> bool:
    """Whether another recording follows the one that was read to its end: of joined files libsndfile reads the first."""
    if file.format == "MP3":
        sync = first_frame(handle)[:2]
        handle.seek(file.source.at)
        rest = handle.read()  # frames, or tags
        return sync[:1] == b"\xff" and rest.count(sync) * LARGEST_FRAME > len(rest)
    if file.format == "OGG":
        handle.seek(0)
        begins = [page[0] & OGG_FIRST > 0 for page in OGG_PAGE.findall(handle.read())]
        return True in begins[begins.index(False) :]
    return False
