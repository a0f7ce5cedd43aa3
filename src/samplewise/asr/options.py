"""Options of the parts that are chosen by their kind and have several keys; recipe.py puts them into a recipe."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from samplewise.asr.typed import CountOrNone, Dropout, Options, Range, Share, Size

Layers = Annotated[int, Range(1, 1000)]


@dataclass(frozen=True)
class SentencePieceOptions(Options):
    """Pieces of words, learnt from the training texts when a run begins (Kudo and Richardson 2018, arXiv 1808.06226).

    Attributes:
        vocab_size: number of classes; blank and a class for unknown characters are among them.
        model: how the pieces are found.
        coverage: share of the characters of the training texts that get pieces; the others are unknown.
        lowercase: texts are put in lower case first.
    """

    kind: Literal["sentencepiece"] = "sentencepiece"
    vocab_size: Annotated[int, Range(3, 1_000_000)] = 500
    model: Literal["unigram", "bpe"] = "unigram"
    coverage: Annotated[float, Range(0.9, 1)] = 1.0
    lowercase: bool = True


@dataclass(frozen=True)
class ConformerOptions(Options):
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
    layers: Layers = 12
    hidden: Size = 256
    heads: Size = 4
    feed_forward: Size = 1024
    kernel: Annotated[int, Range(1, 1001)] = 31
    subsampling: Literal[2, 4, 8] = 4
    channels: Size = 256
    dropout: Dropout = 0.1

    def conflicts(self) -> Iterator[str]:
        if self.hidden % self.heads or self.hidden % 2:
            yield f"hidden must be even and a multiple of heads, got {self.hidden} and {self.heads}"
        if self.kernel % 2 == 0:
            yield f"kernel must be odd, got {self.kernel}"


@dataclass(frozen=True)
class PredictorOptions(Options):
    """A recurrent network over the labels so far, or a convolution over the last few.

    Attributes:
        embedding, hidden: width of a label's embedding and of the output.
        layers: lstm, gru: number of layers.
        context: stateless: labels that are seen, 1 or more.
        dropout: of the embeddings and of the output.
    """

    kind: Literal["lstm", "gru", "stateless"] = "lstm"
    embedding: Size = 64
    hidden: Size = 128
    layers: Layers = 1
    context: Annotated[int, Range(1, 1000)] = 2
    dropout: Dropout = 0.1

    def conflicts(self) -> Iterator[str]:
        if self.kind == "stateless" and self.layers != 1:
            yield f"layers must be 1, got {self.layers}: a stateless predictor is one convolution"
        if self.kind != "stateless" and self.context != 2:
            yield f"context is a key of a stateless predictor, this one is {self.kind}: it sees all labels"


@dataclass(frozen=True)
class SpecAugmentOptions(Options):
    """Masks on the features of training utterances.

    Attributes:
        frequency_masks, frequency_width: number of masks of an utterance, most bands of one.
        time_masks, time_width: number of masks of an utterance, most frames of one.
        time_share: a mask of time covers no more than this share of the utterance.
    """

    kind: Literal["spec_augment"] = "spec_augment"
    frequency_masks: Annotated[int, Range(0, 1000)] = 2
    frequency_width: CountOrNone = 27
    time_masks: Annotated[int, Range(0, 1000)] = 5
    time_width: CountOrNone = 100
    time_share: Share = 0.05
