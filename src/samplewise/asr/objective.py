"""What a recipe minimises: the transducer loss of a topology, full or over sampled classes, and auxiliary CTC losses.

Token-and-duration transducers: arXiv 2304.06795; big blanks: arXiv 2211.03541; HAT: arXiv 2003.07705. Sampled softmax for
transducers, its form for minibatches, and sampling by a CTC head: arXiv 2203.16868. CTC losses of intermediate encoder layers:
arXiv 2102.03216.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from samplewise import topology as topologies
from samplewise.asr.typed import Count, Options, Range, Share, Weight
from samplewise.choices import Method
from samplewise.errors import TransducerError
from samplewise.planning.budget import parse_budget
from samplewise.topology import Topology

DURATIONS = {"tdt": (0, 1, 2, 3, 4), "multi_blank": (2, 4, 8)}  # the defaults: those of the papers' recipes


@dataclass(frozen=True)
class LossOptions(Options):
    """How `samplewise.transducer_loss` is called.

    The loss is the mean over the utterances of the batch; batches are equal on all ranks and in all accumulation
    steps, so the mean over everything is the mean of these means.

    Attributes:
        method: see `samplewise.transducer_loss`.
        memory_budget: workspace of the joint and the loss, bytes or text such as 64MiB; null leaves the choice to it.
        fastemit_lambda: weight of FastEmit; it makes labels come earlier, which matters to an encoder that streams.
        delay_penalty: added to a label's log-probability for each frame that it comes before the middle of the utterance (k2).
        topology: what arcs leave a node of the lattice, and over which softmaxes; see `samplewise.topology`.
        durations: tdt: frames that a token may go on; null: 0 to 4.
        big_blank_durations: multi_blank: frames of each big blank; null: 2, 4 and 8. Each is a class beside the tokenizer's.
        sigma: tdt, multi_blank: taken from every token's log-probability in training ("logit under-normalisation"), so that
            long durations get a chance.
    """

    method: Method = "auto"
    memory_budget: Annotated[int, Range(1, 1 << 50)] | str | None = None
    fastemit_lambda: Weight = 0.0
    delay_penalty: Weight = 0.0
    topology: Literal["regular", "modified", "constrained", "hat", "multi_blank", "tdt"] = "regular"
    durations: tuple[Annotated[int, Range(0, 1000)], ...] | None = None
    big_blank_durations: tuple[Annotated[int, Range(2, 1000)], ...] | None = None
    sigma: Weight = 0.0

    def conflicts(self) -> Iterator[str]:
        try:
            parse_budget(self.memory_budget)
        except TransducerError as error:
            yield str(error)
        for name, owner in (("durations", "tdt"), ("big_blank_durations", "multi_blank")):
            given = getattr(self, name)
            if given is None:
                continue
            if self.topology != owner:
                yield f"{name} is a key of topology {owner}, this one is {self.topology}"
            elif not given or len(set(given)) < len(given):
                yield f"{name} must be different numbers, one or more, got {list(given)}"
        if self.topology == "tdt" and self.durations and 1 not in self.durations:
            yield f"durations must have 1 among them, got {list(self.durations)}: no path would end on some numbers of frames"
        if self.sigma and self.topology not in DURATIONS:
            yield f"sigma is a key of topologies {' and '.join(DURATIONS)}, this one is {self.topology}"

    @property
    def big_blanks(self) -> tuple[int, ...]:
        """The frames of each class that the output layer has beside those of the tokenizer."""
        return (self.big_blank_durations or DURATIONS["multi_blank"]) if self.topology == "multi_blank" else ()

    def structure(self, classes: int) -> Topology:
        """The topology of a model whose tokenizer has so many classes; those of big blanks follow them."""
        if self.topology == "tdt":
            return topologies.tdt(self.durations or DURATIONS["tdt"], self.sigma)
        if self.topology == "multi_blank":
            return topologies.multi_blank(self.big_blanks, range(classes, classes + len(self.big_blanks)), self.sigma)
        return topologies.named(self.topology)


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
