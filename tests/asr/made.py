"""Small made-up recordings and a tiny recipe, for all tests of the recogniser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch

from samplewise.asr.checkpoint import Run
from samplewise.asr.corpus import WORDS, Recording
from samplewise.asr.model import Transducer
from samplewise.asr.recipe import Recipe, recipe_from_plain
from samplewise.asr.tokenizer import BLANK, CharacterTokenizer

RATE = 8000
SPEAKERS = ("ann", "bob")
TAKES = 8
SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"

TINY: dict[str, Any] = {
    "name": "tiny",
    "data": {
        "kind": "digit_strings",
        "digits": [1, 2],
        "pause": [0.01, 0.03],
        "strings_per_epoch": 20,
        "valid_strings": 4,
        "test_strings": 6,
    },
    "features": {"kind": "log_mel", "sample_rate": RATE, "mels": 12},
    "tokenizer": {"kind": "characters", "characters": " efghinorstuvwxz"},
    "encoder": {"kind": "lstm", "stack": 2, "layers": 1, "hidden": 16, "dropout": 0.1},
    "predictor": {"kind": "gru", "embedding": 8, "hidden": 16},
    "joiner": {"dim": 16},
    "training": {
        "steps": 6,
        "batch_size": 4,
        "learning_rate": 1.0e-2,
        "warmup_steps": 2,
        "log_every": 1,
        "evaluate_every": 0,
        "save_every": 3,
        "length_pool": 2,
    },
    "decoding": {"max_symbols": 3, "batch_size": 3},
}


def changed(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A deep copy of nested dictionaries with `a.b` keys changed."""
    copy = {key: changed(value, {}) if isinstance(value, dict) else value for key, value in base.items()}
    for dotted, value in changes.items():
        *parents, last = dotted.split(".")
        inner = copy
        for parent in parents:
            inner = inner[parent]
        inner[last] = value
    return copy


def tiny_recipe(**changes: Any) -> Recipe:
    """The tiny recipe; `training__steps=3` changes `training.steps`."""
    return recipe_from_plain(changed(TINY, {key.replace("__", "."): value for key, value in changes.items()}))


def tone(digit: int, speaker: int, take: int, seconds: float = 0.2) -> np.ndarray:
    """A sound for a digit: two tones that tell it, a little different every time."""
    time = np.arange(int(seconds * (1 + 0.02 * take) * RATE)) / RATE
    first, second = 300 + 130 * digit, 900 + 90 * ((digit * 3) % 10) + 40 * speaker
    return (0.3 * np.sin(2 * np.pi * first * time) + 0.2 * np.sin(2 * np.pi * second * time)).astype(np.float32)


def make_recordings() -> list[Recording]:
    return [
        Recording(tone(digit, s, take), digit, speaker, "test" if take < 5 else "train", f"{digit}_{speaker}_{take}.wav")
        for s, speaker in enumerate(SPEAKERS)
        for digit in range(len(WORDS))
        for take in range(TAKES)
    ]


def network(
    seed: int, blank_bias: float, kind: str = "lstm", *, classes: int = 6, scale: float = 3.0, **recipe: Any
) -> Transducer:  # fmt: skip
    """A tiny model to decode with, of features (B, F, 12); `recipe` are changes of the tiny one."""
    torch.manual_seed(seed)
    model = Transducer(tiny_recipe(predictor={"kind": kind, "embedding": 8, "hidden": 16}, **recipe), 12, classes).eval()
    with torch.no_grad():  # far from uniform, so that labels, blanks and repeats all occur
        for parameter in model.parameters():
            parameter.mul_(scale)
        model.joiner.output.bias.zero_()
        model.joiner.output.bias[BLANK] = blank_bias
    return model


def make_run(**changes: Any) -> Run:
    return Run(tiny_recipe(**changes), CharacterTokenizer(" efghinorstuvwxz"), {"fingerprint": "x"})


def write_checkpoint(directory: Path, step: int) -> Path:
    """The files of a checkpoint as the Trainer writes them."""
    checkpoint = directory / f"checkpoint-{step}"
    checkpoint.mkdir(parents=True)
    torch.manual_seed(step)
    model, _ = make_run().make_model()
    safetensors.torch.save_file(model.state_dict(), checkpoint / "model.safetensors")
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        torch.save({"state": torch.arange(1000)}, checkpoint / name)
    (checkpoint / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return checkpoint
