"""Utterances whose features were made elsewhere and are stored in numpy archives.

A line of the manifest names them as `"feats": "FILE.npz:KEY"`, an array (F, M) of any float type; the file is relative to
the manifest. The warp of cepstra is that of Pitz and Ney, "Vocal tract normalization equals linear transformation in cepstral
space" (IEEE TSAP 2005), drawn at random as in Jaitly and Hinton, "Vocal tract length perturbation" (2013).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from samplewise.asr.corpus import TRAIN, Utterance
from samplewise.asr.errors import UserError
from samplewise.asr.manifest_lines import duration_of, file_of, text_of
from samplewise.asr.problems import BadDataError, named, printable

AXIS = 64  # points of the frequency axis at which a spectrum is read, at least

Arrays = dict[tuple[Path, str], np.ndarray | BadDataError]  # or why it cannot be used


@dataclass(frozen=True)
class FeatureEntry:
    """One line of a manifest of stored features; `duration` in seconds if the line has it."""

    path: Path
    array: str
    text: str
    key: str
    speaker: str
    duration: float | None


class FeatureCorpus:
    """Stored features, all of them in memory. Training utterances are played a little faster or slower, anew every epoch.

    Args:
        entries: of one manifest.
        dim: features of a frame.
        train: whether these are training utterances.
        speed: slowest and fastest factor of a training utterance; its frames are interpolated.
        warp: largest bend of the frequency axis of a training utterance, whose features then must be cepstra.
        seed: the recipe's; speed and bend of utterance i in epoch e are a pure function of it, e and i.
    """

    def __init__(
        self,
        entries: Sequence[FeatureEntry],
        dim: int,
        *,
        train: bool,
        speed: tuple[float, float] = (1.0, 1.0),
        warp: float = 0.0,
        seed: int = 0,
    ):
        self.entries = entries
        self.dim = dim
        self.speed = speed if train else (1.0, 1.0)
        self.warp = warp if train else 0.0
        self.seed = seed
        self.arrays = read_archives(entries)

    def __len__(self) -> int:
        return len(self.entries)

    def utterance(self, epoch: int, index: int) -> Utterance:
        """Features (F, M) float32 in place of samples."""
        entry = self.entries[index]
        found = self.arrays.get((entry.path, entry.array))
        if found is None:
            raise BadDataError(entry.key, "missing features", f"{entry.path} holds no array {entry.array!r}")
        if isinstance(found, BadDataError):
            raise BadDataError(entry.key, found.problem.reason, found.problem.detail)
        if found.ndim != 2 or found.shape[1] != self.dim:
            raise BadDataError(entry.key, "features of the wrong shape", f"{found.shape} instead of (frames, {self.dim})")
        with named(entry.key, "unreadable features"):
            features = found.astype(np.float32)
        if not np.isfinite(features).all():
            raise BadDataError(entry.key, "features that are not finite")
        rng = np.random.default_rng((self.seed, TRAIN, epoch, index))
        if self.speed != (1.0, 1.0):
            features = stretched(features, rng.uniform(*self.speed))
        if self.warp:
            features = warped(features, rng.uniform(-self.warp, self.warp))
        return Utterance(features, entry.text, entry.key, entry.speaker)

    def seconds(self, epoch: int, index: int) -> float:
        return self.entries[index].duration or 0.0

    def texts(self) -> Iterable[str]:
        return [entry.text for entry in self.entries]


def stretched(features: np.ndarray, speed: float) -> np.ndarray:
    """Frames (F, M) at another speed, interpolated linearly: (round(F / speed), M)."""
    frames = len(features)
    count = max(1, round(frames / speed))
    if frames < 2:
        return features
    place = np.linspace(0, frames - 1, count)
    before = np.minimum(place.astype(np.int64), frames - 2)
    share = (place - before).astype(np.float32)[:, None]
    return features[before] * (1 - share) + features[before + 1] * share


def warped(cepstra: np.ndarray, bend: float) -> np.ndarray:
    """Cepstra (F, M), c0 first, of speech whose frequency axis is bent, as by a longer or shorter vocal tract.

    A log spectrum sum_k c_k cos(k w) is read at w + 2 atan(bend sin w / (1 - bend cos w)), an all-pass filter's phase, which
    leaves both ends of the axis where they are, and is made a series again: a linear map of the cepstra.
    Where c0 has another scale than the rest, as by some transforms, it moves too little or too much; the others as they should.
    """
    order = np.arange(cepstra.shape[1])
    points = max(AXIS, 4 * len(order))
    w = (np.arange(points) + 0.5) * np.pi / points
    bent = w + 2 * np.arctan(bend * np.sin(w) / (1 - bend * np.cos(w)))
    series = np.cos(order * bent[:, None])  # (points, M)
    back = np.cos(order * w[:, None]) * np.where(order == 0, 1, 2) / points
    return cepstra @ (series.T @ back).astype(cepstra.dtype)


def read_archives(entries: Sequence[FeatureEntry]) -> Arrays:
    """The arrays that entries name; those that an archive lacks are left out.

    Raises:
        UserError: not one of the archives can be read.
    """
    arrays: Arrays = {}
    wanted: dict[Path, set[str]] = {}
    for entry in entries:
        wanted.setdefault(entry.path, set()).add(entry.array)
    broken: list[BadDataError] = []
    for path, names in sorted(wanted.items()):
        try:
            with named(str(path), "unreadable archive of features"), np.load(path) as archive:
                arrays |= {(path, name): read_array(path, name, archive) for name in sorted(names & set(archive.files))}
        except BadDataError as error:
            arrays |= {(path, name): error for name in names}
            broken.append(error)
    if broken and len(broken) == len(wanted):
        raise UserError(f"{broken[0].problem.key} is no archive of features (.npz): {broken[0].problem.detail}")
    return arrays


def read_array(path: Path, name: str, archive: Any) -> np.ndarray | BadDataError:
    """One array of an archive, or what is wrong with it."""
    try:
        with named(f"{path}:{name}", "unreadable features"):
            return archive[name]
    except BadDataError as error:
        return error


def parse_feature_entry(values: dict[str, Any], manifest: Path, where: str) -> FeatureEntry:
    """One line of a manifest."""
    feats = values.get("feats")
    if not isinstance(feats, str) or ":" not in feats:
        raise BadDataError(where, "no stored features in the manifest", 'expected "feats": "FILE.npz:KEY"')
    key = printable(f"{where} {feats}")
    text = text_of(values, key)
    file, _, array = feats.rpartition(":")
    path = file_of(manifest.parent / file, key)
    return FeatureEntry(path, array, text, key, printable(str(values.get("speaker") or "")), duration_of(values, key))
