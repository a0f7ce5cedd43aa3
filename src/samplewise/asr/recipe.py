"""A recipe: everything a training run depends on, as one tree of frozen dataclasses loaded from YAML.

A group of keys with a `kind` is one of several dataclasses; a new encoder, tokenizer, feature or data set adds its
options to the union here and its code to the registry of its own file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from samplewise.asr.errors import UserError
from samplewise.asr.objective import CTCOptions, LossOptions, SamplingOptions
from samplewise.asr.options import ConformerOptions, PredictorOptions, SentencePieceOptions, SpecAugmentOptions
from samplewise.asr.texts import Normalisation
from samplewise.asr.typed import (
    MANY,
    Count,
    CountOrNone,
    Dropout,
    Options,
    Positive,
    Range,
    Seed,
    Size,
    Weight,
    build,
    in_order,
    plain,
    set_key,
    short,
)
from samplewise.asr.yaml_file import parse_change, read_values
from samplewise.choices import Activation

Speed = Annotated[float, Range(0.5, 2)]
Digits = Annotated[int, Range(1, 1000)]
Pause = Annotated[float, Range(0, 60)]
Decibels = Annotated[float, Range(-200, 100)]
BatchSize = Annotated[int, Range(1, 100_000)]
Seconds = Annotated[float, Range(0.001, 1)]  # of a frame


@dataclass(frozen=True)
class DigitStringsOptions(Options):
    """Strings of spoken digits of one speaker, put together from single recordings as they are needed.

    Attributes:
        digits: fewest and most digits of a string.
        pause: shortest and longest pause before, between and after the digits, in seconds.
        gain_db: a training string is made up to this much louder or softer (dB).
        noise_db: lowest and highest level of the noise under a training string, relative to its speech (dB).
        strings_per_epoch: after so many training strings their order is drawn again.
        valid_strings: fixed strings of recordings kept from training, to watch a run by; 0 uses all for training.
        test_strings: fixed strings of the test recordings.
    """

    kind: Literal["digit_strings"] = "digit_strings"
    digits: tuple[Digits, Digits] = (3, 7)
    pause: tuple[Pause, Pause] = (0.05, 0.35)
    gain_db: Annotated[float, Range(0, 100)] = 6.0
    noise_db: tuple[Decibels, Decibels] = (-80.0, -30.0)
    strings_per_epoch: Annotated[int, Range(1, 10_000_000)] = 6400
    valid_strings: Annotated[int, Range(0, 1_000_000)] = 60
    test_strings: Annotated[int, Range(1, 1_000_000)] = 300

    def conflicts(self) -> Iterator[str]:
        for name in ("digits", "pause", "noise_db"):
            yield from in_order(name, getattr(self, name))


@dataclass(frozen=True)
class SubsetOptions(Options):
    """Lines of a manifest: all of them, or those whose `split` is the one named; of these `most`, evenly spread (null: all)."""

    manifest: str
    split: str | None = None
    most: Count | None = None


@dataclass(frozen=True)
class ManifestOptions(Options):
    """Utterances listed in JSON-lines files, `{"audio": PATH, "text": TEXT, ...}` a line.

    Attributes:
        root: the directory that manifests and audio paths are relative to; `--data` replaces it.
        speed: slowest and fastest factor at which a training utterance is played, drawn anew every epoch.
        text: texts as they are given, or their words alone: letters, marks and digits of all scripts, and apostrophes, in
            lower case.
    """

    train: SubsetOptions
    kind: Literal["manifest"] = "manifest"
    root: str = "."
    valid: SubsetOptions | None = None
    test: SubsetOptions | None = None
    speed: tuple[Speed, Speed] = (1.0, 1.0)
    text: Literal["given", "words"] = "given"

    def conflicts(self) -> Iterator[str]:
        yield from in_order("speed", self.speed)


@dataclass(frozen=True)
class FeatureFilesOptions(Options):
    """Utterances whose features are stored, listed in JSON-lines files, `{"feats": "FILE.npz:KEY", "text": TEXT, ...}` a line.

    Attributes:
        root: the directory that manifests are relative to; `--data` replaces it.
        speed: slowest and fastest factor at which a training utterance is played, drawn anew every epoch.
        warp: largest bend of the frequency axis of a training utterance, up or down, drawn anew every epoch: other voices,
            for features that are cepstra: c0 first, no lifter, no derivatives among them.
    """

    train: SubsetOptions
    kind: Literal["feature_files"] = "feature_files"
    root: str = "."
    valid: SubsetOptions | None = None
    test: SubsetOptions | None = None
    speed: tuple[Speed, Speed] = (1.0, 1.0)
    warp: Annotated[float, Range(0, 0.5)] = 0.0

    def conflicts(self) -> Iterator[str]:
        yield from in_order("speed", self.speed)


@dataclass(frozen=True)
class StoredOptions(Options):
    """Features as they are stored, for data of kind `feature_files`.

    Attributes:
        dim: features of a stored frame.
        deltas: so many orders of time derivatives are put beside them.
        normalise: make every feature of an utterance zero mean and unit variance, derivatives too.
    """

    kind: Literal["stored"] = "stored"
    dim: Size = 13
    deltas: Literal[0, 1, 2] = 2
    normalise: bool = True


@dataclass(frozen=True)
class WordsOptions(Options):
    """Every word of the training texts is a class; one more stands for all other words."""

    kind: Literal["words"] = "words"
    lowercase: bool = True


@dataclass(frozen=True)
class LogMelOptions(Options):
    """Log energies of mel-spaced bands.

    Attributes:
        sample_rate: audio is resampled to it (Hz).
        mels: number of bands between `low` and `high` Hz (`high` null: half the sampling rate).
        window, hop: length and distance of the frames, in seconds.
        normalise: make every band of an utterance zero mean and unit variance.
    """

    kind: Literal["log_mel"] = "log_mel"
    sample_rate: Annotated[int, Range(1000, 384_000)] = 16000
    mels: Annotated[int, Range(1, 1024)] = 80
    window: Seconds = 0.025
    hop: Seconds = 0.01
    low: Weight = 20.0
    high: Positive | None = None
    normalise: bool = True

    def conflicts(self) -> Iterator[str]:
        top = self.sample_rate / 2
        high = top if self.high is None else self.high
        if high > top:
            yield f"high must be at most half of the sampling rate, {top:g} Hz, got {high:g}"
        elif self.low >= high:
            yield f"{'low' if self.high is None else 'high'}: the bands must lie in order, got {self.low:g} to {high:g} Hz"
        if (samples := round(self.window * self.sample_rate)) < 2:
            yield f"window of {self.window} s is {samples} samples at {self.sample_rate} Hz, at least 2 are needed"
        if round(self.hop * self.sample_rate) < 1:
            yield f"hop of {self.hop} s is less than a sample at {self.sample_rate} Hz"


@dataclass(frozen=True)
class CharactersOptions(Options):
    """Every character is a class.

    Attributes:
        characters: all that may occur, the space included; null collects them from the training texts.
        lowercase: texts are put in lower case first.
        unknown: a last class stands for other characters; without it utterances that hold such cannot be used.
    """

    kind: Literal["characters"] = "characters"
    characters: str | None = None
    lowercase: bool = True
    unknown: bool = False


@dataclass(frozen=True)
class LSTMOptions(Options):
    """A bidirectional LSTM over stacked frames.

    Attributes:
        stack: so many feature frames become one encoder frame.
        layers, hidden: number of layers, cells a layer and direction.
        dropout: between the layers and after the last.
    """

    kind: Literal["lstm"] = "lstm"
    stack: Annotated[int, Range(1, 1000)] = 4
    layers: Annotated[int, Range(1, 1000)] = 2
    hidden: Size = 160
    dropout: Dropout = 0.1


@dataclass(frozen=True)
class JoinerOptions(Options):
    """Width and activation of the joint encoding.

    Attributes:
        blank_head: topology hat: the blank has an output layer of its own, as in NeMo and WeNet.
        dropout: of the joint encodings.
    """

    dim: Size = 128
    activation: Activation = "tanh"
    blank_head: bool = False
    dropout: Dropout = 0.0


@dataclass(frozen=True)
class TrainingOptions(Options):
    """Steps, batches, optimiser and what is written when.

    Attributes:
        steps: optimiser steps in all.
        batch_size: utterances of one batch on one process; times `accumulate`, times the processes, in a step.
        batch_seconds: a batch has as many utterances as fit into so many seconds, padding included, and `batch_size` at
            most; null: always `batch_size`.
        length_pool: utterances of so many steps are sorted by length to make batches with little padding; 1: unsorted.
        evaluate_every: steps between evaluations on the validation set; 0: never.
        start_from: a run directory, or a checkpoint in one, whose weights training starts from.
        start_with: what is taken from it: the whole model with its vocabulary, or the weights of the encoder alone.
        keep: newest checkpoints kept.
        on_nonfinite: a step whose loss or gradients are not finite is left out, or ends the run.
        most_nonfinite: so many steps may be left out in a run; one more ends it.
        workers: processes that prepare batches; 0: the training process itself.
    """

    start_from: str | None = None
    start_with: Literal["model", "encoder"] = "model"
    steps: Count = 1000
    batch_size: BatchSize = 32
    batch_seconds: Positive | None = None
    accumulate: Annotated[int, Range(1, 10_000)] = 1
    learning_rate: Positive = 2e-3
    warmup_steps: CountOrNone = 100
    schedule: Literal["linear", "cosine", "constant_with_warmup", "inverse_sqrt"] = "linear"
    weight_decay: Weight = 0.01
    max_grad_norm: Weight = 1.0
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    length_pool: Annotated[int, Range(1, 10_000)] = 8
    log_every: Count = 25
    evaluate_every: CountOrNone = 200
    save_every: Count = 200
    keep: Annotated[int, Range(2, MANY)] = 2  # while one checkpoint is written another has to be whole
    workers: Annotated[int, Range(0, 1024)] = 0
    on_nonfinite: Literal["skip", "raise"] = "skip"
    most_nonfinite: CountOrNone = 20

    def conflicts(self) -> Iterator[str]:
        if self.batch_seconds is not None and self.length_pool == 1:
            yield "batch_seconds makes batches of like length, which takes a length_pool of more than 1"


@dataclass(frozen=True)
class DecodingOptions(Options):
    """Greedy search, or beam search.

    Attributes:
        beam: label sequences of an utterance kept from frame to frame; 1 is greedy search.
        max_symbols: most labels emitted in one encoder frame.
        batch_size: utterances decoded at a time.
        unit: what errors are counted in, which gives a WER or a CER.
        normalisation: what is done to both texts before they are compared, beside what the tokenizer does: nothing, lower
            case, or words alone (letters, marks and digits of all scripts, and apostrophes, in lower case).
    """

    beam: Annotated[int, Range(1, 10_000)] = 1
    max_symbols: Annotated[int, Range(1, 10_000)] = 5
    batch_size: BatchSize = 64
    unit: Literal["word", "character"] = "word"
    normalisation: Normalisation = "none"


@dataclass(frozen=True)
class Recipe(Options):
    """One training run; see docs/training.md for a table of all keys."""

    name: str
    data: DigitStringsOptions | ManifestOptions | FeatureFilesOptions
    seed: Seed = 1
    on_bad_data: Literal["skip", "raise"] = "skip"
    features: LogMelOptions | StoredOptions = field(default_factory=LogMelOptions)
    tokenizer: CharactersOptions | SentencePieceOptions | WordsOptions = field(default_factory=CharactersOptions)
    augment: SpecAugmentOptions | None = None
    encoder: LSTMOptions | ConformerOptions = field(default_factory=LSTMOptions)
    predictor: PredictorOptions = field(default_factory=PredictorOptions)
    joiner: JoinerOptions = field(default_factory=JoinerOptions)
    loss: LossOptions = field(default_factory=LossOptions)
    ctc: CTCOptions = field(default_factory=CTCOptions)
    sampling: SamplingOptions | None = None
    training: TrainingOptions = field(default_factory=TrainingOptions)
    decoding: DecodingOptions = field(default_factory=DecodingOptions)

    def conflicts(self) -> Iterator[str]:
        if (self.data.kind == "feature_files") != (self.features.kind == "stored"):
            yield (
                f"data of kind {self.data.kind} do not go with features of kind {self.features.kind}: "
                "feature_files and stored belong together"
            )
        if self.sampling is not None and self.loss.topology == "multi_blank":
            yield "sampling does not go with loss.topology multi_blank, whose big blanks are no classes of the tokenizer"
        if self.joiner.blank_head and self.loss.topology != "hat":
            yield f"joiner.blank_head goes with loss.topology hat alone, this one is {self.loss.topology}"
        if self.sampling is not None and self.sampling.negatives == "ctc" and self.ctc.weight == 0:
            yield "sampling.negatives is ctc, but with ctc.weight 0 there is no CTC head to sample by"
        if (
            not 0 < len(self.name) <= 100
            or not self.name.isprintable()
            or set(self.name) & set("/\\ ")
            or not self.name.strip(".")
        ):
            yield f"name names a directory: 1 to 100 signs, no spaces and no slashes, got {short(self.name)}"


def load_recipe(path: str | Path, changes: list[str] | None = None) -> Recipe:
    """Read a YAML recipe and apply `key=value` changes (dotted keys, YAML values).

    A recipe with `base: OTHER.yaml` has the keys of that one, in the same directory, where it does not give its own.

    Raises:
        UserError: an unreadable file; or, a line each, every unknown key (with the nearest known one), value of the wrong
            type or out of its range, and keys that do not go together.
    """
    values = read_values(Path(path))
    for change in changes or []:
        set_key(values, *parse_change(change))
    try:
        return build(Recipe, values)
    except UserError as error:
        lines = str(error).splitlines()
        listed = f" {lines[0]}" if len(lines) == 1 else f" {len(lines)} things are wrong:\n  " + "\n  ".join(lines)
        raise UserError(f"{path}:{listed}") from None


def recipe_from_plain(values: Any) -> Recipe:
    """A recipe from what `recipe_to_plain` gave."""
    return build(Recipe, values)


def recipe_to_plain(recipe: Recipe) -> dict[str, Any]:
    """The recipe as dictionaries, lists and scalars, every key present."""
    return plain(recipe)
