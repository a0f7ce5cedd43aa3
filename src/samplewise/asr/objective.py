"""What a recipe minimises: the transducer loss, full or over sampled classes, and auxiliary CTC losses.

Sampled softmax for transducers, its form for minibatches, and sampling by a CTC head: arXiv 2203.16868. CTC losses of
intermediate encoder layers: arXiv 2102.03216.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from samplewise.asr.typed import Count, Options, Range, Share, Weight
from samplewise.errors import TransducerError
from samplewise.plan.budget import parse_budget


@dataclass(frozen=True)
class LossOptions(Options):
    """How `samplewise.transducer_loss` is called.

    The loss is the mean over the utterances of the batch; batches are equal on all ranks and in all accumulation
    steps, so the mean over everything is the mean of these means.

    Attributes:
        method: see `samplewise.transducer_loss`.
        memory_budget: workspace of the joint and the loss, bytes or text such as 64MiB; null leaves the choice to it.
        fastemit_lambda: weight of FastEmit; it makes labels come earlier, which matters to an encoder that streams.
    """

    method: Literal["auto", "guided", "tiled", "samplewise", "batched"] = "auto"
    memory_budget: Annotated[int, Range(1, 1 << 50)] | str | None = None
    fastemit_lambda: Weight = 0.0

    def conflicts(self) -> Iterator[str]:
        try:
            parse_budget(self.memory_budget)
        except TransducerError as error:
            yield str(error)


@dataclass(frozen=True)
class CTCOptions(Options):
    """Auxiliary CTC losses of one linear head on the encoder, which may also say which classes to sample.

    loss = transducer + weight * ((1 - s) * CTC(last layer) + s * mean over `layers` of CTC(layer)),
    s = intermediate_weight if `layers` names any, else 0 (arXiv 2102.03216, eq. 12 and 13).

    Attributes:
        weight: of all CTC losses together; 0 leaves the head out.
        layers: intermediate encoder layers, counted from 1, that the head is put on, too.
        intermediate_weight: share of the intermediate layers in the CTC loss.
    """

    weight: Weight = 0.3
    layers: tuple[Annotated[int, Range(1, 1000)], ...] = ()
    intermediate_weight: Share = 0.5

    def conflicts(self) -> Iterator[str]:
        if len(set(self.layers)) < len(self.layers):
            yield f"layers must be different numbers, got {list(self.layers)}"
        if self.layers and self.weight == 0:
            yield f"layers {list(self.layers)} get no CTC loss, for weight is 0"


@dataclass(frozen=True)
class SamplingOptions(Options):
    """Training on a transducer loss over sampled classes, `samplewise.sample_vocabulary`; evaluation is never sampled.

    Attributes:
        size: classes in all: blank, the labels, and as many others as are left.
        scope: the batch one set, or every utterance its own classes.
        negatives: where the others come from: all alike; the CTC head's posterior summed over frames; or the classes'
            frequency in the training texts.
        correction: `logq` makes up for classes being drawn more or less often; null is the paper's form.
    """

    size: Count
    scope: Literal["utterance", "batch"] = "batch"
    negatives: Literal["uniform", "ctc", "unigram"] = "ctc"
    correction: Literal["logq"] | None = None
