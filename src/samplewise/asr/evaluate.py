"""Errors in words or characters, and the loss, of a model on a corpus."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import jiwer
import torch

from samplewise.asr.decode import search
from samplewise.asr.examples import Batch, EvaluationExamples, Example, collate
from samplewise.asr.model import Transducer
from samplewise.asr.problems import UserError
from samplewise.asr.progress import bar
from samplewise.asr.recipe import DecodingOptions

Unit = Literal["word", "character"]
NAMES = {"word": "WER", "character": "CER"}


@dataclass(frozen=True)
class Errors:
    """Counts over a set of utterances; `rate` is the ratio of their sums, not a mean of ratios.

    Attributes:
        units: words or characters of the references.
        unit: `word` or `character`.
    """

    units: int = 0
    substitutions: int = 0
    deletions: int = 0
    insertions: int = 0
    utterances: int = 0
    utterances_wrong: int = 0
    unit: Unit = "word"

    @property
    def errors(self) -> int:
        return self.substitutions + self.deletions + self.insertions

    @property
    def rate(self) -> float:
        """(substitutions + deletions + insertions) / units of the references."""
        return self.errors / self.units if self.units else float("nan")

    @property
    def name(self) -> str:
        """What the rate is called: WER or CER."""
        return NAMES[self.unit]

    def __str__(self) -> str:
        return (
            f"{self.name} {100 * self.rate:.2f}% ({self.errors} errors in {self.units} {self.unit}s: "
            f"{self.insertions} insertions, {self.deletions} deletions, {self.substitutions} substitutions; "
            f"{self.utterances - self.utterances_wrong} of {self.utterances} utterances right)"
        )

    def to_plain(self) -> dict[str, Any]:
        """`wer` and `words`, or `cer` and `characters`, and the other counts."""
        counts = dict(self.__dict__)
        return {self.name.lower(): self.rate, f"{counts.pop('unit')}s": counts.pop("units"), **counts}


@dataclass(frozen=True)
class Evaluation:
    """A model on a corpus.

    Attributes:
        nats_per_label: the transducer loss, summed over the utterances, divided by the number of their labels; those with
            something outside of the vocabulary are left out of it, for no training has said what that costs.
        by_speaker: errors of each speaker, if there are several.
        texts: (key, reference, hypothesis) of every utterance.
        capped: frames in which `decoding.max_symbols` labels were emitted, of each utterance: more may have been said there.
    """

    errors: Errors
    nats_per_label: float
    by_speaker: dict[str, Errors]
    texts: list[tuple[str, str, str]]
    seconds: float
    capped: list[int] = field(default_factory=list)

    def to_plain(self) -> dict[str, Any]:
        speakers = {name: errors.to_plain() for name, errors in self.by_speaker.items()}
        capped = {"frames": sum(self.capped), "utterances": sum(map(bool, self.capped))}
        numbers = {"nats_per_label": self.nats_per_label, "max_symbols_reached": capped}
        return {**self.errors.to_plain(), **numbers, "by_speaker": speakers}

    def bound(self, max_symbols: int) -> list[str]:
        """A line if the search reached the bound on the labels of a frame."""
        if not any(self.capped):
            return []
        return [
            f"decoding.max_symbols={max_symbols} labels were emitted in {sum(self.capped)} encoder frames, of "
            f"{sum(map(bool, self.capped))} of {len(self.capped)} utterances: more may have been said there"
        ]


def count_errors(references: Sequence[str], hypotheses: Sequence[str], unit: Unit = "word") -> Errors:
    """Errors of the best alignments, counted over all utterances; white space is no character."""
    if not references:
        return Errors(unit=unit)
    if unit == "character":
        references, hypotheses = ([" ".join("".join(text.split())) for text in texts] for texts in (references, hypotheses))
    aligned = jiwer.process_words(list(references), list(hypotheses))
    wrong = sum(reference != hypothesis for reference, hypothesis in zip(references, hypotheses, strict=True))
    return Errors(
        units=aligned.hits + aligned.substitutions + aligned.deletions,
        substitutions=aligned.substitutions,
        deletions=aligned.deletions,
        insertions=aligned.insertions,
        utterances=len(references),
        utterances_wrong=wrong,
        unit=unit,
    )


@torch.no_grad()
def evaluate(
    model: Transducer,
    examples: EvaluationExamples,
    decode: Callable[[Sequence[int]], str],
    options: DecodingOptions,
) -> Evaluation:
    """Decode and score all examples.

    Args:
        model: is put in evaluation mode, and back.
        decode: from labels to text.
        options: how to search, utterances at a time, and what errors are counted in.

    Raises:
        UserError: there is no example to score.
    """
    if not len(examples):
        raise UserError(f"nothing to evaluate: no usable utterance\n{examples.bad.report()}".rstrip())
    started = time.monotonic()
    training = model.training
    model.eval()
    device = next(model.parameters()).device
    texts: list[tuple[str, str, str]] = []
    speakers: list[str] = []
    capped: list[int] = []
    nats = labels = 0.0
    batches = list(in_batches(examples.examples, options.batch_size))
    for batch in bar(batches, "evaluating"):
        inputs = [batch[name].to(device) for name in ("features", "feature_lengths", "targets", "target_lengths")]
        if known := [i for i, within in enumerate(batch["known"]) if within]:
            chosen = [tensor[known] for tensor in inputs]
            nats += float(model(*chosen)["transducer"]) * len(known)
            labels += float(chosen[3].sum())
        found = search(model, inputs[0], inputs[1], options)
        capped += found.capped
        hypotheses = [decode(labels) for labels in found]
        texts += list(zip(batch["keys"], batch["texts"], hypotheses, strict=True))
        speakers += batch["speakers"]
    model.train(training)
    errors = errors_of(texts, options.unit)
    nats_per_label = nats / labels if labels else float("nan")
    seconds = time.monotonic() - started
    return Evaluation(errors, nats_per_label, per_speaker(texts, speakers, options.unit), texts, seconds, capped)


def in_batches(examples: Sequence[Example], size: int) -> Iterator[Batch]:
    """Batches of examples of like length; the order has no influence on the scores."""
    ordered = sorted(examples, key=lambda example: len(example.features))
    for start in range(0, len(ordered), size):
        yield collate(ordered[start : start + size])


def errors_of(texts: Sequence[tuple[str, str, str]], unit: Unit = "word") -> Errors:
    return count_errors([reference for _, reference, _ in texts], [hypothesis for _, _, hypothesis in texts], unit)


def per_speaker(texts: Sequence[tuple[str, str, str]], speakers: Sequence[str], unit: Unit = "word") -> dict[str, Errors]:
    names = sorted(set(speakers))
    if len(names) < 2:
        return {}
    pairs = list(zip(speakers, texts, strict=True))
    return {name: errors_of([text for speaker, text in pairs if speaker == name], unit) for name in names}
