"""One process, one method, one case. Reads a JSON request a line from standard input, answers with a JSON line.

prepare  make the workload, load and compile, take the memory limit
truth    write loss and gradients in float64 to a file (needs no method)
check    compare loss and gradients with such a file
weigh    the memory of one step
step     the seconds of one step
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from samplewise import Observation, choices, observe
from samplewise.bench.cases import Case, case_from
from samplewise.bench.memory import limit_memory, weigh
from samplewise.bench.methods import OUR_OPTIONS, Result, make_step, make_yardstick_step, warm_up
from samplewise.bench.names import Method
from samplewise.bench.telemetry import foretold, told
from samplewise.bench.truth import true_gradients
from samplewise.bench.workloads import make_workload

NAMES = ("encoder_out", "predictor_out", "weight", "bias")
WORST = {False: (1e-4, 2e-2), True: (2e-2, 1e-1)}  # loss and gradients beyond this are wrong; True: under bf16 autocast
NO_MEMORY = ("allocate memory", "not enough memory", "bad_alloc", "Unable to allocate", "DefaultCPUAllocator")


@dataclass
class Prepared:
    """What the requests after `prepare` work on."""

    case: Case
    method: Method
    budget: int | None
    step: Any
    inputs: int
    gradients: int


class Worker:
    def __init__(self) -> None:
        self.ready: Prepared | None = None
        self.heard: dict[str, Any] | None = None

    def handle(self, request: dict[str, Any]) -> dict[str, Any]:
        do = request.pop("do")
        if do not in ("prepare", "truth", "check", "weigh", "step"):
            raise ValueError(f"unknown request {do!r}")
        return getattr(self, do)(**request)

    def prepare(self, case: dict[str, Any], method: str, threads: int, budget: int | None, limit: int | None) -> dict[str, Any]:
        torch.set_num_threads(threads)
        made, parsed = case_from(case), Method.parse(method)
        warm_up(parsed, made)
        if parsed.kind == "yardstick":
            self.ready = Prepared(made, parsed, budget, make_yardstick_step(parsed, made), 0, 0)
        else:
            workload = make_workload(made)
            step = make_step(parsed, workload, budget)
            self.ready = Prepared(made, parsed, budget, step, workload.input_bytes, workload.gradient_bytes)
        limit_memory(limit)
        return {"inputs": self.ready.inputs, "gradients": self.ready.gradients}

    def truth(self, case: dict[str, Any], path: str, threads: int) -> dict[str, Any]:
        torch.set_num_threads(threads)
        loss, gradients = true_gradients(make_workload(case_from(case)))
        torch.save({"loss": loss, "gradients": gradients}, path)
        return {"loss": float(loss)}

    def check(self, case: dict[str, Any], path: str) -> dict[str, Any]:
        ready = self.the_ready
        made = case_from(case)
        here = made.sizes() == ready.case.sizes()
        step = ready.step if here else make_step(ready.method, make_workload(made), ready.budget)
        errors = compare(step(), torch.load(path), WORST[ready.method.bf16])
        return {"on": "all of it" if here else f"{made.batch}x{made.frames}x{made.labels}x{made.classes}", **errors}

    def weigh(self) -> dict[str, Any]:
        with observe() as seen:
            found = weigh(self.the_ready.step)
        return {**found, "ours": self.about_ours(seen)}

    def step(self) -> dict[str, Any]:
        ready = self.the_ready
        if self.heard is None:  # the first step is not among those that count
            with observe() as seen:
                seconds = timed(ready.step)
            self.heard = self.about_ours(seen)
            return {"seconds": seconds, "ours": self.heard}
        return {"seconds": timed(ready.step)}

    def about_ours(self, seen: Observation) -> dict[str, Any]:
        ready, heard = self.the_ready, told(seen)
        if ready.method.base not in OUR_OPTIONS:
            return {}
        name: choices.Method = OUR_OPTIONS[ready.method.base].get("method", "auto")
        dtype = torch.bfloat16 if ready.method.bf16 else torch.float32
        share = seen.exact_share if "guided" in seen.methods else seen.active_share  # of what is kept for the gradients
        gradient = not ready.method.loss_only
        return {**heard, **foretold(ready.case, name, ready.budget, gradient=gradient, dtype=dtype, share=share or 1.0)}

    @property
    def the_ready(self) -> Prepared:
        if self.ready is None:
            raise ValueError("nothing is prepared")
        return self.ready


def timed(step: Any) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def compare(result: Result, truth: dict[str, Any], worst: tuple[float, float]) -> dict[str, Any]:
    """The relative error of the loss, and of each gradient: largest difference over the largest true element."""
    loss, gradients = result
    loss_error = float((loss.double() - truth["loss"]).abs() / truth["loss"].abs())
    errors = {
        name: difference(gradient, true) for name, gradient, true in zip(NAMES, gradients, truth["gradients"], strict=False)
    }
    gradient_error = max(errors.values(), default=0.0)
    ok = loss_error <= worst[0] and gradient_error <= worst[1]  # a NaN is not
    return {
        "value": float(truth["loss"]), "loss": loss_error, "gradient": gradient_error if errors else None, "gradients": errors,
        "ok": ok,
    }  # fmt: skip


def difference(found: Tensor, true: Tensor) -> float:
    return float((found.double() - true).abs().max() / true.abs().max())


def kind_of(error: BaseException) -> str:
    if isinstance(error, MemoryError) or any(text in str(error) for text in NO_MEMORY):
        return "out of memory"
    return "not implemented" if isinstance(error, NotImplementedError) else "failed"


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints is no answer
    worker = Worker()
    for line in sys.stdin:
        try:
            answer = worker.handle(json.loads(line))
        except Exception as error:
            traceback.print_exc()
            answer = {"error": kind_of(error), "message": (str(error).strip().splitlines() or [type(error).__name__])[0]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
