"""What the trainer counts and draws, process by process and batch by batch, without training anything."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers

from samplewise import Observation
from samplewise.asr.checkpoint import Run
from samplewise.asr.tokenizer import CharacterTokenizer
from samplewise.asr.trainer import Progress, TransducerTrainer

from .made import tiny_recipe

CHARACTERS = " efghinorstuvwxz"


class Strings:
    """Twenty training examples, none of which is ever made."""

    corpus = None

    def __len__(self) -> int:
        return 20


def make_trainer(directory: Path, **changes) -> TransducerTrainer:
    run = Run(tiny_recipe(**changes), CharacterTokenizer(CHARACTERS), {})
    model, _ = run.make_model()
    return TransducerTrainer(model, run, directory, Progress(), Strings(), None)


@pytest.fixture
def trainer(tmp_path) -> TransducerTrainer:
    return make_trainer(tmp_path)


def losses_of(**numbers: float):
    """A model that gives these losses, whatever it is given."""

    def forward(**inputs) -> dict[str, torch.Tensor]:
        return {name: torch.tensor(number) for name, number in {"loss": 1.0, **numbers}.items()}

    forward.training = True
    return forward


def batch(*labels: int, frames: int = 10) -> dict:
    """A batch of utterances of so many labels each."""
    return {
        "features": torch.zeros(len(labels), frames, 12),
        "feature_lengths": torch.full((len(labels),), frames),
        "targets": torch.ones(len(labels), max(labels), dtype=torch.long),
        "target_lengths": torch.tensor(labels),
        "keys": [f"utterance {i}" for i in range(len(labels))],
    }


def test_losses_of_unequal_batches_are_weighted_by_their_utterances(trainer):
    """A batch's loss is the mean over its utterances; what is logged is the sum over utterances, by the sum of labels."""
    trainer.compute_loss(losses_of(transducer=2.0, ctc=1.0), batch(1, 2, 3))
    trainer.compute_loss(losses_of(transducer=9.0, ctc=4.0), batch(6))
    trainer.log({"loss": 3.0})
    line = trainer.state.log_history[-1]
    assert line["transducer_nats_per_label"] == pytest.approx((3 * 2.0 + 1 * 9.0) / (1 + 2 + 3 + 6))
    assert line["ctc_nats_per_label"] == pytest.approx((3 * 1.0 + 1 * 4.0) / 12)
    trainer.compute_loss(losses_of(transducer=5.0), batch(4, 1))
    trainer.log({"loss": 3.0})
    assert trainer.state.log_history[-1]["transducer_nats_per_label"] == pytest.approx(2 * 5.0 / 5), "since the last line"


def test_sampled_classes_are_a_mean_over_utterances(tmp_path):
    trainer = make_trainer(tmp_path, sampling={"size": 6, "negatives": "uniform"})
    trainer.compute_loss(losses_of(sampled=2.0, classes=8.0), batch(1, 2, 3))
    trainer.compute_loss(losses_of(sampled=2.0, classes=16.0), batch(4))
    trainer.log({"loss": 3.0})
    assert trainer.state.log_history[-1]["sampled_classes"] == pytest.approx((3 * 8 + 16) / 4)


def test_an_epoch_is_as_many_utterances_over_all_processes(trainer, monkeypatch):
    trainer.progress.utterances = 15
    trainer.log({})
    assert trainer.state.log_history[-1]["epoch"] == 15 / 20
    monkeypatch.setattr(transformers.TrainingArguments, "world_size", 4)
    trainer.log({})
    assert trainer.state.log_history[-1]["epoch"] == 4 * 15 / 20


@pytest.mark.parametrize(("processes", "accumulate"), [(1, 1), (4, 1), (4, 2)])
def test_a_step_has_a_batch_for_every_process(tmp_path, monkeypatch, processes, accumulate):
    trainer = make_trainer(tmp_path, training__accumulate=accumulate)
    monkeypatch.setattr(transformers.TrainingArguments, "world_size", processes)
    monkeypatch.setattr(trainer.accelerator, "prepare", lambda loader: loader)
    batches = trainer.get_train_dataloader().batch_sampler
    assert (batches.batches, batches.steps, batches.size) == (processes * accumulate, 6, 4)


def drawn(trainer: TransducerTrainer) -> int:
    """What the next batch's classes are drawn from."""
    return trainer._class_generator().initial_seed()


def test_every_process_step_and_batch_draws_classes_of_its_own(tmp_path, monkeypatch):
    """And the same ones again, when a run goes on from a checkpoint."""
    seeds = {}
    for process in range(3):
        monkeypatch.setattr(transformers.TrainingArguments, "process_index", process)
        trainer = make_trainer(tmp_path)
        for step in range(3):
            trainer.state.global_step = step
            seeds |= {(process, step, number): drawn(trainer) for number in range(2)}
    assert len(set(seeds.values())) == len(seeds) == 18
    trainer = make_trainer(tmp_path)
    trainer.state.global_step = 2
    assert [drawn(trainer), drawn(trainer)] == [seeds[2, 2, 0], seeds[2, 2, 1]]
    other = make_trainer(tmp_path, seed=2)
    other.state.global_step = 2
    assert drawn(other) not in seeds.values()


def test_the_largest_batch_is_that_of_most_nodes():
    """B T (U + 1) with padding: 60 nodes, then 54, though B T U is 30 and 45."""
    progress = Progress()
    progress.saw([30], [1])
    progress.saw([9], [5])
    assert progress.largest == {"encoder_lengths": [30], "target_lengths": [1]} and progress.nodes == 60
    progress.saw([5, 2, 3], [0, 4, 1])
    assert progress.nodes == 3 * 5 * 5 and progress.largest["target_lengths"] == [0, 4, 1], "padding counts"
    assert progress.utterances == 5


def test_progress_outlives_a_process():
    """Seconds and counts of the parts of a run add up; a run that starts anew counts from 0."""
    before = Progress()
    before.before, before.cpu_before = 100.0, 50.0
    before.saw([4, 4], [1, 2])
    saved = SimpleNamespace(stateful_callbacks={"Progress": before.state()}, global_step=3)
    after, anew = Progress(), Progress()
    after.on_train_begin(None, saved, None)
    assert 100.0 <= after.seconds < 160.0 and 50.0 <= after.cpu_seconds < 110.0
    assert (after.utterances, after.nodes, after.largest) == (2, 2 * 4 * 3, before.largest)
    saved.global_step = 0
    anew.on_train_begin(None, saved, None)
    assert anew.utterances == 0 and anew.seconds < 60.0


def test_what_the_losses_did_is_over_all_batches_and_processes(trainer, monkeypatch):
    """The share of nodes is a ratio of sums; the bound the largest."""
    other = torch.tensor([[50.0, 100.0, 2e-9]], dtype=torch.float64)
    monkeypatch.setattr(trainer.accelerator, "gather", lambda own: torch.cat([own, other]))
    for active, nodes, bound in ((10, 100, 1e-9), (90, 300, 3e-9)):
        group = SimpleNamespace(active_nodes=active, nodes=nodes, bound=bound)
        trainer.reports.add(SimpleNamespace(groups=[group]))
    trainer.sums = {"labels": 1.0, "batches": 2.0, "finite": 2.0}
    trainer.log({"loss": 3.0})
    line = trainer.state.log_history[-1]
    assert (line["active_share"], line["bound"]) == (pytest.approx(150 / 500), pytest.approx(3e-9))
    assert Observation().groups == []
