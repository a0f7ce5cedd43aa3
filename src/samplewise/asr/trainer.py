"""`transformers.Trainer` for a transducer: its order of data, its losses by name, its error rate, and a clean stop.

The loop, the progress bar, checkpoints, resuming and the start of several processes are all the Trainer's own.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors import SafetensorError
from torch.utils.data import DataLoader
from transformers.trainer_utils import EvalLoopOutput

import samplewise
from samplewise import strict_json
from samplewise.asr.batches import Batches
from samplewise.asr.checkpoint import Run
from samplewise.asr.errors import WriteError
from samplewise.asr.evaluate import evaluate
from samplewise.asr.examples import Batch, EvaluationExamples, TrainingExamples, collate
from samplewise.asr.meters import LossReports, Remembered, StepFrames, StepTimes, imbalance, load_average, peak_bytes
from samplewise.asr.model import Transducer
from samplewise.asr.nonfinite import Nonfinite
from samplewise.asr.recipe import Recipe
from samplewise.asr.run_directory import remove_old
from samplewise.asr.signals import FirstSignal
from samplewise.asr.writing import append_line, need, saving, write_lines

INPUTS = ("features", "feature_lengths", "targets", "target_lengths")
LOG_FILE = "log.jsonl"
LOSSES = ("transducer", "sampled", "ctc")  # parts of the loss, each logged per label under its own name
SMALL_FILES = 64 << 10  # bytes of a checkpoint beside its tensors
RANKS = 5  # as CLASSES, for what processes other than the first draw of dropout and masks
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
        say: Callable[[str], None] = print,
    ):
        self.recipe = run.recipe
        self.directory = directory
        self.transducer = model  # `self.model` may be wrapped
        self.decode = run.tokenizer.decode
        self.progress = progress
        self.examples = examples
        self.sums: dict[str, float] = {}  # since the last line of the log
        self.times = StepTimes()
        self.reports = LossReports()
        self.frames = StepFrames()
        self.nonfinite = Nonfinite(run.recipe.training, say)
        self.batch = (-1, 0)  # step, and which of its batches
        super().__init__(
            model=model,
            args=training_arguments(run.recipe, directory, evaluate=valid is not None),
            data_collator=collate,
            callbacks=[progress, self.times, self.nonfinite, RunFiles(run, directory)],
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
            processes=self.args.world_size,
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
        frames = [self.transducer.encoder.output_length(length) for length in inputs["feature_lengths"].tolist()]
        self.frames.add(self.state.global_step, sum(frames))
        generator = self._class_generator() if self.recipe.sampling is not None else None
        with samplewise.observe() as seen:
            losses = model(**{name: inputs[name] for name in INPUTS}, generator=generator)
        self._count(losses, inputs)
        self.nonfinite.saw(float(losses["loss"].detach()), inputs["keys"])
        if not torch.isfinite(losses["loss"]):
            losses = {**losses, "loss": losses["loss"] * float("nan")}  # so all gradients are, in every process
        self.reports.add(seen)
        self.progress.saw(frames, inputs["target_lengths"].tolist())
        return (losses["loss"], losses) if return_outputs else losses["loss"]

    def _class_generator(self) -> torch.Generator:
        """What the classes of the next batch are drawn with: its state follows from the seed, the process and the step, so
        the step that a checkpoint tells is all of it that has to be kept."""
        step = self.state.global_step
        self.batch = (step, self.batch[1] + 1 if self.batch[0] == step else 0)
        state = np.random.SeedSequence((self.recipe.seed, CLASSES, self.args.process_index, *self.batch)).generate_state(2)
        return torch.Generator().manual_seed(int(state[0]) << 32 | int(state[1]))

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """The Trainer sums what this returns: a loss that is not finite must not take the others of its line along."""
        loss = super().training_step(*args, **kwargs)
        return torch.where(torch.isfinite(loss), loss, torch.zeros_like(loss))

    def _count(self, losses: dict[str, torch.Tensor], inputs: Batch) -> None:
        utterances = len(inputs["keys"])
        amounts = {name: float(losses[name]) * utterances for name in LOSSES if name in losses}
        amounts["labels"] = float(inputs["target_lengths"].sum())
        if "classes" in losses:
            amounts |= {"classes": float(losses["classes"]) * utterances, "utterances": float(utterances)}
        amounts["finite"] = 1.0
        if not torch.isfinite(losses["loss"]):
            amounts = dict.fromkeys(amounts, 0.0)
        amounts["batches"] = 1.0
        for name, amount in amounts.items():
            self.sums[name] = self.sums.get(name, 0.0) + amount

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Beside the Trainer's `loss`: its parts per label (nats), and what the losses did, over all processes; what the steps
        took."""
        if "loss" in logs and self.sums:
            totals = self._totals(self.sums)
            logs["loss"] = logs["loss"] * totals["batches"] / totals["finite"] if totals["finite"] else float("nan")
            logs.update(per_label(totals))
            self.sums = {}
            if self.nonfinite.steps:
                logs["nonfinite_steps"] = self.nonfinite.steps
            logs.update(self._reported())
            logs.update(self._balance())
            logs.update(self.times.take())
            if (peak := peak_bytes()) is not None:
                logs["peak_bytes"] = peak
            logs["load_average"] = load_average()
        seen = self.progress.utterances * self.args.world_size
        self.state.epoch = round(seen / len(self.examples), 4)  # to the Trainer the whole run is one epoch
        super().log(strict_json.told(logs), start_time)

    def _totals(self, sums: dict[str, float]) -> dict[str, float]:
        """Over all processes."""
        names = sorted(sums)
        amounts = torch.tensor([sums[name] for name in names], dtype=torch.float64, device=self.args.device)
        return dict(zip(names, self.accelerator.reduce(amounts, "sum").tolist(), strict=True))

    def _reported(self) -> dict[str, float]:
        """The share of nodes whose gradients were made, and the proved bound of the occupancy outside the exact nodes."""
        own = torch.tensor([self.reports.take()], dtype=torch.float64, device=self.args.device)
        active, nodes, bound = self.accelerator.gather(own).unbind(1)  # (processes,) each
        return {"active_share": float(active.sum() / nodes.sum()), "bound": float(bound.max())}

    def _balance(self) -> dict[str, float]:
        """How far the busiest process was ahead in the steps since the last line: all others wait for it."""
        own = torch.tensor(self.frames.take(), device=self.args.device)
        return {"frames_imbalance": imbalance(self.accelerator.gather(own[None]))} if self.args.world_size > 1 else {}

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

    def _save_checkpoint(self, *args: Any) -> None:
        """Where the disk has no room for it, say so, and leave nothing half written behind."""
        assert self.optimizer is not None
        checkpoint = self.directory / f"checkpoint-{self.state.global_step}"
        needed = bytes_of(self.transducer.state_dict()) + bytes_of(self.optimizer.state_dict()) + SMALL_FILES
        new = self.args.should_save and not checkpoint.exists()
        try:
            if new:
                need(checkpoint, needed)
            with saving(checkpoint, needed, (OSError, RuntimeError, SafetensorError)):
                super()._save_checkpoint(*args)
        except WriteError:
            if new:
                shutil.rmtree(checkpoint, ignore_errors=True)
            raise


