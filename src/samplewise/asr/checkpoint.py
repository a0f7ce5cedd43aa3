"""The files of a run: what a run directory holds, which checkpoint in it is whole, and how a model is loaded."""

from __future__ import annotations

import json
import os
import re
import zipfile
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from samplewise.asr.errors import UserError
from samplewise.asr.examples import Preparation
from samplewise.asr.features import Features, make_features
from samplewise.asr.model import Transducer
from samplewise.asr.recipe import DecodingOptions, Recipe, recipe_from_plain, recipe_to_plain
from samplewise.asr.tokenizer import Tokenizer, tokenizer_from_plain
from samplewise.asr.writing import write_json

RUN_FILE = "run.json"  # in the run directory and in every checkpoint: recipe, tokenizer, data
WEIGHTS = "model.safetensors"
STATE = "trainer_state.json"  # written last by transformers.Trainer
BEFORE_STATE = re.compile(rf"{re.escape(WEIGHTS)}|training_args\.bin|(optimizer|scheduler|scaler)\.pt|rng_state(_\d+)?\.pth")
FORMAT = 1
ENDS = 1 << 16  # bytes


@dataclass(frozen=True)
class Run:
    """What a checkpoint needs beside its weights.

    Attributes:
        data: where the training data came from and how many processes share them, to tell whether a resumed run has
            the same.
    """

    recipe: Recipe
    tokenizer: Tokenizer
    data: dict[str, Any]

    def save(self, directory: Path) -> None:
        values = {
            "format": FORMAT,
            "recipe": recipe_to_plain(self.recipe),
            "tokenizer": self.tokenizer.to_plain(),
            "data": self.data,
        }
        write_json(directory / RUN_FILE, values)

    @staticmethod
    def load(directory: Path) -> Run:
        values = read_json(directory / RUN_FILE)
        if values.get("format") != FORMAT:
            raise UserError(f"{directory / RUN_FILE} is of format {values.get('format')}, this version reads {FORMAT}")
        tokenizer = tokenizer_from_plain(values["tokenizer"])
        return Run(recipe_from_plain(values["recipe"]), tokenizer, values["data"])

    def make_model(self) -> tuple[Transducer, Features]:
        features = make_features(self.recipe.features)
        return Transducer(self.recipe, features.dim, self.tokenizer.size), features


@dataclass(frozen=True)
class Recogniser:
    """A trained model with all that it takes to use it."""

    model: Transducer
    features: Features
    run: Run
    directory: Path

    def preparation(self) -> Preparation:
        return make_preparation(self.run, self.model, self.features)

    def decoding(self, beam: int | None) -> DecodingOptions:
        """The recipe's, with another beam if one is given.

        Raises:
            UserError: a beam that a recipe could not have either.
        """
        options = self.run.recipe.decoding
        try:
            return options if beam is None else replace(options, beam=beam)
        except ValueError as error:
            raise UserError(f"--{error}") from None


def make_preparation(run: Run, model: Transducer, features: Features) -> Preparation:
    """The checks and conversions that utterances go through before this model sees them."""
    output_length, least_frames = model.encoder.output_length, model.moves.least_frames
    return Preparation(features, run.tokenizer, output_length, model.ctc_head is not None, least_frames)


def load_recogniser(path: str | Path) -> Recogniser:
    """Load a run directory (its newest whole checkpoint, or its final weights) or one checkpoint in it.

    Raises:
        UserError: nothing there that can be loaded.
    """
    directory = Path(path)
    if not directory.is_dir():
        raise UserError(f"no checkpoint at {directory}; expected a run directory such as runs/digits")
    if not (directory / WEIGHTS).is_file():
        last = last_checkpoint(directory)
        if last is None:
            raise UserError(f"{directory} holds no whole checkpoint; `samplewise train` writes them")
        directory = last
    run = Run.load(directory if (directory / RUN_FILE).is_file() else directory.parent)
    model, features = run.make_model()
    try:
        weights = safetensors.torch.load_file(directory / WEIGHTS)
        model.load_state_dict(weights)
    except (safetensors.SafetensorError, RuntimeError, OSError) as error:
        raise UserError(f"{directory / WEIGHTS} does not hold this model's weights: {error}") from None
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return Recogniser(model.to(device).eval(), features, run, directory)


