"""Which checkpoints are whole, and what can be loaded."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch

from samplewise.asr.checkpoint import (
    RUN_FILE,
    Run,
    checkpoints,
    fault,
    is_unfinished,
    is_whole,
    last_checkpoint,
    load_recogniser,
)
from samplewise.asr.errors import UserError

from .made import make_run, write_checkpoint

RUN = make_run()


@pytest.fixture
def run_directory(tmp_path):
    RUN.save(tmp_path)
    for step in (9, 10, 100):
        write_checkpoint(tmp_path, step)
    (tmp_path / "checkpoint-old").mkdir()
    return tmp_path


def test_the_newest_is_that_of_the_most_steps(run_directory):
    assert [path.name for path in checkpoints(run_directory)] == ["checkpoint-9", "checkpoint-10", "checkpoint-100"]
    assert last_checkpoint(run_directory).name == "checkpoint-100"
    assert last_checkpoint(run_directory / "checkpoint-9") is None


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"])
@pytest.mark.parametrize("how", ["absent", "cut"])
def test_a_half_written_checkpoint_is_not_taken(run_directory, name, how):
    path = run_directory / "checkpoint-100" / name
    if how == "cut":
        path.write_bytes(path.read_bytes()[:-8])
    else:
        path.unlink()
    if name == "rng_state.pth" and how == "absent":  # other processes have files of other names
        assert not list(path.parent.glob("rng_state*"))
    assert not is_whole(path.parent)
    assert last_checkpoint(run_directory).name == "checkpoint-10"


def test_a_run_is_loaded_as_it_was_saved(run_directory):
    loaded = Run.load(run_directory)
    assert loaded.recipe == RUN.recipe and loaded.data == RUN.data
    assert loaded.tokenizer.to_plain() == RUN.tokenizer.to_plain()


@pytest.mark.parametrize("name", [".", "checkpoint-100"])
def test_a_run_directory_or_a_checkpoint_is_loaded(run_directory, name):
    recogniser = load_recogniser(run_directory / name)
    expected = safetensors.torch.load_file(run_directory / "checkpoint-100" / "model.safetensors")
    assert all(torch.equal(expected[key], value.cpu()) for key, value in recogniser.model.state_dict().items())
    assert not recogniser.model.training


def test_a_checkpoint_moved_away_takes_its_own_run_file(run_directory, tmp_path_factory):
    RUN.save(run_directory / "checkpoint-10")
    moved = tmp_path_factory.mktemp("elsewhere") / "model"
    shutil.move(run_directory / "checkpoint-10", moved)
    assert load_recogniser(moved).run.recipe == RUN.recipe


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda d: shutil.rmtree(d), "no checkpoint at"),
        (lambda d: [shutil.rmtree(c) for c in checkpoints(d)], "holds no whole checkpoint"),
        (lambda d: (d / RUN_FILE).unlink(), "no run.json"),
        (lambda d: (d / RUN_FILE).write_text("{"), "damaged"),
        (lambda d: (d / RUN_FILE).write_text('{"format": 99}'), "format 99"),
        (lambda d: safetensors.torch.save_file({}, d / "checkpoint-100" / "model.safetensors"), "weights"),
    ],
)
def test_what_cannot_be_loaded_is_told(run_directory, spoil, message):
    spoil(run_directory)
    with pytest.raises(UserError, match=message):
        load_recogniser(run_directory)


def test_a_checkpoint_under_another_step_is_not_taken(run_directory):
    shutil.copytree(run_directory / "checkpoint-10", run_directory / "checkpoint-200")
    assert last_checkpoint(run_directory).name == "checkpoint-100"


FILES = ["model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"]


@pytest.mark.parametrize("name", FILES)
def test_a_disk_that_does_not_answer_is_no_damage(run_directory, monkeypatch, name):
    """Nothing may be concluded from it, least of all that a checkpoint can be removed."""
    opened = Path.open

    def fail(self, *args, **options):
        if self.name == name and self.parent.name == "checkpoint-100":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(self))
        return opened(self, *args, **options)

    monkeypatch.setattr(Path, "open", fail)
    with pytest.raises(UserError, match=f"cannot read .*checkpoint-100/{name}: Input/output error. Nothing was removed"):
        fault(run_directory / "checkpoint-100")
    with pytest.raises(UserError, match="Input/output error"):
        load_recogniser(run_directory)


@pytest.mark.parametrize("name", FILES)
def test_what_is_wrong_is_told_by_its_file(run_directory, name):
    path = run_directory / "checkpoint-100" / name
    assert fault(path.parent, thorough=True) == ""
    whole = path.read_bytes()
    path.write_bytes(whole[:-8])
    assert fault(path.parent) == f"{name} is damaged"
    path.unlink()
    assert fault(path.parent) == f"{name} is not there"
    assert is_unfinished(path.parent) == (name == "trainer_state.json")
    path.write_bytes(whole)
    assert not is_unfinished(path.parent)


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_damage_in_the_middle_is_found_before_a_run_goes_on(run_directory, name):
    path = run_directory / "checkpoint-100" / name
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 255
    path.write_bytes(whole)
    assert fault(path.parent, thorough=True) == f"{name} is damaged"
    assert last_checkpoint(run_directory, thorough=True).name == "checkpoint-10"


def test_weights_that_somebody_keeps_alone_are_not_unfinished(run_directory):
    RUN.save(run_directory / "checkpoint-10")
    (run_directory / "checkpoint-10" / "trainer_state.json").unlink()
    assert not is_unfinished(run_directory / "checkpoint-10")
