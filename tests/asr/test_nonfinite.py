"""Steps that are not finite: the weights do not see them, the run's log names and counts them, and there is a bound."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers

from samplewise.asr.checkpoint import last_checkpoint
from samplewise.asr.errors import UserError, WriteError
from samplewise.asr.nonfinite import SHOWN, Nonfinite, told
from samplewise.asr.recipe import TrainingOptions
from samplewise.asr.train import run_trainer
from samplewise.asr.trainer import LOG_FILE, Progress, TransducerTrainer
from samplewise.asr.writing import read_json_lines

from .made import make_run


class Stub(torch.nn.Module):
    """Stands for a Transducer of one parameter: its loss is (w - x)^2, x being a batch's features."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([3.0]))
        self.encoder = SimpleNamespace(output_length=lambda length: length)

    def forward(self, features, feature_lengths, targets, target_lengths, generator=None):
        loss = ((self.weight - features) ** 2).mean()
        return {"loss": loss, "transducer": loss.detach()}


class Rows(torch.utils.data.Dataset):
    corpus = SimpleNamespace(seconds=lambda epoch, index: 1.0)

    def __init__(self, values: list[float]):
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, self.values[index]


def collate(rows):
    one = torch.ones(len(rows), dtype=torch.long)
    return {
        "features": torch.tensor([[value] for _, value in rows]),
        "feature_lengths": one,
        "targets": one[:, None],
        "target_lengths": one,
        "keys": [f"utterance {index}" for index, _ in rows],
    }


def make_trainer(directory: Path, values: list[float], say=print, **changes) -> TransducerTrainer:
    """A trainer of the stub on these values in their order, one a step."""
    changes = {f"training__{name}": value for name, value in {"steps": len(values), "save_every": 100, **changes}.items()}
    trainer = TransducerTrainer(Stub(), make_run(**changes), directory, Progress(), Rows(values), None, say)
    accumulate = trainer.recipe.training.accumulate
    loader = torch.utils.data.DataLoader(Rows(values * accumulate), batch_size=1, collate_fn=collate)
    trainer.get_train_dataloader = lambda: trainer.accelerator.prepare(loader)
    return trainer


@pytest.mark.parametrize("value", [math.nan, math.inf], ids=str)
def test_a_step_that_is_not_finite_is_left_out_named_and_counted(tmp_path, said, value):
    trainer = make_trainer(tmp_path, [1.0, value, 2.0], said)
    weights = []
    note = transformers.TrainerCallback()
    note.on_step_end = lambda *args, **kwargs: weights.append(trainer.model.weight.item())
    trainer.add_callback(note)
    trainer.train()
    assert all(map(math.isfinite, weights)) and trainer.nonfinite.steps == 1
    assert "left out (number 1): step 2: its loss is" in said.text and "utterance 1" in said.text
    assert [each["step"] for each in trainer.nonfinite.found] == [2]
    assert trainer.nonfinite.found[0]["batches"] == [{"loss": f"{value:g}", "utterances": ["utterance 1"]}]
    lines = list(read_json_lines(tmp_path / LOG_FILE))
    assert "NaN" not in (tmp_path / LOG_FILE).read_text() and "Infinity" not in (tmp_path / LOG_FILE).read_text()
    assert [line["loss"] for line in lines[:3]] == [pytest.approx(4.0), None, pytest.approx((weights[1] - 2.0) ** 2, rel=1e-4)]
    assert [line.get("nonfinite_steps") for line in lines[:3]] == [None, 1, 1]


def test_the_losses_of_a_line_of_the_log_are_those_of_finite_batches(tmp_path, said):
    trainer = make_trainer(tmp_path, [1.0, math.nan], said, log_every=2, learning_rate=1e-9)
    trainer.train()
    (line, *_) = read_json_lines(tmp_path / LOG_FILE)
    assert line["loss"] == pytest.approx(4.0) and line["transducer_nats_per_label"] == pytest.approx(4.0)


def test_one_batch_of_an_accumulated_step_takes_the_step(tmp_path, said):
    trainer = make_trainer(tmp_path, [math.nan, 1.0, 1.0, 1.0], said, accumulate=2, steps=2)
    trainer.train()
    assert [each["step"] for each in trainer.nonfinite.found] == [1]
    assert trainer.nonfinite.found[0]["batches"] == [{"loss": "nan", "utterances": ["utterance 0"]}], "the guilty one alone"


def test_gradients_alone_are_enough(tmp_path, said):
    trainer = make_trainer(tmp_path, [1.0, 1.0], said)
    trainer.transducer.weight.register_hook(lambda gradient: gradient * math.inf)
    trainer.train()
    assert math.isfinite(trainer.model.weight.item()) and trainer.nonfinite.steps == 2
    assert "step 1: its gradients are not finite, its loss is 4; its utterances:\n  utterance 0" in said.text


