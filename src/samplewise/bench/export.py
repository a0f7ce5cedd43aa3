"""What the joint of a training run sees, at each of its checkpoints, as files of suite "trained" (joints.py)."""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from samplewise.asr.checkpoint import WEIGHTS, Recogniser, checkpoints, is_whole, load_recogniser, step_of
from samplewise.asr.corpora import make_corpora
from samplewise.asr.corpus import Corpus
from samplewise.asr.errors import UserError
from samplewise.asr.examples import EvaluationExamples, Example
from samplewise.asr.problems import BadDataLog
from samplewise.asr.progress import silent
from samplewise.asr.tokenizer import OutOfVocabularyError, Tokenizer
from samplewise.asr.writing import make_directory, write_bytes


def export_run(run: Path, directory: Path, data: str | None, labels: int, utterances: int) -> Iterator[Path]:
    """Write DIRECTORY/RECIPE_stepN.npz for every whole checkpoint of a run directory, or for one checkpoint.

    Args:
        run: of `samplewise train`, or a checkpoint in it.
        directory: is made.
        data: where the recordings of the recipe's test corpus are, if not where the recipe says.
        labels: test utterances, in their order, are joined until they have so many.
        utterances: joined ones in a file, fewer if the corpus ends.

    Raises:
        UserError: no checkpoint, no test corpus, or another activation than the tanh of the suite.
    """
    one = (run / WEIGHTS).is_file() and run.name.startswith("checkpoint-")
    found = [run] if one else [path for path in checkpoints(run) if is_whole(path)]
    if not found:
        raise UserError(f"{run} holds no whole checkpoint; `samplewise train` writes them")
    corpus = None
    for checkpoint in found:
        recogniser = load_recogniser(checkpoint)
        recipe = recogniser.run.recipe
        if recipe.joiner.activation != "tanh":
            raise UserError(f"{checkpoint}: the suite is of joints with tanh, this one has {recipe.joiner.activation}")
        corpus = corpus or corpus_of(recogniser, data)
        make_directory(directory)
        path = directory / f"{recipe.name}_step{step_of(checkpoint)}.npz"
        packed = io.BytesIO()
        np.savez_compressed(packed, **arrays_of(recogniser, corpus, labels, utterances))  # type: ignore[arg-type]
        write_bytes(path, packed.getbuffer())
        yield path


def corpus_of(recogniser: Recogniser, data: str | None) -> Corpus:
    recipe = recogniser.run.recipe
    corpora = make_corpora(recipe, data, recogniser.features.sample_rate, BadDataLog(recipe.on_bad_data), silent)
    if corpora.test is None:
        raise UserError(f"recipe {recipe.name} has no test corpus, whose utterances would be written")
    return corpora.test


@torch.no_grad()
def arrays_of(recogniser: Recogniser, corpus: Corpus, labels: int, utterances: int) -> dict[str, np.ndarray]:
    """Output layer and projected encodings, float16 (the bias float32)."""
    model, bad = recogniser.model, BadDataLog(recogniser.run.recipe.on_bad_data)
    examples = EvaluationExamples(corpus, recogniser.preparation(), bad).examples
    device = next(model.parameters()).device
    arrays = {"weight": half(model.joiner.output.weight), "bias": model.joiner.output.bias.float().cpu().numpy()}
    joined = joined_examples(
        [example for example in examples if example.without_loss is None], recogniser.run.tokenizer, labels
    )
    for i, (features, targets) in enumerate(islice(joined, utterances)):
        encoder_out, _ = model.encoder(features[None].to(device), torch.tensor([len(features)], device=device))  # (1, T, E)
        predictor_out = model.predictor(targets[None].to(device))  # (1, U+1, P)
        arrays[f"encoder_out_{i}"] = half(model.joiner.encoder_proj(encoder_out)[0])
        arrays[f"predictor_out_{i}"] = half(model.joiner.predictor_proj(predictor_out)[0])
        arrays[f"targets_{i}"] = targets.to(torch.int32).numpy()
    if "targets_0" not in arrays:
        raise UserError(f"not one usable test utterance\n{bad.report()}".rstrip())
    return arrays


def joined_examples(examples: list[Example], tokenizer: Tokenizer, labels: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Features (F, M) and targets (U,) of examples one after the other, so many together that they have `labels` labels."""
    some: list[Example] = []
    for number, example in enumerate(examples, 1):
        some.append(example)
        if sum(len(each.targets) for each in some) >= labels or number == len(examples):
            yield torch.cat([each.features for each in some]), joined_targets(some, tokenizer)
            some = []


def joined_targets(examples: list[Example], tokenizer: Tokenizer) -> torch.Tensor:
    """The texts with spaces between them, as far as the vocabulary has such."""
    try:
        joined = tokenizer.encode(" ".join(example.text for example in examples))
    except OutOfVocabularyError:
        joined = []
    if not joined or tokenizer.unknown in joined:
        return torch.cat([example.targets for example in examples])
    return torch.tensor(joined)


def half(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().to(torch.float16).cpu().numpy()
