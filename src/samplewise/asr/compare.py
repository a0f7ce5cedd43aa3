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
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from samplewise.asr.checkpoint import read_json
from samplewise.asr.errors import UserError
from samplewise.asr.locks import is_held, take_lock
from samplewise.asr.recipe import load_recipe, recipe_from_plain, recipe_to_plain
from samplewise.asr.results import RESULTS_FILE
from samplewise.asr.run_directory import LOCK_FILE
from samplewise.asr.trainer import LOG_FILE
from samplewise.asr.writing import append_line, make_directory, read_json_lines, saving

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

    @property
    def steps(self) -> int:
        return self.expected["training"]["steps"]


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
    stop_when: Callable[[], object] = lambda: False,
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
        stop_when: the same as soon as it says so.
        say: takes lines for the user.

    Raises:
        UserError: a run failed; those beside it were stopped.
    """
    finished = read_results(results)
    waiting = [plan for plan in plans if not is_there(plan, finished)]
    say(f"{len(plans) - len(waiting)} of {len(plans)} runs are in {results}")
    deadline = time.monotonic() + 60 * minutes if minutes is not None else float("inf")
    make_directory(directory)
    make_directory(results.parent)
    runs = Runs(recipe, directory, results, data, jobs, say, waiting)

    def go_on() -> bool:
        return runs.failure is None and not stop_when() and time.monotonic() < deadline

    total = sum(plan.steps for plan in plans)
    done = total - sum(plan.steps for plan in waiting)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
    with bar as progress:
        task = progress.add_task("steps", total=total)
        try:
            while (waiting and go_on()) or runs.active:
                if go_on():
                    done += runs.begin()
                done += runs.collect()
                progress.update(task, completed=done + runs.steps())
                if not go_on():
                    stop(runs.processes())
                time.sleep(PAUSE)
        except Exception:  # our locks are for as long as the runs may write
            stop(runs.processes())
            for process in runs.processes():
                process.wait()
            raise
        finally:
            stop(runs.processes())
    if runs.failure is not None:
        raise runs.failure
    finished = read_results(results)
    return all(is_there(plan, finished) for plan in plans)


@dataclass(eq=False)
class Runs:
    """The runs that this command has in hand: each a process, and the lock that keeps other commands away from it.

    Attributes:
        waiting: runs that are to be begun, by this command or by another.
        failure: what was wrong with the first run that failed.
    """

    recipe: str
    directory: Path
    results: Path
    data: str | None
    jobs: int
    say: Say
    waiting: list[Plan]
    active: dict[Plan, tuple[subprocess.Popen, FileLock]] = field(default_factory=dict)
    failure: UserError | None = None
    told: bool = False

    def begin(self) -> int:
        """Start as many runs as there is room for; the steps of those that another command turns out to have finished."""
        done = 0
        while len(self.active) < self.jobs and (taken := take(self.waiting, self.directory)):
            plan, lock = taken
            self.waiting.remove(plan)
            if is_there(plan, read_results(self.results)):
                lock.release()
                done += plan.steps
            else:
                self.active[plan] = start(self.recipe, plan, self.directory, self.data, one_thread=self.jobs > 1), lock
        if self.waiting and not self.active and not self.told:
            self.tell("waiting for runs that other processes have in hand: " + ", ".join(plan.name for plan in self.waiting))
            self.told = True
        return done

    def collect(self) -> int:
        """Take over what runs gave that have ended; their steps."""
        done = 0
        for plan in [plan for plan, (process, _) in self.active.items() if process.poll() is not None]:
            process, lock = self.active.pop(plan)
            if process.returncode not in (0, *STOPPED) and is_held(self.directory / plan.name / LOCK_FILE):
                self.waiting.append(plan)  # a run that outlived its command was here first
                lock.release()
                continue
            try:
                done += plan.steps * finish(plan, process.returncode, self.directory, self.results, self.tell)
            except UserError as error:
                self.failure = self.failure or error
            lock.release()
        return done

    def tell(self, line: str) -> None:
        """Say it if somebody is there to hear: that a terminal or a pipe has gone must not cost the other runs."""
        with contextlib.suppress(OSError):
            self.say(line)

    def steps(self) -> int:
        """Of the runs in hand, so far."""
        return sum(last_step(self.directory / plan.name) for plan in self.active)

    def processes(self) -> list[subprocess.Popen]:
        return [process for process, _ in self.active.values()]


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
    """The first run that no other command has in hand, taken by its lock file; None if there is none for now.

    A run whose command was killed, or did not wait for it, is left to its end; then it can be taken.
    """
    for plan in waiting:
        if (lock := take_lock(directory / f"{plan.name}.lock")) is None:
            continue
        if not is_held(directory / plan.name / LOCK_FILE):  # to look is to take it for a moment, so not while others begin
            return plan, lock
        lock.release()
    return None


def start(recipe: str, plan: Plan, directory: Path, data: str | None, *, one_thread: bool) -> subprocess.Popen:
    """A process that trains; one that was stopped before goes on."""
    command = [sys.executable, "-m", "samplewise", "train", recipe, "--output", str(directory / plan.name), "--resume"]
    for change in plan.changes:
        command += ["--set", change]
    command += ["--data", data] if data is not None else []
    alone = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"} if one_thread else {}
    make_directory(directory / plan.name)
    path = directory / f"{plan.name}.log"
    with saving(path), path.open("a", encoding="utf-8") as log:
        environment = {**os.environ, **alone}  # Ctrl-C is for this process alone: a run takes a second signal as "at once"
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True)


def stop(processes: Any) -> None:
    """Ask them, once each, to write a checkpoint and end."""
    for process in processes:
        if process.poll() is None and not getattr(process, "asked", False):
            process.asked = True
            process.send_signal(signal.SIGTERM)


def finish(plan: Plan, status: int, directory: Path, results: Path, say: Say) -> bool:
    """Take over what a run gave; False if it was stopped before its end."""
    if status in STOPPED:
        say(f"{plan.name}: stopped at step {last_step(directory / plan.name)}")
        return False
    if status != 0:
        tail = (directory / f"{plan.name}.log").read_text(encoding="utf-8", errors="replace").splitlines()[-15:]
        raise UserError(f"{plan.name} failed with status {status}; its log ends:\n  " + "\n  ".join(tail))
    found = read_json(directory / plan.name / RESULTS_FILE)
    line = {"variant": plan.variant.name, "sampling": plan.variant.sampling, **{key: found.get(key) for key in KEPT}}
    line["test"] = {key: value for key, value in found["test"].items() if key != "by_speaker"}
    loads = [entry["load_average"] for entry in found["training_log"] if entry.get("load_average") is not None]
    line["load_average"] = round(statistics.fmean(loads), 2) if loads else None
    append_line(results, line)
    say(f"{plan.name}: {in_short(line['test'])}")
    return True


def in_short(test: dict[str, Any]) -> str:
    """Error rate and loss of a run; where no word was said, or no utterance has a loss, there is none."""
    name = "wer" if "wer" in test else "cer"
    rate, nats = test[name], test["nats_per_label"]
    loss = "no loss" if nats is None else f"{nats:.4f} nats per label"
    return f"{name.upper()} {'undefined' if rate is None else f'{100 * rate:.2f}%'}, {loss}"


def last_step(run: Path) -> int:
    """The step of the last line of a run's log; 0 if there is none."""
    try:
        lines = (run / LOG_FILE).read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return 0
    for line in reversed(lines):
        try:
            return json.loads(line)["step"]
        except (ValueError, KeyError, TypeError):  # a line that is being written, or is none of ours
            continue
    return 0


def read_results(path: Path) -> list[dict[str, Any]]:
    """The lines of a results file; none if it does not exist."""
    if not path.is_file():
        return []
    try:
        lines = list(read_json_lines(path))
        if not all(isinstance(line, dict) and "recipe_keys" in line for line in lines):
            raise ValueError("one of its lines is not what a run gave")
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as results of this command: {error}") from None
    return lines
