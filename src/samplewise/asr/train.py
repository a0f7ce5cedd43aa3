"""`samplewise train`: from a recipe to a trained recogniser and its results."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from samplewise import strict_json
from samplewise.asr import meters
from samplewise.asr.checkpoint import RUN_FILE, Recogniser, Run, last_checkpoint, load_recogniser, make_preparation
from samplewise.asr.corpora import Corpora, make_corpora
from samplewise.asr.corpus import Corpus
from samplewise.asr.errors import UserError, WriteError
from samplewise.asr.evaluate import Evaluation, evaluate
from samplewise.asr.examples import EvaluationExamples, Preparation, TrainingExamples
from samplewise.asr.features import make_features
from samplewise.asr.memory import LossStep, describe, measure
from samplewise.asr.model import Transducer
from samplewise.asr.problems import BadDataLog
from samplewise.asr.progress import silent
from samplewise.asr.recipe import Recipe, recipe_to_plain
from samplewise.asr.results import RESULTS_FILE, command_line, commit, machine, versions
from samplewise.asr.run_directory import SKIPPED_FILE, check_directory, check_same, find_checkpoint, keep_run, occupied
from samplewise.asr.signals import FirstSignal, Terminated, terminated
from samplewise.asr.start import take_weights
from samplewise.asr.tokenizer import Tokenizer, class_counts, make_tokenizer
from samplewise.asr.trainer import Progress, StopOnSignal, TransducerTrainer, agreement, draw_apart
from samplewise.asr.writing import write_json
from samplewise.cache import expanded

STOPPING = "{}: finishing this step and saving a checkpoint; again to stop at once"
Say = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """How a training ended.

    Attributes:
        results: the contents of results.json; None if the run was stopped, and in processes other than the first.
        stopped_by: the number of the signal that stopped it, 0 if it ran to its end.
    """

    results: dict[str, Any] | None
    stopped_by: int


def train(recipe: Recipe, directory: Path, *, data: str | None, resume: bool, say: Say = print) -> Outcome:
    """Train by a recipe, evaluate, and write everything into a run directory.

    Args:
        recipe: what to do.
        directory: for checkpoints, log and results; new or empty, unless resumed.
        data: overrides where the data are looked for; see `sources.find_digits` and `ManifestOptions.root`.
        resume: go on from the last whole checkpoint in `directory`.
        say: takes the lines for the user; silent in all processes but the first.

    Raises:
        UserError: something has to be put right by the user.
    """
    main = int(os.environ.get("RANK", "0")) == 0
    if not main:
        start = last_checkpoint(directory, thorough=True) if resume else None
        return go(recipe, directory, start, data, resume, silent, main)
    check_directory(directory, resume)
    try:
        with occupied(directory), terminated():
            return go(recipe, directory, find_checkpoint(directory, resume, say), data, resume, say, main)
    except KeyboardInterrupt as error:
        say(f"interrupted. {way_on(directory)}")
        return Outcome(None, signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT)
    except WriteError as error:
        raise WriteError(f"{error}\n{way_on(directory)}") from None


def way_on(directory: Path) -> str:
    with_option = " with --resume" if (directory / RUN_FILE).exists() else ""
    return f"To go on: the same command{with_option} (run directory {directory})."


def go(
    recipe: Recipe, directory: Path, start: Path | None, data: str | None, resume: bool, say: Say, main: bool
) -> Outcome:  # fmt: skip
    """Train from a checkpoint, or from the beginning if it is None."""
    transformers.set_seed(recipe.seed)
    bad = BadDataLog(recipe.on_bad_data, directory / SKIPPED_FILE)
    features = make_features(recipe.features)
    corpora = make_corpora(recipe, data, features.sample_rate, bad, say)
    origin = {**corpora.description, "processes": int(os.environ.get("WORLD_SIZE", "1"))}
    source = recipe.training.start_from if start is None else None  # a checkpoint needs the other run no more
    before = load_recogniser(expanded(source)) if source is not None else None
    run = Run(recipe, find_tokenizer(recipe, corpora, before, directory if resume else None), origin)
    if main:
        check_same(run, directory, say)
    model, _ = run.make_model()
    if before is not None:
        for line in take_weights(model, before, recipe):
            say(line)
    if recipe.sampling is not None and recipe.sampling.negatives == "unigram":
        model.class_counts = class_counts(run.tokenizer, corpora.train.texts())
    prepare = make_preparation(run, model, features)
    valid, test = (usable(corpus, prepare, bad) for corpus in (corpora.valid, corpora.test))
    examples = TrainingExamples(corpora.train, prepare, bad)
    trainer = TransducerTrainer(model, run, directory, Progress(), examples, valid, say)
    draw_apart(recipe.seed, trainer.args.process_index)
    if main:
        keep_run(run, directory, say)
    say(announcement(run, model, corpora, trainer))
    stopped_by = run_trainer(trainer, start, say)
    if stopped_by:
        say(f"stopped after step {trainer.state.global_step} of {recipe.training.steps}; its checkpoint is saved.")
        say(way_on(directory))
        return Outcome(None, stopped_by)
    results = finish(trainer, run, directory, test, bad, say) if main else None
    return Outcome(results, 0)


def find_tokenizer(recipe: Recipe, corpora: Corpora, before: Recogniser | None, resumed: Path | None) -> Tokenizer:
    """That of the recogniser to start from, of the run to go on with (another version of a library might learn another from
    the same texts), or a new one."""
    if before is not None and recipe.training.start_with == "model":
        return before.run.tokenizer
    if resumed is not None and (resumed / RUN_FILE).is_file():
        return Run.load(resumed).tokenizer
    return make_tokenizer(recipe.tokenizer, corpora.train.texts())


def usable(corpus: Corpus | None, prepare: Preparation, bad: BadDataLog) -> EvaluationExamples | None:
    """The examples of a corpus that can be scored; None if there are none."""
    examples = EvaluationExamples(corpus, prepare, bad) if corpus is not None else None
    return examples if examples is not None and len(examples) else None


def announcement(run: Run, model: Transducer, corpora: Corpora, trainer: TransducerTrainer) -> str:
    training = run.recipe.training
    batches = training.accumulate * trainer.args.world_size
    size = f"{training.batch_size * batches} utterances"
    if training.batch_seconds is not None:
        size = f"up to {training.batch_seconds * batches:g} s of speech"
    return (
        f"model: {parameters(model):,} parameters, {run.tokenizer.size} classes; "
        f"training: {training.steps} steps of {size} on {trainer.args.device.type}, "
        f"{len(corpora.train)} utterances an epoch"
    )


def parameters(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def run_trainer(trainer: TransducerTrainer, start: Path | None, say: Say) -> int:
    """Train to the end, or to a signal whose number is returned."""
    agree = agreement(trainer.args.world_size, trainer.args.device)
    with FirstSignal((signal.SIGINT, signal.SIGTERM), say, STOPPING) as caught:
        stop = StopOnSignal(caught, agree)
        trainer.add_callback(stop)
        try:
            trainer.train(resume_from_checkpoint=str(start) if start is not None else None)
        except UserError as error:  # one of a data-loader worker carries that worker's traceback before its message
            raise type(error)(str(error).rpartition(f"{type(error).__name__}: ")[2]) from None
    if trainer.nonfinite.ended:
        raise UserError(trainer.nonfinite.ended)
    finished = trainer.state.global_step >= trainer.recipe.training.steps
    return 0 if finished else stop.stopped_by


def finish(
    trainer: TransducerTrainer, run: Run, directory: Path, test: EvaluationExamples | None, bad: BadDataLog, say: Say
) -> dict[str, Any]:
    """Evaluate, measure memory, write results.json, and say what came out."""
    recipe = run.recipe
    model = trainer.transducer
    results: dict[str, Any] = {
        "recipe": recipe.name,
        "command": command_line(),
        "commit": commit(),
        "seed": recipe.seed,
        "parameters": parameters(model),
        "classes": run.tokenizer.size,
        "steps": trainer.state.global_step,
        "training_seconds": round(trainer.progress.seconds, 1),
        "training_cpu_seconds": round(trainer.progress.cpu_seconds, 1),
        **meters.summary(trainer.state.log_history),
        "training_log": trainer.state.log_history,
    }
    evaluation = None
    if test is not None:
        evaluation = evaluate(model, test, run.tokenizer.decode, recipe.decoding)
        results["test"] = evaluation.to_plain()
        results["evaluation_seconds"] = round(evaluation.seconds, 1)
    results["memory"] = measure(loss_step(trainer, model)) if trainer.progress.largest else None
    results["skipped"] = bad.counts()
    results["nonfinite"] = trainer.nonfinite.found
    results["data"] = run.data
    results["machine"] = machine()
    results["versions"] = versions()
    results["recipe_keys"] = recipe_to_plain(recipe)
    target = directory / RESULTS_FILE
    results = strict_json.told(results)
    write_json(target, results)
    for line in summary(results, evaluation, bad):
        say(line)
    say(f"results: {target}")
    return results


def loss_step(trainer: TransducerTrainer, model: Transducer) -> LossStep:
    """The joint and loss of the batch with the largest lattice of the run."""
    recipe = trainer.recipe
    return LossStep(
        **trainer.progress.largest,
        encoder_dim=model.encoder.dim,
        predictor_dim=model.predictor.dim,
        joint_dim=recipe.joiner.dim,
        vocab_size=model.vocab_size + len(recipe.loss.big_blanks),
        activation=recipe.joiner.activation,
        method=recipe.loss.method,
        memory_budget=recipe.loss.memory_budget,
        sampling=None if recipe.sampling is None else (recipe.sampling.size, recipe.sampling.scope),
        topology=model.joiner.topology.key,
        blank_head=recipe.joiner.blank_head,
    )


def summary(results: dict[str, Any], evaluation: Evaluation | None, bad: BadDataLog) -> list[str]:
    """What came out, in a few lines."""
    lines = [f"trained {results['steps']} steps in {results['training_seconds']:.0f} s"]
    for name, over in (("transducer", "transducer"), ("sampled", "transducer over sampled classes")):
        key = f"{name}_nats_per_label"
        if losses := [line[key] for line in results["training_log"] if line.get(key) is not None]:
            lines.append(f"training loss: {losses[-1]:.4f} nats per label ({over})")
    if evaluation is not None:
        lines.append(f"test loss: {evaluation.loss()}")
        lines.append(f"test {evaluation.errors}")
        lines.append(f"test decoding: {evaluation.work()}")
        lines += evaluation.notes()
    if results["memory"] is not None:
        lines.append(describe(results["memory"]))
    if results["nonfinite"]:
        lines.append(f"left out {len(results['nonfinite'])} steps that were not finite: nonfinite in {RESULTS_FILE} lists them")
    if report := bad.report():
        lines.append(report)
    for name, found in results.get(strict_json.NOT_FINITE, {}).items():
        lines.append(f"{name} is {found}, which JSON does not have: it is null in the results")
    if results["data"].get("synthetic"):
        lines.append("All of this is on SYNTHETIC SPEECH, and says nothing about people's.")
    return lines
