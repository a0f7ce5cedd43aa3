"""Models of every topology: their loss, what they can be trained on, and whole runs of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from samplewise.asr import train as training
from samplewise.asr.checkpoint import Run, load_recogniser, make_preparation
from samplewise.asr.corpus import Utterance
from samplewise.asr.features import make_features
from samplewise.asr.model import Transducer
from samplewise.asr.problems import BadDataError
from samplewise.asr.recipe import load_recipe
from samplewise.asr.scoring import score
from samplewise.asr.tokenizer import CharacterTokenizer
from samplewise.asr.train import train
from samplewise.reference import reference_loss_from_logits

from .made import RATE, tiny_recipe, tone
from .test_topologies import RECIPES


def batch():
    torch.manual_seed(0)
    lengths, target_lengths = torch.tensor([21, 13, 30]), torch.tensor([4, 2, 5])
    return torch.randn(3, 30, 12), lengths, torch.randint(1, 6, (3, 5)), target_lengths


def model(**changes) -> Transducer:
    torch.manual_seed(1)
    return Transducer(tiny_recipe(**changes), dim=12, vocab_size=6)


@pytest.mark.parametrize("name", RECIPES)
def test_the_loss_is_that_of_the_scores(name):
    features, lengths, targets, target_lengths = batch()
    network = model(**RECIPES[name]).eval()
    encoder_out, encoder_lengths = network.encoder(features, lengths)
    scores = network.joiner(encoder_out, network.predictor(targets))
    topology = network.joiner.topology
    assert topology.name == name.split(",")[0]
    right = reference_loss_from_logits(scores, targets, encoder_lengths, target_lengths, topology=topology)
    losses = network(features, lengths, targets, target_lengths)
    torch.testing.assert_close(losses["transducer"], right, check_dtype=False)
    losses["loss"].backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in network.parameters())


def test_big_blanks_are_classes_of_their_own():
    network = model(**RECIPES["multi_blank"])
    assert network.joiner.output.out_features == 8 and set(network.moves.blanks) == {0, 6, 7}
    assert network.predictor.embedding.num_embeddings == network.ctc_head.out_features == 6


def test_sampled_classes_that_are_all_of_them_give_the_loss_over_all():
    changes = {"encoder__dropout": 0.0, "predictor__dropout": 0.0, **RECIPES["tdt"]}
    changes["predictor"] = {"kind": "gru", "embedding": 8, "hidden": 16, "dropout": 0.0}
    del changes["predictor__dropout"]
    sampled = model(sampling={"size": 6}, **changes).train()(*batch())
    torch.testing.assert_close(sampled["sampled"], model(**changes).train()(*batch())["transducer"])


@pytest.mark.parametrize(("name", "needed"), [("regular", 1), ("modified", 6), ("tdt", 1), ("tdt, one symbol", 7)])
def test_labels_must_fit_into_the_frames_of_the_topology(name, needed):
    recipe = tiny_recipe(ctc={"weight": 0.0}, **RECIPES[name])
    tokenizer = CharacterTokenizer(" efghinorstuvwxz")
    features = make_features(recipe.features)
    network = Transducer(recipe, features.dim, tokenizer.size)
    prepare = make_preparation(Run(recipe, tokenizer, {}), network, features)

    def prepared(frames: int):
        samples = tone(1, 0, 0, 2.0)[: round(RATE * (0.025 + 0.01 * (2 * frames - 1)))]
        example = prepare(Utterance(samples, "sixten", "x"))
        assert network.encoder.output_length(len(example.features)) == frames
        return example

    assert len(prepared(needed).targets) == 6
    if needed > 1:
        with pytest.raises(BadDataError) as error:
            prepared(needed - 1)
        assert f"{needed - 1} encoder frames for 6 labels, at least {needed} needed" in str(error.value.problem)


@pytest.mark.parametrize("name", ["modified", "hat, head", "multi_blank", "tdt"])
def test_a_whole_run(name, digits_directory, tmp_path, monkeypatch, said):
    monkeypatch.setattr(training, "measure", lambda step: None)
    changes = {"training__steps": 2, "training__save_every": 2, **RECIPES[name]}
    outcome = train(tiny_recipe(**changes), tmp_path / "run", data=str(digits_directory), resume=False, say=said)
    test = outcome.results["test"]
    assert test["joint_steps"] > 0 and test["encoder_frames"] > 0
    work = f"decoding: {test['joint_steps']} joint steps in {test['encoder_frames']} encoder frames"
    assert f"test {work}" in said.text
    recogniser = load_recogniser(tmp_path / "run")
    assert recogniser.model.joiner.topology == recogniser.run.recipe.loss.structure(recogniser.run.tokenizer.size)
    again = score(str(tmp_path / "run"), "digits", data=str(digits_directory), say=said)
    assert (again.to_plain()["joint_steps"], again.errors.to_plain()) == (test["joint_steps"], again.errors.to_plain())
    assert said.lines[-2 - len(again.notes())].startswith(work)
    wide = score(str(tmp_path / "run"), "digits", data=str(digits_directory), beam=2, say=said)
    assert sum(wide.steps) > 0


def test_the_recipe_of_the_project():
    recipe = load_recipe(Path(__file__).parents[2] / "recipes" / "digits_tdt.yaml")
    topology = recipe.loss.structure(17)
    assert (topology.name, topology.extra, recipe.loss.memory_budget) == ("tdt", 5, "8MiB")
    network = Transducer(recipe, 40, 17)
    assert network.moves.durations == (0, 1, 2, 3, 4) and network.joiner.output.out_features == 22
