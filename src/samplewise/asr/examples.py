"""From utterances to batches: texts to classes, samples to features, every utterance checked.

The training data are one stream of (epoch, index) pairs as long as the whole run (batches.py), so a position in it is a
number of batches and a run resumes by skipping that many; nothing has to be told the epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from samplewise.asr.corpus import Corpus, Utterance
from samplewise.asr.errors import UserError
from samplewise.asr.features import Features
from samplewise.asr.problems import BadData, BadDataError, BadDataLog
from samplewise.asr.progress import bar
from samplewise.asr.tokenizer import OutOfVocabularyError, Tokenizer

Batch = dict[str, Any]


@dataclass(frozen=True)
class Example:
    """One utterance ready for the model: features (F, M), targets (U,), and who it is.

    Attributes:
        text: as errors are counted against it.
        without_loss: why an utterance that is scored has no loss to be compared with that of training.
    """

    features: torch.Tensor
    targets: torch.Tensor
    key: str
    text: str
    speaker: str
    without_loss: BadData | None = None


def a_single_one(labels: int) -> int:
    """The frames that any number of labels fit into, where a frame may have many."""
    return 1


@dataclass(frozen=True)
class Preparation:
    """Turns utterances into examples to learn from, or to score; raises BadDataError for those that cannot be used so.

    Attributes:
        output_length: the encoder's own formula, from feature frames to encoder frames.
        needs_ctc_path: labels must fit into the encoder frames, repeated ones with a blank between (CTC).
        least_frames: the fewest encoder frames that so many labels fit into by the transducer's own topology; the regular one
            needs a single frame.
    """

    features: Features
    tokenizer: Tokenizer
    output_length: Callable[[int], int]
    needs_ctc_path: bool
    least_frames: Callable[[int], int] = a_single_one

    def __call__(self, utterance: Utterance) -> Example:
        """To learn from: with a text that is in the vocabulary and fits into its frames."""
        targets = self._targets(utterance)
        if not targets:
            raise BadDataError(utterance.key, "empty transcript")
        features = usable_features(self.features, utterance.samples, utterance.key)
        self._check_frames(utterance, features, targets)
        return self._example(utterance, features, targets)

    def to_score(self, utterance: Utterance) -> Example:
        """With any text, also an empty one: what is heard can be compared with it. Where training would not take the
        utterance, or has a class for what it does not know, there is a score and no loss."""
        features = usable_features(self.features, utterance.samples, utterance.key)
        self._check_frames(utterance, features, [])
        targets: list[int] = []
        try:
            targets = self._targets(utterance)
            if self.tokenizer.unknown in targets:
                raise BadDataError(utterance.key, "outside the vocabulary", utterance.text[:60])
            self._check_frames(utterance, features, targets)
        except BadDataError as error:
            return self._example(utterance, features, targets, error.problem)
        return self._example(utterance, features, targets)

    def _targets(self, utterance: Utterance) -> list[int]:
        try:
            return self.tokenizer.encode(utterance.text)
        except OutOfVocabularyError as error:
            raise BadDataError(utterance.key, "character outside the vocabulary", str(error)) from None

    def _check_frames(self, utterance: Utterance, features: torch.Tensor, targets: Sequence[int]) -> None:
        frames = self.output_length(len(features))
        repeats = sum(a == b for a, b in pairwise(targets))
        needed = max(self.least_frames(len(targets)), len(targets) + repeats if self.needs_ctc_path else 1)
        if frames < needed:
            detail = f"{frames} encoder frames for {len(targets)} labels, at least {needed} needed"
            raise BadDataError(utterance.key, "too few frames", detail)

    def _example(
        self, utterance: Utterance, features: torch.Tensor, targets: Sequence[int], without_loss: BadData | None = None
    ) -> Example:
        text = self.tokenizer.normalise(utterance.text)
        labels = torch.tensor(targets, dtype=torch.int64)
        return Example(features, labels, utterance.key, text, utterance.speaker, without_loss)


def usable_features(features: Features, samples: np.ndarray, key: str) -> torch.Tensor:
    """The features (F, M) of an utterance; BadDataError where they are not finite, as for samples of 1e30."""
    found = features(samples)
    if not torch.isfinite(found).all():
        raise BadDataError(key, "features that are not finite", f"largest sample {np.abs(samples).max():g}")
    return found


class TrainingExamples(Dataset):
    """Examples by (epoch, index). Instead of an unusable utterance its next usable neighbour that is not longer is taken, so
    that batches stay full, equal on all ranks, and within their seconds; which ones those are goes to `bad`."""

    def __init__(self, corpus: Corpus, prepare: Preparation, bad: BadDataLog):
        self.corpus = corpus
        self.prepare = prepare
        self.bad = bad

    def __len__(self) -> int:
        return len(self.corpus)

    def __getitem__(self, where: tuple[int, int]) -> Example:
        epoch, index = where
        for other in chain([index], self._instead(epoch, index)):
            try:
                return self.prepare(self.corpus.utterance(epoch, other))
            except BadDataError as error:
                self.bad.add(error.problem)
        raise UserError(f"not one utterance of the training data can be used\n{self.bad.report()}".rstrip())

    def _instead(self, epoch: int, index: int) -> Iterator[int]:
        """All others: first, from `index` on, those that are not longer, then the rest from the shortest to the longest."""
        seconds = partial(self.corpus.seconds, epoch)
        most = seconds(index)
        others = [(index + offset) % len(self.corpus) for offset in range(1, len(self.corpus))]
        yield from (other for other in others if seconds(other) <= most)
        yield from sorted((other for other in others if seconds(other) > most), key=seconds)


class EvaluationExamples(Dataset):
    """The examples of a corpus that can be scored, all made at once; recordings that are unusable go to `bad`."""

    def __init__(self, corpus: Corpus, prepare: Preparation, bad: BadDataLog):
        self.examples: list[Example] = []
        self.bad = bad
        for index in bar(range(len(corpus)), "reading utterances"):
            try:
                self.examples.append(prepare.to_score(corpus.utterance(0, index)))
            except BadDataError as error:
                bad.add(error.problem)

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> Example:
        return self.examples[index]


def collate(examples: Sequence[Example]) -> Batch:
    """Pad examples into a batch.

    Returns:
        `features` (B, F, M), `feature_lengths` (B,), `targets` (B, U), `target_lengths` (B,), and the lists `keys`,
        `texts`, `speakers`, `without_loss`.
    """
    features = torch.nn.utils.rnn.pad_sequence([example.features for example in examples], batch_first=True)
    targets = torch.nn.utils.rnn.pad_sequence([example.targets for example in examples], batch_first=True)
    return {
        "features": features,  # (B, F, M)
        "feature_lengths": torch.tensor([len(example.features) for example in examples]),
        "targets": targets,  # (B, U)
        "target_lengths": torch.tensor([len(example.targets) for example in examples]),
        "keys": [example.key for example in examples],
        "texts": [example.text for example in examples],
        "speakers": [example.speaker for example in examples],
        "without_loss": [example.without_loss for example in examples],
    }
