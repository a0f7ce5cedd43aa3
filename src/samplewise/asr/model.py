"""The recogniser: an encoder of the features, a predictor over the labels, and `samplewise.Joiner` between them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from samplewise import Joiner, SampledVocabulary, sample_vocabulary
from samplewise.asr.augment import SpecAugment
from samplewise.asr.conformer import ConformerEncoder
from samplewise.asr.encoder import Encoder
from samplewise.asr.errors import UserError
from samplewise.asr.moves import moves_of
from samplewise.asr.predictor import make_predictor
from samplewise.asr.recipe import LSTMOptions, Recipe
from samplewise.asr.tokenizer import BLANK


class LSTMEncoder(Encoder):
    """A bidirectional LSTM over stacked frames: `stack` feature frames side by side are one encoder frame.

    Each direction is a `torch.nn.LSTM` of its own and the backward one reads the utterance from its own last frame, so
    that padding is never seen: an utterance is encoded the same whatever stands beside it. (On CPUs this takes half
    the time of a packed sequence.)

    Args:
        dim: number of features of a frame.
        options: sizes.
    """

    def __init__(self, dim: int, options: LSTMOptions):
        super().__init__()
        self.stack = options.stack
        self.dim = 2 * options.hidden
        self.depth = options.layers
        widths = [dim * options.stack] + [self.dim] * (options.layers - 1)
        self.forwards = nn.ModuleList(nn.LSTM(width, options.hidden, batch_first=True) for width in widths)
        self.backwards = nn.ModuleList(nn.LSTM(width, options.hidden, batch_first=True) for width in widths)
        self.dropout = nn.Dropout(options.dropout)

    def output_length(self, frames: int) -> int:
        return frames // self.stack

    def forward(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        outputs, lengths = self.layers(features, lengths)
        return outputs[-1], lengths

    def layers(self, features: Tensor, lengths: Tensor) -> tuple[list[Tensor], Tensor]:
        batch, frames, dim = features.shape
        steps = frames // self.stack
        x = features[:, : steps * self.stack].reshape(batch, steps, dim * self.stack)  # (B, T, M*stack)
        lengths = lengths // self.stack
        if steps == 0:  # torch.nn.LSTM refuses an empty sequence
            return [x.new_zeros(batch, 0, self.dim)] * self.depth, lengths
        mirror = mirrored(lengths, steps)  # (B, T)
        outputs = []
        for ahead, behind in zip(self.forwards, self.backwards, strict=True):
            forth, _ = ahead(x)  # (B, T, H)
            back, _ = behind(reorder(x, mirror))
            x = self.dropout(torch.cat([forth, reorder(back, mirror)], dim=-1))  # (B, T, 2H)
            outputs.append(x)
        return outputs, lengths


def mirrored(lengths: Tensor, steps: int) -> Tensor:
    """For every frame the one at the same distance from the other end of its utterance; padding stays. (B, T)"""
    frame = torch.arange(steps, device=lengths.device)
    last = lengths[:, None] - 1
    return torch.where(frame <= last, last - frame, frame)


def reorder(x: Tensor, order: Tensor) -> Tensor:
    """x (B, T, E) with the frames of each utterance in the order (B, T)."""
    return x.gather(1, order.unsqueeze(-1).expand(-1, -1, x.shape[-1]))


class Transducer(nn.Module):
    """Encoder, predictor, joiner, SpecAugment and a CTC head where the recipe asks for them.

    `forward` returns losses: the joint and the loss are one step of `Joiner.loss`, and the 4-D logits never exist.

    Args:
        recipe: sizes, and how the loss is computed.
        dim: number of features of a frame.
        vocab_size: number of classes, blank included.

    Attributes:
        class_counts: how often each class (V,) occurs in the training texts; needed to sample by it.
        moves: how its symbols go through the lattice, for the searches.
    """

    class_counts: Tensor | None

    def __init__(self, recipe: Recipe, dim: int, vocab_size: int):
        super().__init__()
        self.options = recipe.loss
        self.sampling = recipe.sampling
        self.vocab_size = vocab_size
        self.augment = SpecAugment(recipe.augment) if recipe.augment is not None else None
        self.ctc = recipe.ctc
        self.encoder: Encoder = ENCODERS[recipe.encoder.kind](dim, recipe.encoder)
        self.predictor = make_predictor(vocab_size, recipe.predictor)
        topology = recipe.loss.structure(vocab_size)
        self.moves = moves_of(topology, BLANK)
        self.joiner = Joiner(
            self.encoder.dim,
            self.predictor.dim,
            recipe.joiner.dim,
            vocab_size + len(recipe.loss.big_blanks),
            activation=recipe.joiner.activation,
            topology=topology,
            blank=BLANK,
            blank_head=recipe.joiner.blank_head,
            dropout=recipe.joiner.dropout,
        )
        self.ctc_head = nn.Linear(self.encoder.dim, vocab_size) if recipe.ctc.weight > 0 else None
        if self.ctc.layers and max(self.ctc.layers) >= self.encoder.depth:
            raise UserError(
                f"ctc.layers: {list(self.ctc.layers)} must be intermediate layers of the encoder, which gives "
                + (f"1 to {self.encoder.depth - 1}" if self.encoder.depth > 1 else "none")
            )
        self.register_buffer("class_counts", None, persistent=False)

    def forward(
        self,
        features: Tensor,
        feature_lengths: Tensor,
        targets: Tensor,
        target_lengths: Tensor,
        generator: torch.Generator | None = None,
    ) -> dict[str, Tensor]:
        """Losses of a batch by name: features (B, F, M), feature_lengths (B,), targets (B, U), target_lengths (B,).

        `loss` is what is minimised; of its parts `transducer` is over all classes, `sampled` over sampled ones, and `ctc`
        that of the CTC head. Classes are sampled in training mode only, drawn with `generator`; `classes` is their mean number.
        """
        if self.augment is not None:
            features = self.augment(features, feature_lengths)
        if self.ctc.layers:
            layers, encoder_lengths = self.encoder.layers(features, feature_lengths)  # (B, T, E) each
        else:
            encoder_out, encoder_lengths = self.encoder(features, feature_lengths)
            layers = [encoder_out]
        log_probs = None
        if self.ctc_head is not None:
            log_probs = self.ctc_head(layers[-1]).float().log_softmax(dim=-1)  # (B, T, V)
        vocabulary = None
        if self.sampling is not None and self.training:
            vocabulary = self._sample(targets, target_lengths, log_probs, encoder_lengths, generator)
        transducer = self.joiner.loss(
            layers[-1],
            self.predictor(targets),  # (B, U+1, P)
            targets,
            encoder_lengths,
            target_lengths,
            reduction="mean",
            method=self.options.method,
            memory_budget=self.options.memory_budget,
            fastemit_lambda=self.options.fastemit_lambda,
            delay_penalty=self.options.delay_penalty,
            vocabulary=vocabulary,
        )
        losses = {"loss": transducer, "transducer" if vocabulary is None else "sampled": transducer.detach()}
        if vocabulary is not None:
            losses["classes"] = vocabulary.sizes.double().mean()
        if log_probs is not None:
            ctc = self._ctc(log_probs, layers, targets, encoder_lengths, target_lengths)
            losses["loss"] = transducer + self.ctc.weight * ctc
            losses["ctc"] = ctc.detach()
        return losses

    def _ctc(
        self, log_probs: Tensor, layers: list[Tensor], targets: Tensor, encoder_lengths: Tensor, target_lengths: Tensor
    ) -> Tensor:
        """CTC loss of the last layer, mixed with those of the intermediate ones."""
        assert self.ctc_head is not None
        last = ctc_loss(log_probs, targets, encoder_lengths, target_lengths)
        if not self.ctc.layers:
            return last
        inner = [self.ctc_head(layers[number - 1]).float().log_softmax(dim=-1) for number in self.ctc.layers]
        between = torch.stack([ctc_loss(each, targets, encoder_lengths, target_lengths) for each in inner]).mean()
        share = self.ctc.intermediate_weight
        return (1 - share) * last + share * between

    def _sample(
        self,
        targets: Tensor,
        target_lengths: Tensor,
        log_probs: Tensor | None,
        encoder_lengths: Tensor,
        generator: torch.Generator | None,
    ) -> SampledVocabulary:
        """The classes of this batch's loss."""
        assert self.sampling is not None
        by_ctc = self.sampling.negatives == "ctc" and log_probs is not None
        return sample_vocabulary(
            targets,
            target_lengths,
            self.vocab_size,
            self.sampling.size,
            blank=BLANK,
            scope=self.sampling.scope,
            ctc_log_probs=log_probs.detach() if by_ctc and log_probs is not None else None,
            ctc_lengths=encoder_lengths if by_ctc else None,
            weights=self.class_counts if self.sampling.negatives == "unigram" else None,
            correction=self.sampling.correction,
            generator=generator,
        )


def ctc_loss(log_probs: Tensor, targets: Tensor, encoder_lengths: Tensor, target_lengths: Tensor) -> Tensor:
    """Mean over the utterances of the CTC loss of log-probabilities (B, T, V)."""
    losses = functional.ctc_loss(
        log_probs.transpose(0, 1), targets, encoder_lengths, target_lengths, blank=BLANK, reduction="none", zero_infinity=True
    )
    return losses.mean()


ENCODERS: dict[str, Callable[..., Encoder]] = {"lstm": LSTMEncoder, "conformer": ConformerEncoder}
