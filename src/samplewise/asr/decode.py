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
    """The best symbol at every node of one path through the lattice, all utterances side by side.

    A symbol goes on as many frames as its topology says: a blank one, a big blank its own number, a label none, or one where
    there is one symbol a frame; with TDT each goes on by its best duration, a blank by one at least. In a frame that a label
    does not leave there are at most `max_symbols`. The predictor advances on labels only. (The topology "constrained" is
    searched as "modified": the blank that a label pays is no choice of its own.)

    Args:
        model: in evaluation mode.
        features: (B, F, M).
        lengths: (B,) feature frames.
        max_symbols: bound on the labels of one frame.

    Returns:
        The labels of each utterance.
    """
    encoder_out, encoder_lengths = model.encoder(features, lengths)  # (B, T, E)
    batch, last = len(encoder_out), max(0, encoder_out.shape[1] - 1)
    predicted, state = model.predictor.start(batch)  # (B, P)
    found: list[list[int]] = [[] for _ in range(batch)]
    capped, steps = [0] * batch, [0] * batch
    every = torch.arange(batch, device=encoder_out.device)
    frame, emitted = torch.zeros_like(encoder_lengths), torch.zeros_like(encoder_lengths)  # where each stands; labels in it
    while (active := frame < encoder_lengths).any():  # (B,)
        here = encoder_out[every, frame.clamp(max=last)]  # (B, E)
        scores = model.joiner(here.unsqueeze(1), predicted.unsqueeze(1))  # (B, 1, 1, V + extra)
        symbols, durations = model.joiner.log_probs(scores.reshape(batch, -1), normalise=False)
        best = symbols.argmax(dim=-1)  # (B,)
        frames = model.moves.frames(best, None if durations is None else durations.argmax(dim=-1))
        labelled = active & ~model.moves.are_blanks(best)
        emitted = emitted + labelled
        full = labelled & (frames == 0) & (emitted == max_symbols)
        frames = torch.where(full, 1, frames)
        emitted = torch.where(frames > 0, 0, emitted)
        frame = frame + frames * active
        for utterance in active.nonzero().squeeze(1).tolist():
            steps[utterance] += 1
        chosen = labelled.nonzero().squeeze(1).tolist()
        if not chosen:
            continue
        for utterance in chosen:
            found[utterance].append(int(best[utterance]))
            capped[utterance] += int(full[utterance])
        advanced, after = model.predictor.step(best.masked_fill(~labelled, BLANK), state)
        predicted = torch.where(labelled[:, None], advanced, predicted)
        state = choose(labelled, after, state)
    return Decoded(found, capped, steps, encoder_lengths.tolist())


def choose(active: Tensor, after: State, before: State) -> State:
    """The state after a label for the utterances that emitted one, the old state for the others."""
    return tuple(torch.where(active[None, :, None], new, old) for new, old in zip(after, before, strict=True))
