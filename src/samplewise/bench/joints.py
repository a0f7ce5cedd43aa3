"""What the joints of trained models see: where the files are, and what is in them. No torch here.

A file NAME.npz holds plain arrays: weight (V, D), bias (V,); and of each utterance i = 0, 1, ... encoder_out_i (T, D),
predictor_out_i (U+1, D) and targets_i (U,), projected encodings as `transducer_loss` takes them. Blank is class 0, the
activation tanh. `samplewise bench export` makes such files of a run directory.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from samplewise.bench.errors import BenchError

DIRECTORY = "SAMPLEWISE_TRAINED_JOINTS"  # in the environment: where the files are
ADVICE = (
    "Make some from a training run, `samplewise bench export RUN --output DIR`, and say where they are with --joints DIR, "
    f"or {DIRECTORY}=DIR in the environment."
)


@dataclass(frozen=True)
class Joint:
    """The sizes of a file: V, D, and (frames, labels) of each utterance."""

    name: str
    classes: int
    dim: int
    lengths: tuple[tuple[int, int], ...]


def directory() -> Path:
    """Where the files are: in the directory that the environment names, or in `../shared/data/trained_joints` as seen from here
    and from a checkout of this project.

    Raises:
        BenchError: nowhere.
    """
    given = os.environ.get(DIRECTORY)
    places = [Path.cwd(), Path(__file__).resolve().parents[3]]
    candidates = [Path(given)] if given else [place.parent / "shared" / "data" / "trained_joints" for place in places]
    for candidate in candidates:
        if any(candidate.glob("*.npz")):
            return candidate
    looked = " nor ".join(map(str, dict.fromkeys(candidates)))
    raise BenchError(f"no encodings of trained models: no .npz file in {looked}.\n{ADVICE}")


def joints() -> list[Joint]:
    """All files of the directory, models by name, each in the order of its steps."""
    return [joint_of(path) for path in sorted(directory().glob("*.npz"), key=lambda path: by_step(path.stem))]


def by_step(stem: str) -> tuple[str, int]:
    """Model and step of NAME_stepN."""
    name, _, step = stem.rpartition("_step")
    return (name, int(step)) if name and step.isdigit() else (stem, 0)


def joint_of(path: Path) -> Joint:
    arrays = load(path)
    lengths: list[tuple[int, int]] = []
    while (i := len(lengths)) == 0 or f"encoder_out_{i}" in arrays:
        (frames, dim), (rows, _) = arrays[f"encoder_out_{i}"].shape, arrays[f"predictor_out_{i}"].shape
        if arrays[f"targets_{i}"].shape != (rows - 1,) or dim != arrays["weight"].shape[1]:
            raise BenchError(f"{path}: the arrays of utterance {i} do not fit together")
        lengths.append((frames, rows - 1))
    classes, dim = arrays["weight"].shape
    return Joint(path.stem, classes, dim, tuple(lengths))


def load(path: Path) -> Mapping[str, np.ndarray]:
    """The arrays of a file, float32 and int64."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise BenchError(f"{path}: {error}") from None
    missing = [name for name in ("weight", "bias", "encoder_out_0", "predictor_out_0", "targets_0") if name not in arrays]
    if missing:
        raise BenchError(f"{path}: no array {missing[0]!r}")
    return {name: array.astype(np.int64 if name.startswith("targets") else np.float32) for name, array in arrays.items()}
