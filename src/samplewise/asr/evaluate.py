"""Errors in words or characters, and the loss, of a model on a corpus."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import jiwer
import torch
from accelerate.utils import gather_object

from samplewise.asr.decode import search
from samplewise.asr.errors import UserError
from samplewise.asr.examples import Batch, EvaluationExamples, Example, collate
from samplewise.asr.model import Transducer
from samplewise.asr.problems import BadData, listing
from samplewise.asr.progress import bar
from samplewise.asr.recipe import DecodingOptions
from samplewise.asr.texts import FORMS, Normalisation

Unit = Literal["word", "character"]
PARTS = ("loss", "transducer", "ctc")
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
        """(substitutions + deletions + insertions) / units of the references; NaN if these are all empty."""
        return self.errors / self.units if self.units else float("nan")

    @property
    def name(self) -> str:
        """What the rate is called: WER or CER."""
        return NAMES[self.unit]

    def __str__(self) -> str:
        rate = f"{100 * self.rate:.2f}%" if self.units else "undefined"
        return (
            f"{self.name} {rate} ({self.errors} errors in {self.units} {self.unit}s: "
            f"{self.insertions} insertions, {self.deletions} deletions, {self.substitutions} substitutions; "
            f"{self.utterances - self.utterances_wrong} of {self.utterances} utterances right)"
        )

    def to_plain(self) -> dict[str, Any]:
        """`wer` (None without words) and `words`, or `cer` and `characters`, and the other counts."""
        counts = dict(self.__dict__)
        return {self.name.lower(): self.rate if self.units else None, f"{counts.pop('unit')}s": counts.pop("units"), **counts}


@dataclass(frozen=True)
class Evaluation:
    """A model on a corpus.

    Attributes:
        losses: nats of each part of the loss, summed over the utterances, and the number of their `labels` and of them;
            those with something outside of the vocabulary are left out, for no training has said what that costs.
        without_loss: which these are, and why.
        by_speaker: errors of each speaker, if there are several.
        texts: (key, reference, hypothesis) of every utterance, as they were compared.
        normalisation: what was done to the texts before.
        capped: frames in which `decoding.max_symbols` labels were emitted, of each utterance: more may have been said there.
        max_symbols: that key.
        steps, frames: how often the joint was asked in decoding, and encoder frames, of each utterance.
    """

    errors: Errors
    losses: dict[str, float]
    without_loss: list[BadData]
    by_speaker: dict[str, Errors]
    texts: list[tuple[str, str, str]]
    normalisation: Normalisation
    seconds: float
    capped: list[int] = field(default_factory=list)
    max_symbols: int = 0
    steps: list[int] = field(default_factory=list)
    frames: list[int] = field(default_factory=list)

    @property
    def nats_per_label(self) -> float | None:
        """The transducer loss over all classes; None if no utterance has one, or a label."""
        return ratio(self.losses, "transducer", "labels")

    def to_plain(self) -> dict[str, Any]:
        capped = {"frames": sum(self.capped), "utterances": sum(map(bool, self.capped))}
        return {
            **self.errors.to_plain(),
            "normalisation": self.normalisation,
            "nats_per_label": self.nats_per_label,
            "without_loss": dict(Counter(problem.reason for problem in self.without_loss)),
            "max_symbols_reached": capped,
            "joint_steps": sum(self.steps),
            "encoder_frames": sum(self.frames),
            "by_speaker": {name: errors.to_plain() for name, errors in self.by_speaker.items()},
        }

    def metrics(self) -> dict[str, float]:
        """As a line of a log: the error rate, the loss that is minimised (nats an utterance), its parts (nats a label); what
        does not exist is left out."""
        found = {self.errors.name.lower(): self.errors.rate if self.errors.units else None}
        found["loss"] = ratio(self.losses, "loss", "utterances")
        found |= {f"{name}_nats_per_label": ratio(self.losses, name, "labels") for name in ("transducer", "ctc")}
        found |= {"without_loss": len(self.without_loss), "max_symbols_reached": sum(self.capped)}
        return {name: value for name, value in found.items() if value is not None}

    def loss(self) -> str:
        """In a few words."""
        nats = self.nats_per_label
        return "none of the utterances has one" if nats is None else f"{nats:.4f} nats per label (transducer)"

    def work(self) -> str:
        """What decoding took, in a few words."""
        steps, frames = sum(self.steps), sum(self.frames)
        a_frame = f" ({steps / frames:.2f} a frame)" if frames else ""
        return f"{steps} joint steps in {frames} encoder frames{a_frame}"

    def notes(self) -> list[str]:
        """What has to be said beside the numbers; nothing where all is as usual."""
        lines = [f"texts were compared as: {self.normalisation}"] if self.normalisation != "none" else []
        if self.without_loss:
            lines.append(
                f"{len(self.without_loss)} of {self.errors.utterances} utterances are scored, but are not in the loss:"
            )
            lines += listing(self.without_loss)
        if any(self.capped):
            lines.append(
                f"decoding.max_symbols={self.max_symbols} labels were emitted in {sum(self.capped)} encoder frames, of "
                f"{sum(map(bool, self.capped))} of {len(self.capped)} utterances: more may have been said there"
            )
        return lines


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
    share: tuple[int, int] = (0, 1),
) -> Evaluation:
    """Decode and score all examples, in training, after it and on its own: the one place that error rates come from.

    Args:
        model: is put in evaluation mode, and back.
        decode: from labels to text.
        options: how to search, utterances at a time, what errors are counted in, and how texts are compared.
        share: this process and the number of them; each takes its share of the batches, and all get the result.

    Raises:
        UserError: there is no example to score.
    """
    if not len(examples):
        raise UserError(f"nothing to evaluate: no usable utterance\n{examples.bad.report()}".rstrip())
    started = time.monotonic()
    training = model.training
    model.eval()
    form = FORMS[options.normalisation]
    texts: list[tuple[str, str, str]] = []
    speakers: list[str] = []
    losses: dict[str, float] = {}
    without_loss: list[BadData] = []
    capped: list[int] = []
    steps: list[int] = []
    frames: list[int] = []
    own = in_batches(examples.examples, options.batch_size)[share[0] :: share[1]]
    for examples_of_batch in own if share[0] else bar(own, "evaluating"):
        batch = on_device(collate(examples_of_batch), next(model.parameters()).device)
        add(losses, losses_of(model, batch))
        without_loss += [problem for problem in batch["without_loss"] if problem is not None]
        found = search(model, batch["features"], batch["feature_lengths"], options)
        capped += found.capped
        steps += found.steps
        frames += found.frames
        hypotheses = [form(decode(labels)) for labels in found]
        texts += zip(batch["keys"], map(form, batch["texts"]), hypotheses, strict=True)
        speakers += batch["speakers"]
    model.train(training)
    if share[1] > 1:
        texts, speakers, without_loss = (gather_object(each) for each in (texts, speakers, without_loss))
        capped, steps, frames = (gather_object(each) for each in (capped, steps, frames))
        others = gather_object([losses])
        losses = {}
        for each in others:
            add(losses, each)
    errors = errors_of(texts, options.unit)
    by_speaker = per_speaker(texts, speakers, options.unit)
    return Evaluation(
        errors,
        losses,
        without_loss,
        by_speaker,
        texts,
        options.normalisation,
        time.monotonic() - started,
        capped,
        options.max_symbols,
        steps,
        frames,
    )


def in_batches(examples: Sequence[Example], size: int) -> list[list[Example]]:
    """Examples of like length together; the order has no influence on the scores."""
    ordered = sorted(examples, key=lambda example: len(example.features))
    return [ordered[start : start + size] for start in range(0, len(ordered), size)]


def on_device(batch: Batch, device: torch.device) -> Batch:
    return {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in batch.items()}


def losses_of(model: Transducer, batch: Batch) -> dict[str, float]:
    """Sums over the utterances of a batch that have a loss: each part of it (nats), labels, utterances."""
    chosen = [i for i, problem in enumerate(batch["without_loss"]) if problem is None]
    if not chosen:
        return {}
    inputs = [batch[name][chosen] for name in ("features", "feature_lengths", "targets", "target_lengths")]
    # The class's own forward: that of a model in training may be wrapped for half precision, and would give other numbers.
    found = type(model).forward(model, *inputs)
    sums = {"labels": float(inputs[3].sum()), "utterances": float(len(chosen))}
    sums.update((name, float(found[name]) * len(chosen)) for name in PARTS if name in found)
    return sums


def add(sums: dict[str, float], more: dict[str, float]) -> None:
    for name, amount in more.items():
        sums[name] = sums.get(name, 0.0) + amount


def ratio(sums: dict[str, float], amount: str, count: str) -> float | None:
    """None where there is nothing to divide by."""
    return sums[amount] / sums[count] if amount in sums and sums[count] else None


def errors_of(texts: Sequence[tuple[str, str, str]], unit: Unit = "word") -> Errors:
    return count_errors([reference for _, reference, _ in texts], [hypothesis for _, _, hypothesis in texts], unit)


def per_speaker(texts: Sequence[tuple[str, str, str]], speakers: Sequence[str], unit: Unit = "word") -> dict[str, Errors]:
    names = sorted(set(speakers))
    if len(names) < 2:
        return {}
    pairs = list(zip(speakers, texts, strict=True))
    return {name: errors_of([text for speaker, text in pairs if speaker == name], unit) for name in names}
