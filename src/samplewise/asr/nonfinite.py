"""Training steps whose loss or gradients are not finite: left out, named and counted, up to a bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from accelerate.utils import gather_object

from samplewise.asr.errors import UserError
from samplewise.asr.meters import Remembered
from samplewise.asr.recipe import TrainingOptions

SHOWN = 32  # utterances of a step that its line names
Say = Callable[[str], None]


class Nonfinite(Remembered):
    """Keeps such steps from the weights. What it has found is saved with the checkpoints.

    Gradients are those of all processes together, so all of them decide alike. With fp16 gradients that overflow while their
    losses are finite are the gradient scaler's own business.

    Attributes:
        steps: how many were left out.
        found: of each of them its number, and the losses and keys of its batches in all processes.
        ended: why the run has to end; empty as long as it need not.
    """

    def __init__(self, options: TrainingOptions, say: Say):
        self.options = options
        self.say = say
        self.steps = 0
        self.found: list[dict[str, Any]] = []
        self.batches: list[dict[str, Any]] = []  # of this step, in this process
        self.ended = ""

    def saw(self, loss: float, keys: Sequence[str]) -> None:
        self.batches.append({"loss": loss, "utterances": list(keys)})

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        batches, self.batches = self.batches, []
        gradients = [parameter.grad for parameter in kwargs["model"].parameters() if parameter.grad is not None]
        if bool(torch.nn.utils.get_total_norm(gradients).isfinite()):
            return
        batches = gather_object(batches)
        guilty = [batch for batch in batches if not is_finite(batch["loss"])]
        if not guilty and self.options.precision == "fp16":
            return
        self.steps += 1
        step = state.global_step + 1
        self.found.append({"step": step, "batches": plain(guilty or batches)})
        line = told(step, guilty or batches)
        if self.options.on_nonfinite == "raise":
            raise UserError(f"{line}\nThis recipe wants none (training.on_nonfinite: raise); skip leaves such steps out.")
        self.say(f"left out (number {self.steps}): {line}")
        if self.options.precision != "fp16":  # there the scaler leaves the step out, and needs to see why
            for parameter in kwargs["model"].parameters():
                parameter.grad = None
        if self.steps > self.options.most_nonfinite:
            control.should_save = control.should_training_stop = True
            self.ended = (
                f"{line}\n{self.steps} steps were not finite, more than training.most_nonfinite allows "
                f"({self.options.most_nonfinite}). The weights of the last good step are saved. Look at these utterances "
                "and at training.learning_rate; the same command with --resume --set training.most_nonfinite=N goes on."
            )

    def remembered(self) -> dict[str, Any]:
        return {"steps": self.steps, "found": self.found}


def told(step: int, batches: Sequence[dict[str, Any]]) -> str:
    """Which step, what was wrong, and the utterances."""
    losses = ", ".join(f"{batch['loss']:g}" for batch in batches)
    what = (
        "its loss is" if any(not is_finite(batch["loss"]) for batch in batches) else "its gradients are not finite, its loss is"
    )
    keys = [key for batch in batches for key in batch["utterances"]]
    more = [f"and {len(keys) - SHOWN} more"] if len(keys) > SHOWN else []
    return f"step {step}: {what} {losses}; its utterances:\n  " + "\n  ".join([*keys[:SHOWN], *more])


def plain(batches: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """With losses as text, for JSON knows neither NaN nor infinity."""
    return [{**batch, "loss": f"{batch['loss']:g}"} for batch in batches]


def is_finite(number: float) -> bool:
    return abs(number) < float("inf")
