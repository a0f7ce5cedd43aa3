"""`samplewise evaluate`: a checkpoint on the built-in digit strings or on a manifest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from samplewise import strict_json
from samplewise.asr.checkpoint import Recogniser, load_recogniser
from samplewise.asr.corpora import digit_test, stored_dim, with_texts
from samplewise.asr.corpus import Corpus, ManifestCorpus, read_entries, read_manifest
from samplewise.asr.errors import UserError
from samplewise.asr.evaluate import Evaluation, evaluate
from samplewise.asr.examples import EvaluationExamples
from samplewise.asr.feature_files import FeatureCorpus, parse_feature_entry
from samplewise.asr.problems import BadDataLog
from samplewise.asr.progress import silent
from samplewise.asr.recipe import FeatureFilesOptions, ManifestOptions
from samplewise.asr.texts import Normalisation

DIGITS = "digits"
Say = Callable[[str], None]


def score(
    checkpoint: str,
    corpus: str,
    *,
    data: str | None = None,
    split: str | None = None,
    beam: int | None = None,
    normalisation: Normalisation | None = None,
    texts: bool = False,
    as_json: bool = False,
    say: Say = print,
) -> Evaluation:
    """Evaluate a checkpoint and say the word error rate.

    Args:
        checkpoint: a run directory or a checkpoint in one.
        corpus: `digits`, a manifest, or its directory.
        data: where the digit recordings are.
        split: take only those lines of the manifest.
        beam: not the recipe's.
        normalisation: of the texts that are compared, not the recipe's.
        texts: say every utterance that is not right.
        as_json: say numbers as one JSON object, and nothing else.
    """
    recogniser = load_recogniser(checkpoint)
    options = recogniser.decoding(beam)  # before the corpus is read: a wrong beam shows at once
    options = replace(options, normalisation=normalisation or options.normalisation)
    bad = BadDataLog(recogniser.run.recipe.on_bad_data)
    quiet = silent if as_json else say
    quiet(f"checkpoint: {recogniser.directory}")
    utterances = find_corpus(recogniser, corpus, data, split, bad, quiet)
    examples = EvaluationExamples(utterances, recogniser.preparation(), bad)
    evaluation = evaluate(recogniser.model, examples, recogniser.run.tokenizer.decode, options)
    if as_json:
        say(strict_json.text(strict_json.told({**evaluation.to_plain(), "skipped": bad.counts()})))
        return evaluation
    for line in lines(evaluation, texts):
        say(line)
    if report := bad.report():
        say(report)
    return evaluation


def find_corpus(recogniser: Recogniser, corpus: str, data: str | None, split: str | None, bad: BadDataLog, say: Say) -> Corpus:
    rate = recogniser.features.sample_rate
    if corpus == DIGITS and not Path(corpus).exists():
        return digit_test(recogniser.run.recipe, data, rate, bad, say)
    if data is not None:
        raise UserError("--data says where the digit recordings are; it goes with DATA `digits` only")
    recipe = recogniser.run.recipe
    if isinstance(recipe.data, FeatureFilesOptions):
        entries = read_entries(corpus, bad, split, parse_feature_entry)
        return FeatureCorpus(entries, stored_dim(recipe), train=False)
    found = read_manifest(corpus, bad, split)
    return ManifestCorpus(with_texts(recipe.data, found) if isinstance(recipe.data, ManifestOptions) else found, rate)


def lines(evaluation: Evaluation, texts: bool) -> list[str]:
    """The result as text: wrong utterances if wanted, speakers, the loss, what decoding took, what has to be said beside it,
    and the errors."""
    found = []
    for key, reference, hypothesis in evaluation.texts if texts else ():
        if reference != hypothesis:
            found += [key, f"  said:  {reference}", f"  heard: {hypothesis}"]
    found += [f"{name}: {errors}" for name, errors in evaluation.by_speaker.items()]
    found += [f"loss: {evaluation.loss()}", f"decoding: {evaluation.work()}"]
    return [*found, *evaluation.notes(), str(evaluation.errors)]
