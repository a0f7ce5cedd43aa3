"""The corpora of a recipe: what to train on, what to watch the training by, what to test on."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from samplewise.asr.corpus import (
    TEST,
    TRAIN,
    VALID,
    Corpus,
    DigitStrings,
    Entry,
    ManifestCorpus,
    Parse,
    parse_entry,
    read_entries,
    split_recordings,
)
from samplewise.asr.errors import UserError
from samplewise.asr.feature_files import FeatureCorpus, FeatureEntry, parse_feature_entry
from samplewise.asr.problems import BadData, BadDataLog
from samplewise.asr.recipe import (
    DigitStringsOptions,
    FeatureFilesOptions,
    ManifestOptions,
    Recipe,
    StoredOptions,
    SubsetOptions,
)
from samplewise.asr.sources import DigitSource, find_digits
from samplewise.asr.spoken.texts import transcript
from samplewise.cache import expanded

E = TypeVar("E", Entry, FeatureEntry)
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
    if isinstance(recipe.data, FeatureFilesOptions):
        return feature_corpora(recipe, recipe.data, data, bad, say)
    return manifest_corpora(recipe, recipe.data, data, sample_rate, bad, say)


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


def manifest_corpora(
    recipe: Recipe, options: ManifestOptions, data: str | None, sample_rate: int, bad: BadDataLog, say: Say
) -> Corpora:
    root = data_directory(options, data)
    found = read_subsets(options, root, bad, say, parse_entry)
    made = {
        name: ManifestCorpus(
            with_texts(options, entries), sample_rate, options.speed if name == "train" else (1.0, 1.0), recipe.seed
        )
        for name, entries in found.items()
    }
    return Corpora(made["train"], made.get("valid"), made.get("test"), describe("manifest", root, found))


def with_texts(options: ManifestOptions, entries: Sequence[Entry]) -> Sequence[Entry]:
    """The entries with their texts as the recipe wants them."""
    return [replace(e, text=transcript(e.text)) for e in entries] if options.text == "words" else entries


def feature_corpora(recipe: Recipe, options: FeatureFilesOptions, data: str | None, bad: BadDataLog, say: Say) -> Corpora:
    root = data_directory(options, data)
    found = read_subsets(options, root, bad, say, parse_feature_entry)
    dim = stored_dim(recipe)
    made = {
        name: FeatureCorpus(entries, dim, train=name == "train", speed=options.speed, warp=options.warp, seed=recipe.seed)
        for name, entries in found.items()
    }
    return Corpora(made["train"], made.get("valid"), made.get("test"), describe("feature_files", root, found))


def stored_dim(recipe: Recipe) -> int:
    """Features of a stored frame."""
    assert isinstance(recipe.features, StoredOptions), "the recipe has been checked"
    return recipe.features.dim


def data_directory(options: ManifestOptions | FeatureFilesOptions, data: str | None) -> Path:
    root = expanded(data if data is not None else options.root)
    if not root.is_dir():
        raise UserError(f"no data directory {root}; give the right one with --data")
    return root


def read_subsets(
    options: ManifestOptions | FeatureFilesOptions,
    root: Path,
    bad: BadDataLog,
    say: Say,
    parse: Parse[E],
) -> dict[str, list[E]]:
    """The entries of the subsets that the recipe names."""
    found = {}
    for name in ("train", "valid", "test"):
        subset: SubsetOptions | None = getattr(options, name)
        if subset is not None:
            entries = read_entries(root / subset.manifest, bad, subset.split, parse)
            if name == "train":
                entries = with_something_said(entries, bad, root / subset.manifest)
            found[name] = spread(entries, subset.most)
            say(f"data: {len(found[name])} utterances to {name} on in {root / subset.manifest}")
    return found


def with_something_said(entries: list[E], bad: BadDataLog, manifest: Path) -> list[E]:
    """The entries to learn from; an empty text can be scored only."""
    for entry in entries:
        if not entry.text.strip():
            bad.add(BadData(entry.key, "empty transcript"))
    found = [entry for entry in entries if entry.text.strip()]
    if not found:
        raise UserError(f"{manifest}: none of its {len(entries)} usable lines has a text to learn\n{bad.report()}".rstrip())
    return found


def spread(entries: list[E], most: int | None) -> list[E]:
    """At most so many of the entries, at even distances."""
    if most is None or len(entries) <= most:
        return entries
    return [entries[i * len(entries) // most] for i in range(most)]


def describe(kind: str, root: Path, found: Mapping[str, Sequence[Entry | FeatureEntry]]) -> dict[str, Any]:
    """What results and resumed runs are told of the data."""
    lines = [f"{name} {os.path.relpath(where(e), root)} {e.text}" for name, entries in found.items() for e in entries]
    return {
        "kind": kind,
        "source": root.name,
        "utterances": {name: len(entries) for name, entries in found.items()},
        "fingerprint": hashlib.sha256("\n".join(lines).encode(errors="backslashreplace")).hexdigest()[:16],
    }


def where(entry: Entry | FeatureEntry) -> str:
    if isinstance(entry, FeatureEntry):
        return f"{entry.path}:{entry.array}"
    return str(entry.path) if entry.start is None else f"{entry.path}@{entry.start}"
