"""Which checkpoints are whole, and what can be loaded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch

from samplewise.asr.checkpoint import (
    RUN_FILE,
    Run,
    checkpoints,
    is_whole,
    last_checkpoint,
    load_recogniser,
)
from samplewise.asr.problems import UserError
from samplewise.asr.tokenizer import CharacterTokenizer

from .made import tiny_recipe

RUN = Run(tiny_recipe(), CharacterTokenizer(" efghinorstuvwxz"), {"fingerprint": "x"})


def write_checkpoint(directory: Path, step: int) -> Path:
    """The files of a checkpoint as the Trainer writes them."""
    checkpoint = directory / f"checkpoint-{step}"
    checkpoint.mkdir(parents=True)
    torch.manual_seed(step)
    model, _ = RUN.make_model()
    safetensors.torch.save_file(model.state_dict(), checkpoint / "model.safetensors")
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        torch.save({"state": torch.arange(1000)}, checkpoint / name)
    (checkpoint / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return checkpoint


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