def test_an_infinite_loss_is_enough(tmp_path, said):
    """An utterance without a path has zero gradients; those of the others of its step are finite."""
    trainer = make_trainer(tmp_path, [1.0], said, warmup_steps=0)
    forward = trainer.transducer.forward
    trainer.transducer.forward = lambda **inputs: {name: loss + math.inf for name, loss in forward(**inputs).items()}
    trainer.train()
    assert trainer.nonfinite.steps == 1 and trainer.model.weight.item() == 3.0
    assert "step 1: its loss is inf" in said.text


def test_the_run_ends_beyond_the_bound_and_saves_its_weights(tmp_path, said):
    values = [1.0, math.nan, math.nan, 1.0, math.nan, 1.0]
    trainer = make_trainer(tmp_path, values, said, most_nonfinite=1)
    with pytest.raises(
        UserError, match=r"step 3: (.|\n)*2 steps were not finite, more than training\.most_nonfinite allows .1."
    ):
        run_trainer(trainer, None, said)
    assert last_checkpoint(tmp_path).name == "checkpoint-3" and trainer.state.global_step == 3
    again = make_trainer(tmp_path, values, said, most_nonfinite=5)
    assert run_trainer(again, tmp_path / "checkpoint-3", said) == 0
    assert [each["step"] for each in again.nonfinite.found] == [2, 3, 5], "a resumed run knows of them"
    assert again.nonfinite.steps == 3 and math.isfinite(again.model.weight.item())


def test_a_recipe_that_wants_none_ends_at_once(tmp_path, said):
    trainer = make_trainer(tmp_path, [1.0, math.nan], said, on_nonfinite="raise")
    with pytest.raises(UserError, match=r"step 2: its loss is nan; its utterances:\n  utterance 1\nThis recipe wants none"):
        run_trainer(trainer, None, said)


def test_overflowing_gradients_are_the_scalers_business_under_fp16():
    model, control = Stub(), SimpleNamespace()
    callback = Nonfinite(TrainingOptions(precision="fp16"), print)
    model.weight.grad = torch.tensor([math.inf])
    callback.saw(4.0, ["a"])
    callback.on_pre_optimizer_step(None, SimpleNamespace(global_step=0), control, model=model)
    assert callback.steps == 0 and model.weight.grad is not None
    callback.saw(math.nan, ["a"])
    callback.on_pre_optimizer_step(None, SimpleNamespace(global_step=1), control, model=model)
    assert callback.steps == 1 and model.weight.grad is not None, "it needs to see why it leaves the step out"


def test_a_step_of_many_utterances_is_told_in_short():
    line = told(7, [{"loss": math.nan, "utterances": [str(i) for i in range(SHOWN + 5)]}])
    assert line.endswith(f"{SHOWN - 1}\n  and 5 more")


def test_a_full_disk_leaves_no_half_checkpoint(tmp_path, said, monkeypatch):
    """Refused before it begins; and where the room went in the middle, taken back."""
    trainer = make_trainer(tmp_path, [1.0, 1.0, 1.0, 1.0], said, save_every=2)
    with (
        monkeypatch.context() as patch,
        pytest.raises(WriteError, match=r"checkpoint-2: the disk is full: 64\.0 KiB are needed, 5 B"),
    ):
        patch.setattr("samplewise.asr.writing.free_bytes", lambda path: 5)
        run_trainer(trainer, None, said)
    assert not list(tmp_path.glob("checkpoint-*"))

    def fail(*args, **options):
        raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534")

    trainer = make_trainer(tmp_path, [1.0, 1.0, 1.0, 1.0], said, save_every=2)
    with monkeypatch.context() as patch, pytest.raises(WriteError, match=r"cannot write .*checkpoint-4: .*unexpected pos"):
        save = trainer._save_scaler
        patch.setattr(trainer, "_save_scaler", lambda place: save(place) if place.endswith("-2") else fail())
        run_trainer(trainer, None, said)
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-2"]
    assert last_checkpoint(tmp_path).name == "checkpoint-2"
    assert json.loads((tmp_path / LOG_FILE).read_text().splitlines()[-1])["step"] == 4


def test_checkpoints_are_kept_as_many_as_asked_and_others_not_touched(tmp_path, said):
    (tmp_path / "checkpoint-best").mkdir()
    make_trainer(tmp_path, [1.0] * 4, said, save_every=1).train()
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == ["checkpoint-3", "checkpoint-4", "checkpoint-best"]
    shutil.rmtree(tmp_path / "checkpoint-best")


def test_an_extended_run_is_the_longer_one_from_its_beginning(tmp_path, said):
    """To the last digit, with learning rates that do not know the end."""
    weights = []
    for steps, start in ((4, None), (2, None), (4, tmp_path / "2" / "checkpoint-2")):
        trainer = make_trainer(tmp_path / "2" if start else tmp_path / str(steps), [1.0, 2.0, 0.5, 4.0], said, steps=steps,
                               schedule="inverse_sqrt")  # fmt: skip
        run_trainer(trainer, start, said)
        weights.append((trainer.state.global_step, trainer.model.weight.item()))
    assert weights[0] == weights[2] and weights[1][0] == 2 and weights[1] != weights[0]