def checkpoints(directory: Path) -> list[Path]:
    """The checkpoint directories of a run, oldest step first, whole or not."""
    found = [name for name, is_directory in entries_of(directory) if is_directory and re.fullmatch(r"checkpoint-\d+", name)]
    return sorted((directory / name for name in found), key=step_of)


def entries_of(directory: Path) -> list[tuple[str, bool]]:
    """The names in a directory, sorted, and whether each is a directory; none if there is no such directory.

    Raises:
        UserError: it cannot be read, which must not look like an empty one.
    """
    try:
        with os.scandir(directory) as entries:
            return sorted((entry.name, entry.is_dir()) for entry in entries)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise UserError(
            f"cannot read {directory}: {error.strerror or error}. Nothing was removed or changed. Give the same command again "
            "once it can be read."
        ) from None


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])


def last_checkpoint(directory: Path, *, thorough: bool = False) -> Path | None:
    """The newest whole checkpoint of a run directory; for `thorough` and errors see `fault`."""
    newest_first = reversed(checkpoints(directory))
    return next((path for path in newest_first if not fault(path, thorough=thorough)), None)


def is_whole(checkpoint: Path) -> bool:
    return not fault(checkpoint)


def is_unfinished(checkpoint: Path) -> bool:
    """Whether nothing is there of what is written last: a killed process left it behind, or it never was a checkpoint."""
    names = {name for name, _ in entries_of(checkpoint)}
    return STATE not in names and RUN_FILE not in names


def is_remnant(checkpoint: Path) -> bool:
    """Whether an unfinished one is of no use to anybody: all of it is the Trainer's, and more than weights, which somebody may
    have put there to keep."""
    names = {name for name, _ in entries_of(checkpoint)}
    return names != {WEIGHTS} and all(map(BEFORE_STATE.fullmatch, names))


def fault(checkpoint: Path, *, thorough: bool = False) -> str:
    """What is wrong with a checkpoint; empty if every file of it was written to its end.

    `trainer_state.json` is written last, so one that parses tells that a killed process had finished the others; the
    ends of those are looked at too, for the sake of full disks and lost power.

    Args:
        thorough: read optimizer, schedule and random numbers whole and compare their checksums.

    Raises:
        UserError: a file is there and cannot be read, which says nothing about what is in it.
    """
    names = [name for name, _ in entries_of(checkpoint)]
    random = [name for name in names if re.fullmatch(r"rng_state.*\.pth", name)] or ["rng_state.pth"]  # one a process
    scaler = ["scaler.pt"] if "scaler.pt" in names else []
    states = [checkpoint / name for name in ("optimizer.pt", "scheduler.pt", *scaler, *random)]
    path = checkpoint / STATE
    try:
        if json.loads(path.read_text(encoding="utf-8"))["global_step"] != step_of(checkpoint):
            return f"{STATE} is of another step"
        path = checkpoint / WEIGHTS
        read_ends(path)
        with safetensors.safe_open(path, framework="pt") as weights:
            weights.keys()
        for path in states:
            read_ends(path)
            with zipfile.ZipFile(path) as file:
                if thorough and file.testzip() is not None:
                    return f"{path.name} is damaged"
    except FileNotFoundError:
        return f"{path.name} is not there"
    except OSError as error:
        raise UserError(
            f"cannot read {path}: {error.strerror or error}. Nothing was removed or changed. Give the same command again once "
            f"the disk answers; or move {checkpoint} elsewhere, to go on from the checkpoint before it."
        ) from None
    except (ValueError, KeyError, TypeError, safetensors.SafetensorError, zipfile.BadZipFile, zlib.error):
        return f"{path.name} is damaged"
    return ""


def read_ends(path: Path) -> None:
    """Have a disk that does not answer say so: libraries take its errors for damage, or die of them."""
    with path.open("rb") as file:
        file.read(ENDS)
        file.seek(max(0, path.stat().st_size - ENDS))
        file.read(ENDS)


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"no {path.name} in {path.parent}; is it a run directory of `samplewise train`?") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; nothing was changed, give the same command again") from None
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}") from None
