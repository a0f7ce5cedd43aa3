"""The corpora of a recipe: what to train on, what to watch the training by, what to test on."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samplewise.asr.corpus import (
    TEST,
    TRAIN,
    VALID,
    Corpus,
    DigitStrings,
    Entry,
    ManifestCorpus,
    read_manifest,
    split_recordings,
)
from samplewise.asr.problems import BadDataLog, UserError
from samplewise.asr.recipe import DigitStringsOptions, ManifestOptions, Recipe, SubsetOptions
from samplewise.asr.sources import DigitSource, find_digits

Say = Callable[[str], None]


@dataclass(frozen=True)
class Corpora:
    """Training, validation and test corpus, and what they were made from (for results and for resuming)."""

    train: Corpus
    valid: Corpus | None
    test: Corpus | None
    description: dict[str, Any]


def make_corpora(recipe: Recipe, data: str | None, sample_rate: int, bad: BadDataLog, say: Say) -> Corpora:
    """All corpora of a recipe.

    Args:
        recipe: names the data.
        data: replaces the place where the recipe looks for them.
        sample_rate: of the samples that the corpora give (Hz).
        bad: notes or refuses what cannot be used.
        say: takes lines for the user.
    """
    if isinstance(recipe.data, DigitStringsOptions):
        return digit_corpora(recipe, recipe.data, find_digits(data, sample_rate, bad, say), sample_rate)
    return manifest_corpora(recipe.data, data, sample_rate, bad, say)


def digit_corpora(recipe: Recipe, options: DigitStringsOptions, source: DigitSource, sample_rate: int) -> Corpora:
    def strings(part: int) -> DigitStrings:
        chosen = split_recordings(source.recordings, part, options)
        return DigitStrings(chosen, options, part=part, seed=recipe.seed, sample_rate=sample_rate)

    valid = strings(VALID) if options.valid_strings else None
    description = {
        "kind": "digit_strings",
        "source": source.kind,
        "synthetic": source.kind == "synthetic",
        "recordings": len(source.recordings),
        "fingerprint": source.fingerprint,
    }
    return Corpora(strings(TRAIN), valid, strings(TEST), description)


def digit_test(recipe: Recipe, data: str | None, sample_rate: int, bad: BadDataLog, say: Say) -> DigitStrings:
    """The built-in test strings; those of the recipe if it is about digits, else of the default options."""
    options = recipe.data if isinstance(recipe.data, DigitStringsOptions) else DigitStringsOptions()
    source = find_digits(data, sample_rate, bad, say)
    chosen = split_recordings(source.recordings, TEST, options)
    return DigitStrings(chosen, options, part=TEST, seed=recipe.seed, sample_rate=sample_rate)


def manifest_corpora(options: ManifestOptions, data: str | None, sample_rate: int, bad: BadDataLog, say: Say) -> Corpora:
    root = Path(data if data is not None else options.root)
    if not root.is_dir():
        raise UserError(f"no data directory {root}; give the right one with --data")
    found: dict[str, list[Entry]] = {}
    for name in ("train", "valid", "test"):
        subset: SubsetOptions | None = getattr(options, name)
        if subset is not None:
            found[name] = read_manifest(root / subset.manifest, bad, subset.split)
            say(f"data: {len(found[name])} utterances to {name} on in {root / subset.manifest}")
    made = {name: ManifestCorpus(entries, sample_rate) for name, entries in found.items()}
    lines = [f"{name} {os.path.relpath(e.path, root)} {e.text}" for name, entries in found.items() for e in entries]
    description = {
        "kind": "manifest",
        "source": root.name,
        "utterances": {name: len(entries) for name, entries in found.items()},
        "fingerprint": hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16],
    }
    return Corpora(made["train"], made.get("valid"), made.get("test"), description)
