"""Voices: Flite's (Debian's package flite), and a Piper voice that comes as a Python package."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soxr

from samplewise.asr.audio import read_audio
from samplewise.asr.errors import UserError
from samplewise.asr.problems import BadDataError
from samplewise.asr.spoken.needs import FLITE, PIPER

MEAN_PITCH = {"slt": 170.0, "rms": 105.0, "awb": 130.0, "kal16": 105.0}  # Hz

Speak = Callable[[str, float, float], np.ndarray]  # text, speed, pitch factor -> samples at the wanted sampling rate


@dataclass(frozen=True)
class Flite:
    """One of Flite's voices, a process an utterance; the same text and factors give the same samples."""

    voice: str
    sample_rate: int

    def __call__(self, text: str, speed: float, pitch: float) -> np.ndarray:
        with tempfile.TemporaryDirectory() as folder:
            wave = Path(folder) / "speech.wav"
            command = ["flite", "-voice", self.voice, "--setf", f"duration_stretch={1 / speed:.4f}"]
            command += ["--setf", f"int_f0_target_mean={pitch * MEAN_PITCH[self.voice]:.2f}", "-t", text, "-o", str(wave)]
            done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
            if done.returncode != 0 or not wave.is_file():
                raise UserError(f"{' '.join(command)} failed: {done.stderr.strip() or done.returncode}")
            return read_audio(wave, self.sample_rate)


class Piper:
    """A Piper voice (VITS, arXiv 2106.06103) on one thread, its random noise turned off: the same samples on every call.

    The pitch is changed by resampling, and the speed makes up for it.
    """

    def __init__(self, voice: str, sample_rate: int):
        self.sample_rate = sample_rate
        try:
            onnxruntime = importlib.import_module("onnxruntime")
            package = importlib.import_module(f"{voice}_us_piper_voice")
            self.piper = importlib.import_module("piper")
        except ImportError as error:
            raise UserError(f"the voice {voice} needs its packages: pip install 'samplewise[speech]' ({error})") from None
        self.voice = self.piper.PiperVoice.load(package.model_path(), config_path=package.config_path())
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self.voice.session = onnxruntime.InferenceSession(
            str(package.model_path()), sess_options=options, providers=["CPUExecutionProvider"]
        )

    def __call__(self, text: str, speed: float, pitch: float) -> np.ndarray:
        settings = self.piper.SynthesisConfig(length_scale=pitch / speed, noise_scale=0.0, noise_w_scale=0.0)
        chunks = list(self.voice.synthesize(text, settings))
        if not chunks:
            raise BadDataError(repr(text), "no speech from Piper")
        samples = np.concatenate([chunk.audio_float_array for chunk in chunks])
        return soxr.resample(samples, chunks[0].sample_rate * pitch, self.sample_rate).astype(np.float32)


def find_voices(names: Sequence[str], sample_rate: int) -> dict[str, Speak]:
    """The voices by name.

    Raises:
        UserError: an unknown name, or a voice that is not installed, with what to install.
    """
    known = (*FLITE, *PIPER)
    found: dict[str, Speak] = {}
    for name in names:
        if name not in known:
            raise UserError(f"no voice {name!r}; known here: {', '.join(known)}")
        if name in FLITE and shutil.which("flite") is None:
            raise UserError(f"the voice {name} needs Flite: apt-get install flite, or choose others with --voices")
        found[name] = Flite(name, sample_rate) if name in FLITE else Piper(name, sample_rate)
    return found
