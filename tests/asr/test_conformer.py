"""The Conformer encoder: lengths, padding that is never seen, gradients, and a model made by a recipe."""

from __future__ import annotations

import math

import pytest
import torch

from samplewise.asr.conformer import ConformerEncoder
from samplewise.asr.model import ENCODERS, Transducer
from samplewise.asr.options import ConformerOptions
from samplewise.asr.recipe import recipe_from_plain
from samplewise.asr.train import train

from .made import TINY, changed, tiny_recipe

SMALL = {"layers": 2, "hidden": 16, "heads": 2, "feed_forward": 32, "kernel": 5, "channels": 8}


def encoder(dim: int = 12, **changes) -> ConformerEncoder:
    torch.manual_seed(0)
    return ENCODERS["conformer"](dim, ConformerOptions(**{**SMALL, **changes}))


@pytest.mark.parametrize("subsampling", [2, 4, 8])
@pytest.mark.parametrize("frames", [1, 4, 7, 8, 9, 30])
@pytest.mark.parametrize("dim", [12, 13])
def test_it_tells_its_lengths(subsampling, frames, dim):
    network = encoder(dim, subsampling=subsampling)
    output, lengths = network(torch.randn(2, frames, dim), torch.tensor([frames, max(1, frames - 3)]))
    assert output.shape == (2, network.output_length(frames), network.dim)
    assert lengths.tolist() == [network.output_length(frames), network.output_length(max(1, frames - 3))]
    assert network.output_length(frames) == -(-frames // subsampling)


def test_it_gives_its_layers():
    network = encoder(layers=3).eval()
    features, lengths = torch.randn(2, 24, 12), torch.tensor([24, 15])
    outputs, encoder_lengths = network.layers(features, lengths)
    assert len(outputs) == network.depth == 3 and encoder_lengths.tolist() == [6, 4]
    torch.testing.assert_close(outputs[-1], network(features, lengths)[0])
    assert not torch.allclose(outputs[0], outputs[1])


def test_nothing_in_nothing_out():
    network = encoder()
    output, lengths = network(torch.zeros(2, 0, 12), torch.tensor([0, 0]))
    assert output.shape == (2, 0, 16) and lengths.tolist() == [0, 0] and network.output_length(0) == 0


def test_batch_mates_and_padding_have_no_influence():
    network = encoder().eval()
    features, lengths = torch.randn(3, 40, 12), torch.tensor([40, 23, 9])
    features[1, 23:] = float("nan")
    with torch.no_grad():
        together, found = network(features, lengths)
        for utterance, length in enumerate(lengths.tolist()):
            alone, _ = network(features[utterance : utterance + 1, :length], lengths[utterance : utterance + 1])
            torch.testing.assert_close(together[utterance, : found[utterance]], alone[0], rtol=1e-4, atol=1e-5)


def test_it_sees_more_than_one_frame_and_every_parameter_gets_a_gradient():
    network = encoder()
    features = torch.randn(2, 40, 12, requires_grad=True)
    output, _ = network(features, torch.tensor([40, 31]))
    output[0, 0].square().sum().backward()
    assert features.grad is not None and features.grad[0, 39].abs().sum() > 0
    assert all(parameter.grad is not None for parameter in network.parameters())


def test_the_features_get_through_the_convolutions():
    """The weights that `transformers` draws hand on next to nothing of them."""
    network = encoder(80, hidden=64, heads=4, channels=32).network.eval()
    with torch.no_grad():
        assert 0.02 < network.subsampling(torch.randn(4, 80, 80), torch.ones(4, 80, dtype=torch.bool)).std() < 2


def test_it_learns(digits_directory, tmp_path, monkeypatch):
    monkeypatch.setattr("samplewise.asr.train.measure", lambda step: None)
    options = {"kind": "conformer", **SMALL, "hidden": 32, "feed_forward": 64, "channels": 16, "subsampling": 2, "dropout": 0.0}
    changes = {"data.digits": [1, 1], "data.test_strings": 40, "encoder": options, "joiner.dim": 32, "training.steps": 200}
    changes |= {"training.learning_rate": 0.01, "training.schedule": "inverse_sqrt", "training.warmup_steps": 40}
    changes |= {"training.batch_size": 12, "training.length_pool": 1, "training.save_every": 1000}
    recipe = recipe_from_plain(changed(TINY, changes))
    outcome = train(recipe, tmp_path / "run", data=str(digits_directory), resume=False, say=lambda line: None)
    deaf = math.log(10) / 4  # ten words equally likely, of four letters: the loss of a model that knows words and hears nothing
    assert outcome.results["test"]["nats_per_label"] < deaf / 2


@pytest.mark.parametrize("changes", [{"hidden": 18, "heads": 4}, {"hidden": 9, "heads": 3}, {"kernel": 4}, {"layers": 0}])
def test_wrong_sizes_are_refused(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        ConformerOptions(**{**SMALL, **changes})


def test_a_recipe_selects_it_with_augmentation():
    torch.manual_seed(0)
    augment = {"kind": "spec_augment", "time_share": 0.3}
    model = Transducer(tiny_recipe(encoder={"kind": "conformer", **SMALL}, augment=augment), dim=12, vocab_size=6)
    batch = torch.randn(2, 40, 12), torch.tensor([40, 22]), torch.randint(1, 6, (2, 4)), torch.tensor([4, 2])
    assert torch.isfinite(model(*batch)["loss"])
    model.eval()
    with torch.no_grad():
        losses = [model(*batch)["loss"] for _ in range(2)]
        assert torch.equal(*losses)
        model.augment.train()
        assert not torch.equal(model(*batch)["loss"], losses[0])
