"""`samplewise compare`: one recipe trained with the full loss and over sampled classes, at the same steps and seeds.

Every run is a `samplewise train` of its own in a process of its own, resumed where it stopped; what it gave becomes one line
of a JSON-lines file. Several such commands, with the same directory and file, share the runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from samplewise.asr.checkpoint import read_json
from samplewise.asr.problems import UserError
from samplewise.asr.recipe import load_recipe, recipe_from_plain, recipe_to_plain
from samplewise.asr.results import RESULTS_FILE
from samplewise.asr.trainer import LOG_FILE

KEPT = (  # of a run's results.json
    "recipe", "seed", "steps", "classes", "parameters", "training_seconds", "training_cpu_seconds", "step_seconds",
    "step_cpu_seconds", "sampled_classes", "peak_bytes", "test",
    "memory", "skipped", "data", "machine", "versions", "commit", "recipe_keys",
)  # fmt: skip
PAUSE = 0.5  # seconds between looks at the runs
STOPPED = {code for number in (signal.SIGINT, signal.SIGTERM) for code in (-number, 128 + number)}  # statuses of runs
Say = Callable[[str], None]


@dataclass(frozen=True)
class Variant:
    """One way to train: the full loss, or over sampled classes with the keys of a recipe's `sampling`."""

    sampling: dict[str, Any] | None

    @property
    def name(self) -> str:
        if self.sampling is None:
            return "full"
        keys = self.sampling
        return "-".join([keys["negatives"], keys["scope"], str(keys["size"]), *([c] if (c := keys["correction"]) else [])])


@dataclass(frozen=True, eq=False)
class Plan:
    """One run: a variant with a seed.

    Attributes:
        changes: of the recipe, as `samplewise train --set` takes them.
        expected: the recipe with these changes.
    """

    variant: Variant
    seed: int
    changes: tuple[str, ...]
    expected: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.variant.name}-seed{self.seed}"


def variants(
    sizes: Sequence[int], negatives: Sequence[str], scopes: Sequence[str], corrections: Sequence[str], full: bool
) -> list[Variant]:
    """The full loss, if wanted, and every combination of the others."""
    found = [Variant(None)] if full else []
    for size in sizes:
        for kind in negatives:
            for scope in scopes:
                for name in corrections:
                    correction = None if name == "none" else name
                    found.append(Variant({"size": size, "scope": scope, "negatives": kind, "correction": correction}))
    return found


def make_plans(recipe: str, changes: Sequence[str], found: Sequence[Variant], seeds: Sequence[int]) -> list[Plan]:
    """All runs, seed by seed, so that early ones already compare everything.

    Raises:
        UserError: a recipe that does not load, with or without sampling.
    """
    plans = []
    for seed in seeds:
        for variant in found:
            sampling = yaml.safe_dump(variant.sampling, default_flow_style=True, width=1000).removesuffix("...\n").strip()
            all_changes = (*changes, f"seed={seed}", f"sampling={sampling}")
            plans.append(Plan(variant, seed, all_changes, recipe_to_plain(load_recipe(recipe, list(all_changes)))))
    return plans


def compare(
    recipe: str,
    plans: Sequence[Plan],
    directory: Path,
    results: Path,
    *,
    data: str | None = None,
    jobs: int = 1,
    minutes: float | None = None,
    say: Say = print,
) -> bool:
    """Train what is not in the results file yet; whether all of it is there now.

    Args:
        recipe: path of the recipe.
        plans: the runs.
        directory: for the runs' directories and what they print, NAME.log.
        results: JSON-lines file; lines of finished runs are added to it.
        data: as for `samplewise train`.
        jobs: runs beside each other, one thread each if there are several.
        minutes: after these, runs are stopped with a checkpoint, to be gone on with by the same call.
        say: takes lines for the user.

    Raises:
        UserError: a run failed.
    """
    finished = read_results(results)
    waiting = [plan for plan in plans if not is_there(plan, finished)]
    say(f"{len(plans) - len(waiting)} of {len(plans)} runs are in {results}")
    deadline = time.monotonic() + 60 * minutes if minutes is not None else float("inf")
    directory.mkdir(parents=True, exist_ok=True)
    results.parent.mkdir(parents=True, exist_ok=True)
    active: dict[Plan, tuple[subprocess.Popen, FileLock]] = {}
    steps = {plan.name: plan.expected["training"]["steps"] for plan in plans}
    done = sum(steps[plan.name] for plan in plans if plan not in waiting)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
    with interrupted_by_term(), bar as progress:
        task = progress.add_task("steps", total=sum(steps.values()))
        try:
            while (waiting and time.monotonic() < deadline) or active:
                while len(active) < jobs and time.monotonic() < deadline and (taken := take(waiting, directory)):
                    plan, lock = taken
                    waiting.remove(plan)
                    if is_there(plan, read_results(results)):  # another command has finished it
                        lock.release()
                        done += steps[plan.name]
                        continue
                    active[plan] = start(recipe, plan, directory, data, one_thread=jobs > 1), lock
                for plan in [plan for plan, (process, _) in active.items() if process.poll() is not None]:
                    process, lock = active.pop(plan)
                    if finish(plan, process.returncode, directory, results, say):
                        done += steps[plan.name]
                    lock.release()
                progress.update(task, completed=done + sum(last_step(directory / plan.name) for plan in active))
                if time.monotonic() >= deadline:
                    stop(process for process, _ in active.values())
                time.sleep(PAUSE)
        finally:
            stop(process for process, _ in active.values())
            for plan, (process, lock) in active.items():  # nobody else may have the run before its checkpoint is whole
                process.wait()
                say(stopped(plan, directory))
                lock.release()
    finished = read_results(results)
    return all(is_there(plan, finished) for plan in plans)


