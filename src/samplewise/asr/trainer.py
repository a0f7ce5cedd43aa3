"""`transformers.Trainer` for a transducer: its order of data, its losses by name, its error rate, and a clean stop.

The loop, the progress bar, checkpoints, resuming and the start of several processes are all the Trainer's own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch.utils.data import DataLoader
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import EvalLoopOutput

import samplewise
from samplewise.asr.batches import Batches
from samplewise.asr.checkpoint import Run
from samplewise.asr.evaluate import evaluate
from samplewise.asr.examples import Batch, EvaluationExamples, TrainingExamples, collate
from samplewise.asr.meters import LossReports, StepTimes, load_average, peak_bytes
from samplewise.asr.model import Transducer
from samplewise.asr.problems import UserError
from samplewise.asr.recipe import Recipe
from samplewise.asr.signals import FirstSignal

INPUTS = ("features", "feature_lengths", "targets", "target_lengths")
LOG_FILE = "log.jsonl"
LOSSES = ("transducer", "sampled", "ctc")  # parts of the loss, each logged per label under its own name
CLASSES = 4  # the stream of random numbers that sampled classes are drawn from, beside those of corpus.py and examples.py


class TransducerTrainer(transformers.Trainer):
    """Trains a `Transducer` on a stream of examples.

    The loss is the mean over a batch's utterances. All batches are full, on every rank and in every accumulation step,
    so the mean of the means that the Trainer and DDP take is the mean over all utterances of the step.
    """

    loss_is_scaled_for_ga = False  # a mean of one batch: the Trainer divides by the accumulation steps

    def __init__(
        self,
        model: Transducer,
        run: Run,
        directory: Path,
        progress: Progress,
        examples: TrainingExamples,
        valid: EvaluationExamples | None,
    ):
        self.recipe = run.recipe
        self.transducer = model  # `self.model` may be wrapped
        self.decode = run.tokenizer.decode
        self.progress = progress
        self.examples = examples
        self.sums: dict[str, float] = {}  # since the last line of the log
        self.times = StepTimes()
        self.reports = LossReports()
        self.batch = (-1, 0)  # step, and which of its batches
        super().__init__(
            model=model,
            args=training_arguments(run.recipe, directory, evaluate=valid is not None),
            data_collator=collate,
            callbacks=[progress, self.times, RunFiles(run, directory)],
            train_dataset=examples,
            eval_dataset=valid,
        )

    def get_train_dataloader(self) -> DataLoader:
        """Batches of the whole training; each process takes its share of every step."""
        training = self.recipe.training
        batches = Batches(
            self.examples.corpus,
            seed=self.recipe.seed,
            steps=training.steps,
            batches=training.accumulate * self.args.world_size,
            size=training.batch_size,
            seconds=training.batch_seconds,
            pool=training.length_pool,
        )
        loader = DataLoader(
            self.examples,
            batch_sampler=batches,
            collate_fn=collate,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
        )
        return self.accelerator.prepare(loader)

    def compute_loss(self, model: Any, inputs: Batch, return_outputs: bool = False, num_items_in_batch: Any = None) -> Any:
        generator = self._class_generator() if self.recipe.sampling is not None else None
        with samplewise.observe() as seen:
            losses = model(**{name: inputs[name] for name in INPUTS}, generator=generator)
        if not torch.isfinite(losses["loss"]):
            raise UserError(
                f"the loss of step {self.state.global_step + 1} is {losses['loss'].item()}; its utterances:\n  "
                + "\n  ".join(inputs["keys"])
            )
        self._count(losses, inputs)
        self.reports.add(seen)
        frames = [self.transducer.encoder.output_length(length) for length in inputs["feature_lengths"].tolist()]
        self.progress.saw(frames, inputs["target_lengths"].tolist())
        return (losses["loss"], losses) if return_outputs else losses["loss"]

    def _class_generator(self) -> torch.Generator:
        """What the classes of the next batch are drawn with: its state follows from the seed, the process and the step, so
        the step that a checkpoint tells is all of it that has to be kept."""
        step = self.state.global_step
        self.batch = (step, self.batch[1] + 1 if self.batch[0] == step else 0)
        state = np.random.SeedSequence((self.recipe.seed, CLASSES, self.args.process_index, *self.batch)).generate_state(2)
        return torch.Generator().manual_seed(int(state[0]) << 32 | int(state[1]))

    def _count(self, losses: dict[str, torch.Tensor], inputs: Batch) -> None:
        utterances = len(inputs["keys"])
        amounts = {name: float(losses[name]) * utterances for name in LOSSES if name in losses}
        amounts["labels"] = float(inputs["target_lengths"].sum())
        if "classes" in losses:
            amounts |= {"classes": float(losses["classes"]) * utterances, "utterances": float(utterances)}
        for name, amount in amounts.items():
            self.sums[name] = self.sums.get(name, 0.0) + amount

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Beside the Trainer's `loss`: its parts per label (nats), and what the losses did, over all processes; what the steps
        took."""
        if "loss" in logs and self.sums:
            logs.update(self._per_label(self.sums))
            self.sums = {}
            logs.update(self._reported())
            logs.update(self.times.take())
            if (peak := peak_bytes()) is not None:
                logs["peak_bytes"] = peak
            logs["load_average"] = load_average()
        seen = self.progress.utterances * self.args.world_size
        self.state.epoch = round(seen / len(self.examples), 4)  # to the Trainer the whole run is one epoch
        super().log(logs, start_time)

    def _per_label(self, sums: dict[str, float]) -> dict[str, float]:
        names = sorted(sums)
        amounts = torch.tensor([sums[name] for name in names], dtype=torch.float64, device=self.args.device)
        totals = dict(zip(names, self.accelerator.reduce(amounts, "sum").tolist(), strict=True))
        found = {f"{name}_nats_per_label": totals[name] / totals["labels"] for name in LOSSES if name in totals}
        if "classes" in totals:
            found["sampled_classes"] = totals["classes"] / totals["utterances"]
        return found

    def _reported(self) -> dict[str, float]:
        """The share of nodes whose gradients were made, and the proved bound of the occupancy outside the exact nodes."""
        own = torch.tensor([self.reports.take()], dtype=torch.float64, device=self.args.device)
        active, nodes, bound = self.accelerator.gather(own).unbind(1)  # (processes,) each
        return {"active_share": float(active.sum() / nodes.sum()), "bound": float(bound.max())}

    def evaluation_loop(
        self,
        dataloader: DataLoader,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """By the function that results.json and `samplewise evaluate` come from, so that all have the same numbers."""
        valid = self.eval_dataset
        assert isinstance(valid, EvaluationExamples)
        share = (self.args.process_index, self.args.world_size)
        found = evaluate(self.transducer, valid, self.decode, self.recipe.decoding, share)
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in found.metrics().items()}
        return EvalLoopOutput(predictions=np.empty(0), label_ids=None, metrics=metrics, num_samples=len(valid))


