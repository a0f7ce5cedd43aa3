"""A recipe: everything a training run depends on, as one tree of frozen dataclasses loaded from YAML.

A group of keys with a `kind` is one of several dataclasses; a new encoder, tokenizer, feature or data set adds its
options to the union here and its code to the registry of its own file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from samplewise.asr.objective import CTCOptions, LossOptions, SamplingOptions
from samplewise.asr.options import ConformerOptions, PredictorOptions, SentencePieceOptions, SpecAugmentOptions
from samplewise.asr.problems import UserError
from samplewise.asr.texts import Normalisation
from samplewise.asr.typed import at_least_zero, build, merge, plain, positive, set_key, share, suggest


@dataclass(frozen=True)
class DigitStringsOptions:
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
    digits: tuple[int, int] = (3, 7)
    pause: tuple[float, float] = (0.05, 0.35)
    gain_db: float = 6.0
    noise_db: tuple[float, float] = (-80.0, -30.0)
    strings_per_epoch: int = 6400
    valid_strings: int = 60
    test_strings: int = 300

    def __post_init__(self) -> None:
        positive(strings_per_epoch=self.strings_per_epoch, test_strings=self.test_strings)
        at_least_zero(valid_strings=self.valid_strings, gain_db=self.gain_db)
        if not 1 <= self.digits[0] <= self.digits[1]:
            raise ValueError(f"digits must be [fewest, most] with 1 <= fewest <= most, got {list(self.digits)}")
        if not 0 <= self.pause[0] <= self.pause[1]:
            raise ValueError(f"pause must be [shortest, longest] seconds, got {list(self.pause)}")
        if not self.noise_db[0] <= self.noise_db[1]:
            raise ValueError(f"noise_db must be [lowest, highest], got {list(self.noise_db)}")


@dataclass(frozen=True)
class SubsetOptions:
    """Lines of a manifest: all of them, or those whose `split` is the one named; of these `most`, evenly spread (null: all)."""

    manifest: str
    split: str | None = None
    most: int | None = None

    def __post_init__(self) -> None:
        if self.most is not None:
            positive(most=self.most)


def check_speed(speed: tuple[float, float]) -> None:
    if not 0.5 <= speed[0] <= speed[1] <= 2:
        raise ValueError(f"speed must be [slowest, fastest] between 0.5 and 2, got {list(speed)}")


@dataclass(frozen=True)
class ManifestOptions:
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
    speed: tuple[float, float] = (1.0, 1.0)
    text: Literal["given", "words"] = "given"

    def __post_init__(self) -> None:
        check_speed(self.speed)


@dataclass(frozen=True)
class FeatureFilesOptions:
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
    speed: tuple[float, float] = (1.0, 1.0)
    warp: float = 0.0

    def __post_init__(self) -> None:
        check_speed(self.speed)
        if not 0 <= self.warp <= 0.5:
            raise ValueError(f"warp must lie between 0 and 0.5, got {self.warp}")


@dataclass(frozen=True)
class StoredOptions:
    """Features as they are stored, for data of kind `feature_files`.

    Attributes:
        dim: features of a stored frame.
        deltas: so many orders of time derivatives are put beside them.
        normalise: make every feature of an utterance zero mean and unit variance, derivatives too.
    """

    kind: Literal["stored"] = "stored"
    dim: int = 13
    deltas: Literal[0, 1, 2] = 2
    normalise: bool = True

    def __post_init__(self) -> None:
        positive(dim=self.dim)


@dataclass(frozen=True)
class WordsOptions:
    """Every word of the training texts is a class; one more stands for all other words."""

    kind: Literal["words"] = "words"
    lowercase: bool = True


@dataclass(frozen=True)
class LogMelOptions:
    """Log energies of mel-spaced bands.

    Attributes:
        sample_rate: audio is resampled to it (Hz).
        mels: number of bands between `low` and `high` Hz (`high` null: half the sampling rate).
        window, hop: length and distance of the frames, in seconds.
        normalise: make every band of an utterance zero mean and unit variance.
    """

    kind: Literal["log_mel"] = "log_mel"
    sample_rate: int = 16000
    mels: int = 80
    window: float = 0.025
    hop: float = 0.01
    low: float = 20.0
    high: float | None = None
    normalise: bool = True

    def __post_init__(self) -> None:
        positive(sample_rate=self.sample_rate, mels=self.mels, window=self.window, hop=self.hop)
        top = self.sample_rate / 2
        if not 0 <= self.low < (top if self.high is None else self.high) <= top:
            raise ValueError(f"low and high must lie in order between 0 and {top:g} Hz, got {self.low}, {self.high}")


@dataclass(frozen=True)
class CharactersOptions:
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
class LSTMOptions:
    """A bidirectional LSTM over stacked frames.

    Attributes:
        stack: so many feature frames become one encoder frame.
        layers, hidden: number of layers, cells a layer and direction.
        dropout: between the layers and after the last.
    """

    kind: Literal["lstm"] = "lstm"
    stack: int = 4
    layers: int = 2
    hidden: int = 160
    dropout: float = 0.1

    def __post_init__(self) -> None:
        positive(stack=self.stack, layers=self.layers, hidden=self.hidden)
        share(dropout=self.dropout)


@dataclass(frozen=True)
class JoinerOptions:
    """Width and activation of the joint encoding."""

    dim: int = 128
    activation: Literal["tanh", "relu", "sigmoid", "gelu", "silu", "identity"] = "tanh"

    def __post_init__(self) -> None:
        positive(dim=self.dim)


@dataclass(frozen=True)
class TrainingOptions:
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
    steps: int = 1000
    batch_size: int = 32
    batch_seconds: float | None = None
    accumulate: int = 1
    learning_rate: float = 2e-3
    warmup_steps: int = 100
    schedule: Literal["linear", "cosine", "constant_with_warmup", "inverse_sqrt"] = "linear"
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    length_pool: int = 8
    log_every: int = 25
    evaluate_every: int = 200
    save_every: int = 200
    keep: int = 2
    workers: int = 0
    on_nonfinite: Literal["skip", "raise"] = "skip"
    most_nonfinite: int = 20

    def __post_init__(self) -> None:
        positive(steps=self.steps, batch_size=self.batch_size, accumulate=self.accumulate, keep=self.keep)
        positive(learning_rate=self.learning_rate, length_pool=self.length_pool)
        positive(log_every=self.log_every, save_every=self.save_every)
        at_least_zero(warmup_steps=self.warmup_steps, weight_decay=self.weight_decay, workers=self.workers)
        at_least_zero(most_nonfinite=self.most_nonfinite)
        at_least_zero(max_grad_norm=self.max_grad_norm, evaluate_every=self.evaluate_every)
        if self.batch_seconds is not None:
            positive(batch_seconds=self.batch_seconds)
        if self.batch_seconds is not None and self.length_pool == 1:
            raise ValueError("batch_seconds makes batches of like length, which takes a length_pool of more than 1")
        if self.keep < 2:
            raise ValueError("keep must be at least 2: while one checkpoint is written another has to be whole")


@dataclass(frozen=True)
class DecodingOptions:
    """Greedy search, or beam search.

    Attributes:
        beam: label sequences of an utterance kept from frame to frame; 1 is greedy search.
        max_symbols: most labels emitted in one encoder frame.
        batch_size: utterances decoded at a time.
        unit: what errors are counted in, which gives a WER or a CER.
        normalisation: what is done to both texts before they are compared, beside what the tokenizer does: nothing, lower
            case, or words alone (letters, marks and digits of all scripts, and apostrophes, in lower case).
    """

    beam: int = 1
    max_symbols: int = 5
    batch_size: int = 64
    unit: Literal["word", "character"] = "word"
    normalisation: Normalisation = "none"

    def __post_init__(self) -> None:
        positive(beam=self.beam, max_symbols=self.max_symbols, batch_size=self.batch_size)


@dataclass(frozen=True)
class Recipe:
    """One training run; see docs/training.md for a table of all keys."""

    name: str
    data: DigitStringsOptions | ManifestOptions | FeatureFilesOptions
    seed: int = 1
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

    def __post_init__(self) -> None:
        at_least_zero(seed=self.seed)
        if (self.data.kind == "feature_files") != (self.features.kind == "stored"):
            raise ValueError(
                f"data of kind {self.data.kind} do not go with features of kind {self.features.kind}: "
                "feature_files and stored belong together"
            )
        if self.sampling is not None and self.sampling.negatives == "ctc" and self.ctc.weight == 0:
            raise ValueError("sampling.negatives is ctc, but with ctc.weight 0 there is no CTC head to sample by")
        if not self.name or any(sign in self.name for sign in "/\\ "):
            raise ValueError(f"name names a directory: no spaces and no slashes, got {self.name!r}")


def load_recipe(path: str | Path, changes: list[str] | None = None) -> Recipe:
    """Read a YAML recipe and apply `key=value` changes (dotted keys, YAML values).

    A recipe with `base: OTHER.yaml` has the keys of that one, in the same directory, where it does not give its own.

    Raises:
        UserError: an unreadable file, an unknown key (with the nearest known one), a value of the wrong type.
    """
    values = read_values(Path(path))
    for change in changes or []:
        set_key(values, *parse_change(change))
    try:
        return build(Recipe, values)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def read_values(path: Path, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Keys and values of a YAML file, those of its base included."""
    if not path.is_file():
        near = sorted(str(p) for p in path.parent.glob("*.yaml")) if path.parent.is_dir() else []
        hint = suggest(str(path), near) if near else "; a recipe is a YAML file such as recipes/digits.yaml"
        raise UserError(f"no recipe at {path}{hint}")
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not readable as YAML: {error}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path}: a recipe holds keys and values, this file holds {type(values).__name__}")
    base = values.pop("base", None)
    if base is None:
        return values
    if not isinstance(base, str) or path in seen:
        raise UserError(f"{path}: base names another recipe that is not based on this one, got {base!r}")
    return merge(read_values(path.parent / base, (*seen, path)), values)


def parse_change(change: str) -> tuple[str, Any]:
    """`training.steps=10` as ("training.steps", 10)."""
    key, sign, value = change.partition("=")
    if not sign or not key.strip():
        raise UserError(f"--set takes key=value, for example --set training.steps=200; got {change!r}")
    try:
        return key.strip(), yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise UserError(f"--set {change}: the value is not YAML: {error}") from None


def recipe_from_plain(values: Any) -> Recipe:
    """A recipe from what `recipe_to_plain` gave."""
    return build(Recipe, values)


def recipe_to_plain(recipe: Recipe) -> dict[str, Any]:
    """The recipe as dictionaries, lists and scalars, every key present."""
    return plain(recipe)
