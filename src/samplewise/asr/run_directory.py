"""A run directory: who may begin or go on in it, where to go on from, and that a resumed run is the same as before."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from samplewise.asr.checkpoint import RUN_FILE, Run, checkpoints, entries_of, fault, is_remnant, is_unfinished
from samplewise.asr.errors import UserError
from samplewise.asr.locks import hold
from samplewise.asr.recipe import recipe_to_plain
from samplewise.asr.results import RESULTS_FILE
from samplewise.asr.typed import difference
from samplewise.asr.writing import make_directory, saving

SKIPPED_FILE = "skipped.jsonl"
LOCK_FILE = "train.lock"
BEGUN = {LOCK_FILE, SKIPPED_FILE, RUN_FILE + ".partial"}  # what a process leaves that ends before its run begins
JUNK = {".DS_Store", "Thumbs.db", "desktop.ini", "lost+found"}  # what systems put into directories
REMOVED = ".removed"  # ends the name of a checkpoint that is being removed
FREE_KEYS = (  # no influence on losses: a resumed run may change them
    "training.keep:", "training.workers:", "training.on_nonfinite:", "training.most_nonfinite:", "decoding.",
)  # fmt: skip
ENDLESS = ("constant_with_warmup", "inverse_sqrt")  # schedules that do not ask where the end is
Say = Callable[[str], None]


def check_directory(directory: Path, resume: bool) -> None:
    """Refuse a directory that may not be used, for it holds something else.

    Raises:
        UserError: it is a file, cannot be read, or holds a run that is not to be resumed, or something that is no run.
    """
    if directory.exists() and not directory.is_dir():
        raise UserError(f"{directory} is a file, not a directory for a run")
    names = [name for name, _ in entries_of(directory)]
    held = [name for name in names if name not in BEGUN | JUNK and not name.startswith(("._", ".nfs"))]
    if held and not resume:
        raise UserError(
            f"{directory} is not empty (it holds {', '.join(held[:4])}{', ...' if len(held) > 4 else ''}). "
            "Go on with the run in it by --resume, or choose another directory by --output."
        )
    if held and RUN_FILE not in held:
        raise UserError(f"nothing to resume: {directory} holds no {RUN_FILE}, so it is not a run directory")


@contextlib.contextmanager
def occupied(directory: Path) -> Iterator[None]:
    """Make the run directory and keep other trainings out of it; where no run begins, it is left as it was found.

    The lock goes with the process, however that ends.
    """
    made = [path for path in (directory, *directory.parents) if not path.exists()]
    make_directory(directory)
    with hold(directory / LOCK_FILE) as held:
        if not held:
            raise UserError(
                f"another process trains in {directory}. Wait for its end or stop it, or choose another directory by --output."
            )
        try:
            yield
        finally:
            if not (directory / RUN_FILE).exists():
                with contextlib.suppress(OSError):  # removes nothing that holds something
                    (directory / LOCK_FILE).unlink(missing_ok=True)
                    for path in made:
                        path.rmdir()


def find_checkpoint(directory: Path, resume: bool, say: Say) -> Path | None:
    """The checkpoint to go on from; newer ones are removed if a killed process left them behind, and else moved aside.

    Raises:
        UserError: a checkpoint or the directory cannot be read, or all checkpoints are damaged.
    """
    if not resume:
        return None
    for name, is_directory in entries_of(directory):
        if is_directory and re.fullmatch(rf"checkpoint-\d+{re.escape(REMOVED)}", name):
            shutil.rmtree(directory / name, ignore_errors=True)
    faulty: dict[Path, str] = {}
    start = None
    for checkpoint in reversed(checkpoints(directory)):
        if not (wrong := fault(checkpoint, thorough=True)):
            start = checkpoint
            break
        faulty[checkpoint] = wrong
    unfinished = {checkpoint for checkpoint in faulty if is_unfinished(checkpoint)}
    damaged = {checkpoint: wrong for checkpoint, wrong in faulty.items() if checkpoint not in unfinished}
    if damaged and start is None:
        listed = "\n  ".join(f"{checkpoint}: {wrong}" for checkpoint, wrong in damaged.items())
        raise UserError(
            f"no checkpoint in {directory} can be gone on from:\n  {listed}\nNothing was removed or changed. Put back what is "
            "missing, or begin another run: --output ANOTHER, from such weights by --set training.start_from=CHECKPOINT."
        )
    for checkpoint in sorted(unfinished):
        if is_remnant(checkpoint):
            with saving(checkpoint):
                remove(checkpoint)
            say(f"{checkpoint} was not written to its end; removed")
        else:
            say(f"{checkpoint} holds what no training leaves there, or weights alone; moved to {moved_aside(checkpoint)}")
    for checkpoint, wrong in damaged.items():
        say(f"{checkpoint} cannot be gone on from: {wrong}; moved to {moved_aside(checkpoint)}")
    say(f"no checkpoint in {directory}; starting from the beginning" if start is None else f"resuming from {start}")
    return start


def moved_aside(path: Path) -> Path:
    """Give a file or directory another name beside its own, which it returns."""
    names = (path.with_name(f"{path.name}.aside{number or ''}") for number in range(1000))
    aside = next(name for name in names if not name.exists())
    with saving(aside):
        return path.rename(aside)


def remove_old(directory: Path, keep: int) -> None:
    """Remove whole checkpoints but the `keep` newest of them; what is not whole is no copy of anything, and stays."""
    whole = []
    for checkpoint in checkpoints(directory):
        with contextlib.suppress(UserError):  # it cannot be read now
            whole += [] if fault(checkpoint) else [checkpoint]
    for checkpoint in whole[:-keep]:
        with contextlib.suppress(OSError):  # tried again as the next one is written
            remove(checkpoint)


def remove(checkpoint: Path) -> None:
    """Take it out of the way by its name, so that a kill in the middle leaves no half checkpoint; raise OSError."""
    removed = checkpoint.with_name(checkpoint.name + REMOVED)
    shutil.rmtree(removed, ignore_errors=True)
    checkpoint.rename(removed)
    shutil.rmtree(removed, ignore_errors=True)


def check_same(run: Run, directory: Path, say: Say) -> None:
    """See that a resumed run is the same as before.

    Raises:
        UserError: it has another recipe, other data, or another number of processes.
    """
    if not (directory / RUN_FILE).exists():
        return
    before = Run.load(directory)
    changed = difference(recipe_to_plain(before.recipe), recipe_to_plain(run.recipe))
    changed = [line for line in changed if not line.startswith(FREE_KEYS)]
    if is_longer(run, before) and run.recipe.training.schedule in ENDLESS:
        changed = [line for line in changed if not line.startswith("training.steps:")]
    if changed:
        hint = f"\n{ending(run, directory)}" if is_longer(run, before) and changed[0].startswith("training.steps:") else ""
        raise UserError(
            f"the recipe differs from that of the run in {directory}:\n  " + "\n  ".join(changed) + "\n"
            f"A resumed run keeps its recipe; give the old one, or start another run with another --output.{hint}"
        )
    changed = difference(before.data, run.data)
    if changed and run.data.get("synthetic") and before.data.get("synthetic"):
        say("the synthetic recordings differ from those before (another eSpeak NG?); losses will differ a little")
    elif changed:
        raise UserError(
            f"the data or the processes differ from those of the run in {directory}:\n  " + "\n  ".join(changed) + "\n"
            "Give the directory that the run was started with by --data, and start as many processes."
        )


def is_longer(run: Run, before: Run) -> bool:
    return run.recipe.training.steps > before.recipe.training.steps


def ending(run: Run, directory: Path) -> str:
    """Why a run with this schedule cannot be extended, and what to do in place of it."""
    training = run.recipe.training
    return (
        f"With training.schedule {training.schedule} the learning rate falls to zero at the last step, so a run of "
        f"{training.steps} steps is another one from its beginning. To train this model on, start a run of its own from it: "
        f"--output ANOTHER --set training.start_from={directory}. Runs with {' or '.join(ENDLESS)} can be extended."
    )


def keep_run(run: Run, directory: Path, say: Say) -> None:
    """Write down what this run is; of one that is extended, keep what it gave with its fewer steps."""
    if not (directory / RUN_FILE).exists():
        run.save(directory)
        return
    before = Run.load(directory)
    if is_longer(run, before):
        steps = before.recipe.training.steps
        say(f"the run of {steps} steps goes on to step {run.recipe.training.steps}")
        if (results := directory / RESULTS_FILE).exists():
            kept = results.with_name(f"results-{steps}-steps.json")
            with saving(kept):
                results.rename(kept)
        run.save(directory)
