"""Decoding of a batch, frame by frame: what a recipe asks for, and greedy search."""

from __future__ import annotations

import torch
from torch import Tensor

from samplewise.asr.beam import Decoded, beam_search
from samplewise.asr.model import Transducer
from samplewise.asr.predictor import State
from samplewise.asr.recipe import DecodingOptions
from samplewise.asr.tokenizer import BLANK


def search(model: Transducer, features: Tensor, lengths: Tensor, options: DecodingOptions) -> Decoded:
    """The labels of each utterance, features (B, F, M) of lengths (B,), by the search that the options name."""
    if options.beam == 1:
        return greedy(model, features, lengths, options.max_symbols)
    return beam_search(model, features, lengths, options.beam, options.max_symbols)


@torch.no_grad()
def greedy(model: Transducer, features: Tensor, lengths: Tensor, max_symbols: int = 5) -> Decoded:
    """The best label at every node of one path through the lattice, all utterances side by side.

    In each encoder frame labels are emitted until blank is the best class, at most `max_symbols` of them. The
    predictor advances on labels only; blank leaves it where it is.

    Args:
        model: in evaluation mode.
        features: (B, F, M).
        lengths: (B,) feature frames.
        max_symbols: bound on the labels of one frame.

    Returns:
        The labels of each utterance.
    """
    encoder_out, encoder_lengths = model.encoder(features, lengths)  # (B, T, E)
    batch = len(encoder_out)
    predicted, state = model.predictor.start(batch)  # (B, P)
    found: list[list[int]] = [[] for _ in range(batch)]
    capped = [0] * batch
    for frame in range(int(encoder_lengths.max()) if batch else 0):
        active = frame < encoder_lengths  # (B,)
        for emitted in range(1, max_symbols + 1):
            logits = model.joiner(encoder_out[:, frame : frame + 1], predicted.unsqueeze(1))  # (B, 1, 1, V)
            best = logits.reshape(batch, -1).argmax(dim=-1)  # (B,)
            active = active & (best != BLANK)
            chosen = active.nonzero().squeeze(1).tolist()
            if not chosen:
                break
            for utterance in chosen:
                found[utterance].append(int(best[utterance]))
                capped[utterance] += emitted == max_symbols
            advanced, after = model.predictor.step(best, state)
            predicted = torch.where(active[:, None], advanced, predicted)
            state = choose(active, after, state)
    return Decoded(found, capped)


def choose(active: Tensor, after: State, before: State) -> State:
    """The state after a label for the utterances that emitted one, the old state for the others."""
    return tuple(torch.where(active[None, :, None], new, old) for new, old in zip(after, before, strict=True))
