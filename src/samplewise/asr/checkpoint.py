"""The files of a run: what a run directory holds, which checkpoint in it is whole, and how a model is loaded."""

from __future__ import annotations

import json
import re
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from samplewise.asr.examples import Preparation
from samplewise.asr.features import Features, make_features
from samplewise.asr.model import Transducer
from samplewise.asr.problems import UserError
from samplewise.asr.recipe import DecodingOptions, Recipe, recipe_from_plain, recipe_to_plain
from samplewise.asr.tokenizer import Tokenizer, tokenizer_from_plain

RUN_FILE = "run.json"  # in the run directory and in every checkpoint: recipe, tokenizer, data
WEIGHTS = "model.safetensors"
STATE = "trainer_state.json"  # written last by transformers.Trainer
FORMAT = 1


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
            UserError: a beam below 1.
        """
        if beam is not None and beam < 1:
            raise UserError(f"--beam must be at least 1, got {beam}")
        options = self.run.recipe.decoding
        return options if beam is None else replace(options, beam=beam)


def make_preparation(run: Run, model: Transducer, features: Features) -> Preparation:
    """The checks and conversions that utterances go through before this model sees them."""
    return Preparation(features, run.tokenizer, model.encoder.output_length, model.ctc_head is not None)


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
    found = [path for path in directory.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", path.name)]
    return sorted((path for path in found if path.is_dir()), key=step_of)


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])


def last_checkpoint(directory: Path) -> Path | None:
    """The newest whole checkpoint of a run directory."""
    whole = [path for path in checkpoints(directory) if is_whole(path)]
    return whole[-1] if whole else None


def is_whole(checkpoint: Path) -> bool:
    """Whether every file of a checkpoint was written to its end.

    `trainer_state.json` is written last, so one that parses tells that a killed process had finished the others; the
    ends of those are looked at too, for the sake of full disks and lost power.
    """
    try:
        state = json.loads((checkpoint / STATE).read_text(encoding="utf-8"))
        if state["global_step"] != step_of(checkpoint):
            return False
        with safetensors.safe_open(checkpoint / WEIGHTS, framework="pt") as weights:
            weights.keys()
    except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError):
        return False
    states = [checkpoint / "optimizer.pt", checkpoint / "scheduler.pt", *checkpoint.glob("rng_state*.pth")]
    return len(states) > 2 and all(zipfile.is_zipfile(path) for path in states)


def write_json(path: Path, values: Any) -> None:
    """Write a file whole or not at all; what is not Unicode, as some names of files, becomes an escape of JSON."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8", errors="backslashreplace")
    partial.replace(path)


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise UserError(f"no {path.name} in {path.parent}; is it a run directory of `samplewise train`?") from None
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}") from None
