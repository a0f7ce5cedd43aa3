"""Digits spoken by eSpeak NG, for machines that have neither the recordings nor a network.

Uses the library of the `espeakng-loader` package through ctypes, else an `espeak-ng` binary on the path. eSpeak's
speech is far easier than people's; a WER on it says that the code runs, and nothing about recognition.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import espeakng_loader
import numpy as np
import soxr

from samplewise.asr.audio import read_audio
from samplewise.asr.corpus import WORDS, Recording
from samplewise.asr.errors import UserError
from samplewise.asr.progress import bar

VOICES = ("en-us", "en", "en-us+f2", "en+f4", "en-us+m3", "en+m7")
TAKES, TEST_TAKES = 25, 3  # of each word and voice; the first TEST_TAKES are the test split
RATES, PITCHES = (110, 210), (25, 75)  # words a minute; eSpeak's own scale of 0 to 100
TRIM = 0.01  # share of the peak under which the ends of a word count as silence

Speak = Callable[[str, str, int, int], np.ndarray]  # word, voice, rate, pitch -> samples at the wanted sampling rate


def synthesise_digits(sample_rate: int, takes: int = TAKES) -> list[Recording]:
    """Ten digits by six voices, `takes` times each at other speeds and pitches; the same on every call.

    Raises:
        UserError: there is no eSpeak NG.
    """
    speak = find_speaker(sample_rate)
    rng = np.random.default_rng(0)
    wanted = [(voice, digit, take) for voice in VOICES for digit in range(len(WORDS)) for take in range(takes)]
    recordings = []
    for voice, digit, take in bar(wanted, "speaking digits"):
        rate, pitch = int(rng.integers(*RATES)), int(rng.integers(*PITCHES))
        samples = trim(speak(WORDS[digit], voice, rate, pitch))
        split = "test" if take < TEST_TAKES else "train"
        recordings.append(Recording(samples, digit, f"espeak {voice}", split, f"{digit}_{voice}_{take}"))
    return recordings


def find_speaker(sample_rate: int) -> Speak:
    """eSpeak NG from the package, else from the system; raise UserError if there is none."""
    try:
        return Library(sample_rate)
    except (OSError, RuntimeError, AttributeError) as error:  # AttributeError: a library that is too old
        reason = str(error)
    binary = shutil.which("espeak-ng") or shutil.which("espeak")
    if binary is None:
        raise UserError(
            f"no eSpeak NG: the espeakng-loader package does not work here ({reason}) and there is no espeak-ng "
            "on the path. Install one of them, or give recordings with --data."
        )
    return Binary(binary, sample_rate)


class Library:
    """eSpeak NG's C interface; `AUDIO_OUTPUT_SYNCHRONOUS` hands the samples to a callback in this thread."""

    SYNCHRONOUS, POSITION_CHARACTER, UTF8, RATE, PITCH = 2, 1, 1, 1, 3

    def __init__(self, sample_rate: int):
        self.sample_rate = sample_rate
        self.library = ctypes.CDLL(espeakng_loader.get_library_path())
        data = str(Path(espeakng_loader.get_data_path())).encode()
        self.rate = self.library.espeak_Initialize(self.SYNCHRONOUS, 0, data, 0)
        if self.rate <= 0:
            raise RuntimeError(f"espeak_Initialize returned {self.rate}")
        self.pieces: list[np.ndarray] = []
        kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)
        self.callback = kind(self._receive)  # kept: ctypes frees a callback that nothing refers to
        self.library.espeak_SetSynthCallback(self.callback)

    def _receive(self, wave, count: int, events) -> int:
        if wave and count > 0:
            self.pieces.append(np.ctypeslib.as_array(wave, shape=(count,)).astype(np.float32) / 32768)
        return 0

    def __call__(self, word: str, voice: str, rate: int, pitch: int) -> np.ndarray:
        self.pieces = []
        self.library.espeak_ng_SetRandSeed(ctypes.c_long(1))  # its breath noise is the same in every run
        if self.library.espeak_SetVoiceByName(voice.encode()) != 0:
            raise UserError(f"eSpeak NG has no voice {voice!r}")
        self.library.espeak_SetParameter(self.RATE, rate, 0)
        self.library.espeak_SetParameter(self.PITCH, pitch, 0)
        text = word.encode()
        size = ctypes.c_size_t(len(text) + 1)
        self.library.espeak_Synth(text, size, 0, self.POSITION_CHARACTER, 0, self.UTF8, None, None)
        self.library.espeak_Synchronize()
        if not self.pieces:
            raise UserError(f"eSpeak NG gave no samples for {word!r}")
        return soxr.resample(np.concatenate(self.pieces), self.rate, self.sample_rate)


class Binary:
    """The `espeak-ng` command, one process a word."""

    def __init__(self, path: str, sample_rate: int):
        self.path = path
        self.sample_rate = sample_rate

    def __call__(self, word: str, voice: str, rate: int, pitch: int) -> np.ndarray:
        with tempfile.TemporaryDirectory() as folder:
            wave = Path(folder) / "word.wav"
            command = [self.path, "-v", voice, "-s", str(rate), "-p", str(pitch), "-w", str(wave), word]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                raise UserError(f"{' '.join(command)} failed: {done.stderr.strip()}")
            return read_audio(wave, self.sample_rate)


def trim(samples: np.ndarray) -> np.ndarray:
    """Without the silence at both ends."""
    loud = np.flatnonzero(np.abs(samples) > TRIM * np.abs(samples).max())
    return np.ascontiguousarray(samples[loud[0] : loud[-1] + 1], dtype=np.float32)
