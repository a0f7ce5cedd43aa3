"""Fixtures: made-up recordings, the real ones where they are there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import soundfile
import torch

import samplewise
from samplewise.asr.corpus import Recording
from samplewise.asr.problems import BadDataLog

from .made import RATE, SHARED, make_recordings


def launch_kernels() -> None:
    """One loss: the first one starts numba's threads, and with some threading layers that resets torch's number of threads."""
    lengths = torch.tensor([1])
    samplewise.transducer_loss(
        torch.zeros(1, 1, 2), torch.zeros(1, 2, 2), torch.zeros(3, 2), None, lengths[None], lengths, lengths
    )


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny tensors: more threads would only wait for each other."""
    threads = torch.get_num_threads()
    launch_kernels()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def recordings() -> list[Recording]:
    return make_recordings()


@pytest.fixture(scope="session")
def digits_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of wav files as the archive of FSDD holds them, with two speakers."""
    directory = tmp_path_factory.mktemp("digits") / "fsdd"
    (directory / "recordings").mkdir(parents=True)
    for recording in make_recordings():
        soundfile.write(directory / "recordings" / recording.key, recording.samples, RATE)
    return directory


@pytest.fixture(scope="session")
def shared_fsdd() -> Path:
    """The real recordings; tests of them are skipped where they are not."""
    directory = SHARED / "fsdd"
    if not directory.is_dir():
        pytest.skip(f"no {directory}; unpack github.com/Jakobovski/free-spoken-digit-dataset (v1.0.10) there to run this test")
    return directory


@pytest.fixture
def bad() -> BadDataLog:
    return BadDataLog()


class Said:
    """Collects the lines for the user."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, line: str) -> None:
        self.lines.append(line)

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


@pytest.fixture
def said() -> Said:
    return Said()
