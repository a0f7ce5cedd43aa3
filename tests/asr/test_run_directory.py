"""Run directories: who may begin in them, what a run goes on from, and that nothing of the user's is removed."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from samplewise.asr.checkpoint import RUN_FILE, Run, checkpoints, last_checkpoint
from samplewise.asr.errors import UserError
from samplewise.asr.results import RESULTS_FILE
from samplewise.asr.run_directory import (
    LOCK_FILE,
    SKIPPED_FILE,
    check_directory,
    check_same,
    find_checkpoint,
    keep_run,
    occupied,
    remove_old,
)

from .made import make_run, write_checkpoint


@pytest.fixture
def directory(tmp_path) -> Path:
    make_run().save(tmp_path)
    for step in (3, 6, 9):
        write_checkpoint(tmp_path, step)
        make_run().save(tmp_path / f"checkpoint-{step}")
    return tmp_path


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)


def test_a_failing_read_stops_the_run_and_removes_nothing(directory, said, monkeypatch):
    read = Path.open

    def fail(self, *args, **options):
        if self.name == "trainer_state.json":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(self, *args, **options)

    before = contents(directory)
    with monkeypatch.context() as patch, pytest.raises(UserError, match=r"checkpoint-9/trainer_state\.json: Input/output"):
        patch.setattr(Path, "open", fail)
        find_checkpoint(directory, True, said)
    assert contents(directory) == before and said.lines == []
    assert find_checkpoint(directory, True, said).name == "checkpoint-9"


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_a_damaged_checkpoint_is_told_kept_aside_and_the_one_before_taken(directory, said, name):
    damage(directory / "checkpoint-9" / name)
    before = contents(directory / "checkpoint-9")
    assert find_checkpoint(directory, True, said).name == "checkpoint-6"
    assert f"checkpoint-9 cannot be gone on from: {name} is damaged; moved to {directory / 'checkpoint-9.aside'}" in said.text
    assert contents(directory / "checkpoint-9.aside") == before
    assert last_checkpoint(directory).name == "checkpoint-6"


def test_nothing_whole_is_no_reason_to_begin_anew(directory, said):
    for checkpoint in checkpoints(directory):
        damage(checkpoint / "optimizer.pt")
    before = contents(directory)
    with pytest.raises(UserError, match=r"no checkpoint(.|\n)*checkpoint-6: optimizer\.pt is damaged(.|\n)*--output ANOTHER"):
        find_checkpoint(directory, True, said)
    assert contents(directory) == before


def test_only_what_a_killed_process_left_behind_is_removed(directory, said):
    half = write_checkpoint(directory, 12)
    (half / "trainer_state.json").unlink()
    alone = directory / "checkpoint-15"  # weights that somebody keeps, without the optimizer
    shutil.copytree(directory / "checkpoint-9", alone)
    for name in ("trainer_state.json", "optimizer.pt"):
        (alone / name).unlink()
    assert find_checkpoint(directory, True, said).name == "checkpoint-9"
    assert not half.exists() and f"{half} was not written to its end; removed" in said.text
    assert (directory / "checkpoint-15.aside" / "model.safetensors").exists()


@pytest.mark.parametrize("names", [["model.safetensors"], ["notes.txt"], ["model.safetensors", "optimizer.pt", "notes.txt"]])
@pytest.mark.parametrize("before", [True, False])
def test_what_somebody_put_there_is_kept_aside(directory, said, names, before):
    for checkpoint in checkpoints(directory) if not before else ():
        shutil.rmtree(checkpoint)
    (directory / "checkpoint-12").mkdir()
    for name in names:
        (directory / "checkpoint-12" / name).write_text("mine")
    found = find_checkpoint(directory, True, said)
    assert found == (directory / "checkpoint-9" if before else None)
    assert contents(directory / "checkpoint-12.aside") == dict.fromkeys(names, b"mine")
    assert f"moved to {directory / 'checkpoint-12.aside'}" in said.text


def test_a_listing_that_fails_is_not_taken_for_an_empty_directory(directory, said, monkeypatch):
    scan = os.scandir

    def fail(path, failing):
        if Path(path) == failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return scan(path)

    before = contents(directory)
    for failing in (directory, directory / "checkpoint-9"):
        with monkeypatch.context() as patch:
            patch.setattr(os, "scandir", lambda path, failing=failing: fail(path, failing))
            with pytest.raises(UserError, match=f"cannot read {failing}: Input/output error. Nothing was removed"):
                find_checkpoint(directory, True, said)
            if failing == directory:
                with pytest.raises(UserError, match=f"cannot read {directory}: Input/output error"):
                    check_directory(directory, False)
    assert contents(directory) == before and said.lines == []


def test_a_kill_while_a_checkpoint_is_removed_leaves_nothing_for_long(directory, said, monkeypatch):
    def killed(path, **options):
        if path.exists():
            (path / "optimizer.pt").unlink()
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shutil, "rmtree", killed)
        remove_old(directory, 2)
    assert [path.name for path in checkpoints(directory)] == ["checkpoint-6", "checkpoint-9"]
    assert (directory / "checkpoint-3.removed").is_dir()
    assert find_checkpoint(directory, True, said).name == "checkpoint-9"
    assert not (directory / "checkpoint-3.removed").exists()


def test_old_checkpoints_are_removed_and_nothing_else(directory):
    for name in ("checkpoint-best", "checkpoint-3.aside"):
        shutil.copytree(directory / "checkpoint-3", directory / name)
    damage(directory / "checkpoint-6" / "model.safetensors")
    (directory / "checkpoint-6" / "model.safetensors").write_bytes(b"x")
    write_checkpoint(directory, 12)
    remove_old(directory, 2)
    left = sorted(path.name for path in directory.glob("checkpoint*"))
    assert left == ["checkpoint-12", "checkpoint-3.aside", "checkpoint-6", "checkpoint-9", "checkpoint-best"]


@pytest.mark.parametrize("names", [[LOCK_FILE], [LOCK_FILE, SKIPPED_FILE], ["run.json.partial"], [".DS_Store", "._x"], []])
@pytest.mark.parametrize("resume", [True, False])
def test_a_start_that_came_to_nothing_is_no_run(tmp_path, names, resume):
    for name in names:
        (tmp_path / name).write_text("x")
    check_directory(tmp_path, resume)


@pytest.mark.parametrize("name", ["notes.txt", "checkpoint-3", "log.jsonl"])
def test_what_is_somebody_elses_is_refused(tmp_path, name):
    (tmp_path / name).mkdir()
    with pytest.raises(UserError, match=f"is not empty .it holds {name}"):
        check_directory(tmp_path, False)
    with pytest.raises(UserError, match="nothing to resume"):
        check_directory(tmp_path, True)


def begin(directory: Path, failure: type[BaseException], *, run: bool = False) -> None:
    with occupied(directory):
        assert (directory / LOCK_FILE).exists()
        if run:
            make_run().save(directory)
        raise failure


@pytest.mark.parametrize("failure", [UserError, KeyboardInterrupt])
def test_a_failed_start_leaves_nothing(tmp_path, failure):
    with pytest.raises(failure):
        begin(tmp_path / "runs" / "new", failure)
    assert not list(tmp_path.iterdir())
    (tmp_path / "mine").mkdir()
    with pytest.raises(failure):
        begin(tmp_path / "mine" / "new", failure)
    with pytest.raises(failure):
        begin(tmp_path / "mine", failure)
    assert not list((tmp_path / "mine").iterdir())


def test_a_failed_start_keeps_what_it_found_and_a_run_its_directory(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / SKIPPED_FILE).write_text("x")
    with pytest.raises(UserError):
        begin(tmp_path / "data", UserError)
    assert [path.name for path in (tmp_path / "data").iterdir()] == [SKIPPED_FILE]
    with pytest.raises(UserError):
        begin(tmp_path / "run", UserError, run=True)
    assert (tmp_path / "run" / RUN_FILE).exists()


@pytest.mark.parametrize("schedule", ["constant_with_warmup", "inverse_sqrt"])
def test_a_run_is_extended_where_learning_rates_do_not_know_the_end(tmp_path, said, schedule):
    before, longer = (make_run(training__schedule=schedule, training__steps=steps) for steps in (6, 9))
    before.save(tmp_path)
    (tmp_path / RESULTS_FILE).write_text(json.dumps({"steps": 6}))
    check_same(longer, tmp_path, said)
    assert Run.load(tmp_path).recipe == before.recipe, "as long as the run has not begun"
    keep_run(longer, tmp_path, said)
    assert said.lines == ["the run of 6 steps goes on to step 9"]
    assert Run.load(tmp_path).recipe.training.steps == 9
    assert json.loads((tmp_path / "results-6-steps.json").read_text()) == {"steps": 6}
    with pytest.raises(UserError, match=r"training\.steps: 9 became 6"):
        check_same(before, tmp_path, said)
    other = make_run(training__schedule=schedule, training__steps=12, training__learning_rate=0.5)
    with pytest.raises(UserError, match=r"differs(.|\n)*learning_rate: 0.01 became 0.5") as error:
        check_same(other, tmp_path, said)
    assert "training.steps" not in str(error.value)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_where_they_do_the_reason_and_the_way_are_told(tmp_path, said, schedule):
    make_run(training__schedule=schedule).save(tmp_path)
    reason = rf"steps: 6 became 9(.|\n)*{schedule} .* falls to zero at the last step.*training\.start_from={tmp_path}"
    with pytest.raises(UserError, match=reason):
        check_same(make_run(training__schedule=schedule, training__steps=9), tmp_path, said)
    with pytest.raises(UserError, match="steps: 6 became 3") as error:
        check_same(make_run(training__schedule=schedule, training__steps=3), tmp_path, said)
    assert "start_from" not in str(error.value)