def is_there(plan: Plan, lines: Sequence[dict[str, Any]]) -> bool:
    """Whether a line is of this run; keys that recipes have got since it was written count as their defaults."""
    for line in lines:
        try:
            if recipe_to_plain(recipe_from_plain(line["recipe_keys"])) == plan.expected:
                return True
        except UserError:  # a recipe of another version
            continue
    return False


def take(waiting: Sequence[Plan], directory: Path) -> tuple[Plan, FileLock] | None:
    """The first run that no other command has in hand, taken by its lock file; None if there is none for now."""
    for plan in waiting:
        lock = FileLock(directory / f"{plan.name}.lock", timeout=0)
        try:
            lock.acquire()
        except Timeout:
            continue
        return plan, lock
    return None


def start(recipe: str, plan: Plan, directory: Path, data: str | None, *, one_thread: bool) -> subprocess.Popen:
    """A process that trains; one that was stopped before goes on."""
    command = [sys.executable, "-m", "samplewise.cli", "train", recipe, "--output", str(directory / plan.name), "--resume"]
    for change in plan.changes:
        command += ["--set", change]
    command += ["--data", data] if data is not None else []
    alone = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"} if one_thread else {}
    (directory / plan.name).mkdir(exist_ok=True)
    with (directory / f"{plan.name}.log").open("a", encoding="utf-8") as log:
        environment = {**os.environ, **alone}  # Ctrl-C is for this process alone: a run takes a second signal as "at once"
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True)


@contextlib.contextmanager
def interrupted_by_term() -> Iterator[None]:
    """SIGTERM and SIGHUP are as Ctrl-C meanwhile: an exception, after which the runs are stopped."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = {signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}
    ours = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]  # nohup's is to be ignored still
    for number in ours:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def stop(processes: Any) -> None:
    """Ask them, once each, to write a checkpoint and end."""
    for process in processes:
        if process.poll() is None and not getattr(process, "asked", False):
            process.asked = True
            process.send_signal(signal.SIGTERM)


def finish(plan: Plan, status: int, directory: Path, results: Path, say: Say) -> bool:
    """Take over what a run gave; False if it was stopped before its end."""
    if status in STOPPED:
        say(stopped(plan, directory))
        return False
    if status != 0:
        tail = (directory / f"{plan.name}.log").read_text(encoding="utf-8", errors="replace").splitlines()[-15:]
        raise UserError(f"{plan.name} failed with status {status}; its log ends:\n  " + "\n  ".join(tail))
    found = read_json(directory / plan.name / RESULTS_FILE)
    line = {"variant": plan.variant.name, "sampling": plan.variant.sampling, **{key: found.get(key) for key in KEPT}}
    line["test"] = {key: value for key, value in found["test"].items() if key != "by_speaker"}
    loads = [entry["load_average"] for entry in found["training_log"] if "load_average" in entry]
    line["load_average"] = round(statistics.fmean(loads), 2) if loads else None
    with results.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    name = "wer" if "wer" in line["test"] else "cer"
    say(f"{plan.name}: {name.upper()} {100 * line['test'][name]:.2f}%, {line['test']['nats_per_label']:.4f} nats per label")
    return True


def stopped(plan: Plan, directory: Path) -> str:
    return f"{plan.name}: stopped at step {last_step(directory / plan.name)}"


def last_step(run: Path) -> int:
    """The step of the last line of a run's log; 0 if there is none."""
    try:
        lines = (run / LOG_FILE).read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    for line in reversed(lines):
        try:
            return json.loads(line)["step"]
        except (ValueError, KeyError):  # a line that is being written
            continue
    return 0


def read_results(path: Path) -> list[dict[str, Any]]:
    """The lines of a results file; none if it does not exist."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