def training_arguments(recipe: Recipe, directory: Path, *, evaluate: bool) -> transformers.TrainingArguments:
    """The Trainer's options for a recipe."""
    training = recipe.training
    return transformers.TrainingArguments(
        output_dir=str(directory),
        max_steps=training.steps,
        per_device_train_batch_size=training.batch_size,
        per_device_eval_batch_size=recipe.decoding.batch_size,
        gradient_accumulation_steps=training.accumulate,
        learning_rate=training.learning_rate,
        lr_scheduler_type=training.schedule,
        warmup_steps=training.warmup_steps,
        weight_decay=training.weight_decay,
        max_grad_norm=training.max_grad_norm,
        bf16=training.precision == "bf16",
        fp16=training.precision == "fp16",
        logging_steps=training.log_every,
        logging_nan_inf_filter=False,
        eval_strategy="steps" if evaluate and training.evaluate_every else "no",
        eval_steps=training.evaluate_every or None,
        save_strategy="steps",
        save_steps=training.save_every,
        save_total_limit=training.keep,
        dataloader_num_workers=training.workers,
        dataloader_pin_memory=torch.cuda.is_available(),
        remove_unused_columns=False,
        use_cpu=not torch.cuda.is_available(),
        disable_tqdm=False,
        report_to="none",
        seed=recipe.seed,
    )