def per_label(totals: dict[str, float]) -> dict[str, float]:
    """The parts of the loss in nats per label, and the mean number of sampled classes; none if no batch was finite."""
    if not totals["labels"]:
        return {}
    found = {f"{name}_nats_per_label": totals[name] / totals["labels"] for name in LOSSES if name in totals}
    if "classes" in totals:
        found["sampled_classes"] = totals["classes"] / totals["utterances"]
    return found


def bytes_of(values: Any) -> int:
    """Of the tensors in nested dictionaries and lists."""
    if isinstance(values, torch.Tensor):
        return values.numel() * values.element_size()
    inner = values.values() if isinstance(values, dict) else values if isinstance(values, (list, tuple)) else ()
    return sum(bytes_of(value) for value in inner)


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
        dataloader_num_workers=training.workers,
        dataloader_pin_memory=torch.cuda.is_available(),
        remove_unused_columns=False,
        use_cpu=not torch.cuda.is_available(),
        disable_tqdm=False,
        report_to="none",
        seed=recipe.seed,
    )


class Progress(Remembered):
    """What a run has done over all its parts, and the batch with the most lattice nodes.

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

    def remembered(self) -> dict[str, Any]:
        kept = {name: getattr(self, name) for name in ("largest", "nodes", "utterances")}
        return {"before": self.seconds, "cpu_before": self.cpu_seconds, **kept}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        super().on_train_begin(args, state, control, **kwargs)
        self.started, self.cpu_started = time.monotonic(), time.process_time()


class RunFiles(transformers.TrainerCallback):
    """Keeps `log.jsonl` in step with the run, and puts what is needed to load a checkpoint beside its weights."""

    def __init__(self, run: Run, directory: Path):
        self.run = run
        self.directory = directory

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:  # a resumed run takes back the lines written after its checkpoint
            write_lines(self.directory / LOG_FILE, state.log_history)

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            append_line(self.directory / LOG_FILE, state.log_history[-1])

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            self.run.save(self.directory / f"checkpoint-{state.global_step}")
            remove_old(self.directory, self.run.recipe.training.keep)


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


def draw_apart(seed: int, process: int) -> None:
    """Give a process random numbers of its own: with equal ones all would drop and mask the same. The first keeps those that it
    has alone; a resumed process takes up its own from the checkpoint."""
    if process:
        transformers.set_seed(int(np.random.SeedSequence((seed, RANKS, process)).generate_state(1)[0]))


def agreement(world_size: int, device: torch.device) -> Callable[[int], int]:
    """A function that gives all processes the largest of their numbers."""

    def largest(number: int) -> int:
        if world_size == 1:
            return number
        shared = torch.tensor(number, device=device)
        torch.distributed.all_reduce(shared, torch.distributed.ReduceOp.MAX)
        return int(shared)

    return largest
