"""Options of the parts that are chosen by their kind and have several keys; recipe.py puts them into a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from samplewise.asr.typed import at_least_zero, positive, share


@dataclass(frozen=True)
class SentencePieceOptions:
    """Pieces of words, learnt from the training texts when a run begins (Kudo and Richardson 2018, arXiv 1808.06226).

    Attributes:
        vocab_size: number of classes; blank and a class for unknown characters are among them.
        model: how the pieces are found.
        coverage: share of the characters of the training texts that get pieces; the others are unknown.
        lowercase: texts are put in lower case first.
    """

    kind: Literal["sentencepiece"] = "sentencepiece"
    vocab_size: int = 500
    model: Literal["unigram", "bpe"] = "unigram"
    coverage: float = 1.0
    lowercase: bool = True

    def __post_init__(self) -> None:
        positive(vocab_size=self.vocab_size)
        if not 0.9 <= self.coverage <= 1:
            raise ValueError(f"coverage must lie between 0.9 and 1, got {self.coverage}")


@dataclass(frozen=True)
class ConformerOptions:
    """A Conformer over features whose frame rate is lowered by strided convolutions.

    Attributes:
        layers, hidden, heads: number of blocks, their width, attention heads of a block.
        feed_forward: width inside the feed-forward modules.
        kernel: frames that the convolution of a block sees, an odd number.
        subsampling: feature frames of one encoder frame, a power of 2.
        channels: of the convolutions that do this.
        dropout: everywhere in the encoder.
    """

    kind: Literal["conformer"] = "conformer"
    layers: int = 12
    hidden: int = 256
    heads: int = 4
    feed_forward: int = 1024
    kernel: int = 31
    subsampling: Literal[2, 4, 8] = 4
    channels: int = 256
    dropout: float = 0.1

    def __post_init__(self) -> None:
        positive(layers=self.layers, hidden=self.hidden, heads=self.heads, channels=self.channels)
        positive(feed_forward=self.feed_forward, kernel=self.kernel)
        share(dropout=self.dropout)
        if self.hidden % self.heads or self.hidden % 2:
            raise ValueError(f"hidden must be even and a multiple of heads, got {self.hidden} and {self.heads}")
        if self.kernel % 2 == 0:
            raise ValueError(f"kernel must be odd, got {self.kernel}")


@dataclass(frozen=True)
class PredictorOptions:
    """A recurrent network over the labels so far, or a convolution over the last few.

    Attributes:
        embedding, hidden: width of a label's embedding and of the output.
        layers: lstm, gru: number of layers.
        context: stateless: labels that are seen, 1 or more.
        dropout: of the embeddings and of the output.
    """

    kind: Literal["lstm", "gru", "stateless"] = "lstm"
    embedding: int = 64
    hidden: int = 128
    layers: int = 1
    context: int = 2
    dropout: float = 0.1

    def __post_init__(self) -> None:
        positive(embedding=self.embedding, hidden=self.hidden, layers=self.layers, context=self.context)
        share(dropout=self.dropout)
        if self.kind == "stateless" and self.layers != 1:
            raise ValueError(f"a stateless predictor is one convolution: layers must be 1, got {self.layers}")
        if self.kind != "stateless" and self.context != 2:
            raise ValueError(f"context is a key of a stateless predictor, this one is {self.kind}: it sees all labels")


@dataclass(frozen=True)
class SpecAugmentOptions:
    """Masks on the features of training utterances.

    Attributes:
        frequency_masks, frequency_width: number of masks of an utterance, most bands of one.
        time_masks, time_width: number of masks of an utterance, most frames of one.
        time_share: a mask of time covers no more than this share of the utterance.
    """

    kind: Literal["spec_augment"] = "spec_augment"
    frequency_masks: int = 2
    frequency_width: int = 27
    time_masks: int = 5
    time_width: int = 100
    time_share: float = 0.05

    def __post_init__(self) -> None:
        at_least_zero(frequency_masks=self.frequency_masks, frequency_width=self.frequency_width)
        at_least_zero(time_masks=self.time_masks, time_width=self.time_width)
        if not 0 <= self.time_share <= 1:
            raise ValueError(f"time_share must lie between 0 and 1, got {self.time_share}")
