"""Predictors: what the labels so far say about the next one.

The stateless one is that of Ghodsi et al., "RNN-Transducer with stateless prediction network" (ICASSP 2020).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from samplewise.asr.options import PredictorOptions
from samplewise.asr.tokenizer import BLANK

State = tuple[Tensor, ...]


class Predictor(nn.Module):
    """Encodes every beginning of a label sequence. The start symbol is blank, in training and in decoding alike.

    Args:
        vocab_size: number of classes, blank included.
        options: kind and sizes.
    """

    def __init__(self, vocab_size: int, options: PredictorOptions):
        super().__init__()
        self.dim = options.hidden
        self.embedding = nn.Embedding(vocab_size, options.embedding)
        self.dropout = nn.Dropout(options.dropout)

    def forward(self, targets: Tensor) -> Tensor:
        """Targets (B, U) to (B, U+1, dim): row u has seen the start symbol and u labels."""
        return self.dropout(self.encode(self.dropout(self.embedding(functional.pad(targets, (1, 0), value=BLANK)))))

    def encode(self, embedded: Tensor) -> Tensor:
        """Embedded start symbol and labels (B, U+1, E) to (B, U+1, dim)."""
        raise NotImplementedError

    def start(self, batch: int) -> tuple[Tensor, State]:
        """Output (B, dim) and state before the first label."""
        return self.step(torch.full((batch,), BLANK, device=self.embedding.weight.device), None)

    def step(self, labels: Tensor, state: State | None) -> tuple[Tensor, State]:
        """Advance by one label (B,): output (B, dim) and the state after it, tensors (N, B, width)."""
        raise NotImplementedError


class RecurrentPredictor(Predictor):
    """An LSTM or a GRU over the labels so far."""

    def __init__(self, vocab_size: int, options: PredictorOptions):
        super().__init__(vocab_size, options)
        kind = {"lstm": nn.LSTM, "gru": nn.GRU}[options.kind]
        self.rnn = kind(options.embedding, options.hidden, options.layers, batch_first=True)

    def encode(self, embedded: Tensor) -> Tensor:
        return self.rnn(embedded)[0]

    def step(self, labels: Tensor, state: State | None) -> tuple[Tensor, State]:
        given = state if state is None or len(state) > 1 else state[0]  # a GRU takes its one tensor bare
        output, after = self.rnn(self.embedding(labels).unsqueeze(1), given)
        return output.squeeze(1), after if isinstance(after, tuple) else (after,)


class StatelessPredictor(Predictor):
    """The last few labels alone, their embeddings mixed by a convolution."""

    def __init__(self, vocab_size: int, options: PredictorOptions):
        super().__init__(vocab_size, options)
        self.context = options.context
        self.mix = nn.Conv1d(options.embedding, options.hidden, options.context)

    def encode(self, embedded: Tensor) -> Tensor:
        before = functional.pad(embedded, (0, 0, self.context - 1, 0))
        return self.mix(before.transpose(1, 2)).transpose(1, 2).relu()

    def step(self, labels: Tensor, state: State | None) -> tuple[Tensor, State]:
        new = self.embedding(labels).unsqueeze(0)  # (1, B, E)
        before = new.new_zeros(self.context - 1, *new.shape[1:]) if state is None else state[0]
        seen = torch.cat([before, new])  # (context, B, E)
        return self.mix(seen.permute(1, 2, 0)).squeeze(2).relu(), (seen[1:],)


def make_predictor(vocab_size: int, options: PredictorOptions) -> Predictor:
    """The predictor of a kind."""
    return (StatelessPredictor if options.kind == "stateless" else RecurrentPredictor)(vocab_size, options)