class Progress(transformers.TrainerCallback, ExportableState):
    """What a run has done over all its parts, and the batch with the most lattice nodes; saved with the checkpoints.

    `seconds` are the wall's, `cpu_seconds` those of all threads of this process.

    Attributes:
        seconds: spent in training.
        utterances: seen by this process.
        largest: encoder lengths and target lengths of that batch.
    """

    def __init__(self) -> None:
        self.before = self.cpu_before = 0.0
        self.started, self.cpu_started = time.monotonic(), time.process_time()
        self.largest: dict[str, list[int]] = {}
        self.nodes = 0
        self.utterances = 0

    @property
    def seconds(self) -> float:
        return self.before + time.monotonic() - self.started

    @property
    def cpu_seconds(self) -> float:
        return self.cpu_before + time.process_time() - self.cpu_started

    def saw(self, encoder_lengths: list[int], target_lengths: list[int]) -> None:
        """Count the utterances of a batch, and remember it if its padded lattice is the largest so far."""
        self.utterances += len(encoder_lengths)
        nodes = len(encoder_lengths) * max(encoder_lengths) * (max(target_lengths) + 1)
        if nodes > self.nodes:
            self.nodes = nodes
            self.largest = {"encoder_lengths": encoder_lengths, "target_lengths": target_lengths}

    def state(self) -> dict[str, Any]:
        kept = {name: getattr(self, name) for name in ("largest", "nodes", "utterances")}
        return {"args": {}, "attributes": {"before": self.seconds, "cpu_before": self.cpu_seconds, **kept}}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        saved = state.stateful_callbacks.get(type(self).__name__, {})
        for name, value in saved.get("attributes", {}).items() if state.global_step else ():
            setattr(self, name, value)
        self.started, self.cpu_started = time.monotonic(), time.process_time()


class RunFiles(transformers.TrainerCallback):
    """Keeps `log.jsonl` in step with the run, and puts what is needed to load a checkpoint beside its weights."""

    def __init__(self, run: Run, directory: Path):
        self.run = run
        self.directory = directory

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:  # a resumed run takes back the lines written after its checkpoint
            lines = "".join(json.dumps(line) + "\n" for line in state.log_history)
            (self.directory / LOG_FILE).write_text(lines, encoding="utf-8")

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            with (self.directory / LOG_FILE).open("a", encoding="utf-8") as file:
                file.write(json.dumps(state.log_history[-1]) + "\n")

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            self.run.save(self.directory / f"checkpoint-{state.global_step}")


class StopOnSignal(transformers.TrainerCallback):
    """At a signal: finish the step, write a checkpoint, stop.

    Every step all processes agree on whether one of them was told to stop, for a checkpoint needs all of them.
    """

    def __init__(self, caught: FirstSignal, agree: Callable[[int], int]):
        self.caught = caught
        self.agree = agree
        self.stopped_by = 0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if control.should_save:
            control.should_log = True  # losses since the last line would not outlive the checkpoint
        self.stopped_by = self.agree(self.caught.received)
        if self.stopped_by:
            control.should_save = control.should_log = control.should_training_stop = True


def agreement(world_size: int, device: torch.device) -> Callable[[int], int]:
    """A function that gives all processes the largest of their numbers."""

    def largest(number: int) -> int:
        if world_size == 1:
            return number
        shared = torch.tensor(number, device=device)
        torch.distributed.all_reduce(shared, torch.distributed.ReduceOp.MAX)
        return int(shared)

    return largest
