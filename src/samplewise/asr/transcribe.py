"""Text of sound files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from samplewise.asr.audio import read_audio
from samplewise.asr.checkpoint import Recogniser
from samplewise.asr.decode import search
from samplewise.asr.examples import usable_features
from samplewise.asr.problems import BadData, BadDataError, named
from samplewise.asr.progress import silent

Say = Callable[[str], None]


def transcribe(
    recogniser: Recogniser, paths: Sequence[str | Path], beam: int | None = None, say: Say = silent
) -> Iterator[tuple[str, str | BadData]]:
    """Each path with its text, or with what is wrong with it. Files are decoded one at a time, as they come; with `beam`
    not by the recipe's. `say` takes what has to be said beside a text."""
    for path in paths:
        found: str | BadData
        try:
            with named(str(path), "cannot be transcribed"):  # too little memory for a very long one, say
                found = transcribe_file(recogniser, path, beam, say)
        except BadDataError as error:
            found = error.problem
        yield str(path), found


def transcribe_file(recogniser: Recogniser, path: str | Path, beam: int | None = None, say: Say = silent) -> str:
    """The text of one recording of any sampling rate and number of channels.

    Raises:
        BadDataError: it cannot be read, is silent, not finite, or shorter than one encoder frame.
    """
    samples = read_audio(path, recogniser.features.sample_rate)
    features = usable_features(recogniser.features, samples, str(path))  # (F, M)
    if recogniser.model.encoder.output_length(len(features)) < 1:
        raise BadDataError(str(path), "too few frames", f"{len(samples) / recogniser.features.sample_rate:.3f} s")
    device = next(recogniser.model.parameters()).device
    lengths = torch.tensor([len(features)], device=device)
    options = recogniser.decoding(beam)
    found = search(recogniser.model, features.unsqueeze(0).to(device), lengths, options)
    if capped := found.capped[0]:
        bound = f"decoding.max_symbols={options.max_symbols} labels were emitted in {capped} encoder frames"
        say(f"{path}: {bound}: more may have been said there")
    return recogniser.run.tokenizer.decode(found[0])
