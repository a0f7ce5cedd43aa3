"""The model: lengths, padding that is never seen, one start symbol, and losses through public names alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import samplewise
from samplewise.asr.errors import UserError
from samplewise.asr.model import ENCODERS, LSTMEncoder, Transducer, ctc_loss, mirrored
from samplewise.asr.options import PredictorOptions
from samplewise.asr.predictor import make_predictor
from samplewise.asr.recipe import LSTMOptions
from samplewise.asr.tokenizer import BLANK

from .made import tiny_recipe


def batch(vocab: int = 6, dim: int = 12):
    torch.manual_seed(0)
    lengths, target_lengths = torch.tensor([21, 13, 30]), torch.tensor([4, 2, 5])
    return torch.randn(3, 30, dim), lengths, torch.randint(1, vocab, (3, 5)), target_lengths


def model(**changes) -> Transducer:
    torch.manual_seed(1)
    return Transducer(tiny_recipe(**changes), dim=12, vocab_size=6)


@pytest.mark.parametrize("stack", [1, 3, 4])
@pytest.mark.parametrize("frames", [1, 4, 11, 12])
def test_an_encoder_tells_its_lengths(stack, frames):
    encoder = ENCODERS["lstm"](5, LSTMOptions(stack=stack, hidden=4))
    output, lengths = encoder(torch.randn(2, frames, 5), torch.tensor([frames, max(1, frames - 2)]))
    assert output.shape == (2, encoder.output_length(frames), encoder.dim)
    assert lengths.tolist() == [encoder.output_length(frames), encoder.output_length(max(1, frames - 2))]


def test_the_encoder_is_a_bidirectional_lstm():
    encoder = LSTMEncoder(4, LSTMOptions(stack=1, layers=2, hidden=3)).eval()
    reference = nn.LSTM(4, 3, 2, bidirectional=True, batch_first=True)
    parameters = dict(reference.named_parameters())
    with torch.no_grad():
        for layer, (ahead, behind) in enumerate(zip(encoder.forwards, encoder.backwards, strict=True)):
            for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                parameters[f"{kind}_l{layer}"].copy_(getattr(ahead, f"{kind}_l0"))
                parameters[f"{kind}_l{layer}_reverse"].copy_(getattr(behind, f"{kind}_l0"))
    features, lengths = torch.randn(3, 9, 4), torch.tensor([5, 9, 1])
    packed = pack_padded_sequence(features, lengths, batch_first=True, enforce_sorted=False)
    expected, _ = pad_packed_sequence(reference(packed)[0], batch_first=True)
    found, _ = encoder(features, lengths)
    for utterance, length in enumerate(lengths):
        torch.testing.assert_close(found[utterance, :length], expected[utterance, :length])


def test_mirrored():
    assert mirrored(torch.tensor([3, 4, 1]), 4).tolist() == [[2, 1, 0, 3], [3, 2, 1, 0], [0, 1, 2, 3]]


def test_batch_mates_and_padding_have_no_influence():
    features, lengths, targets, target_lengths = batch()
    network = model().eval()
    features[1, 13:] = 1e4
    targets[1, 2:] = 5
    together = network(features, lengths, targets, target_lengths)["transducer"]
    alone = [
        network(features[i : i + 1, :n], lengths[i : i + 1], targets[i : i + 1, :u], target_lengths[i : i + 1])["transducer"]
        for i, (n, u) in enumerate(zip(lengths.tolist(), target_lengths.tolist(), strict=True))
    ]
    torch.testing.assert_close(together, torch.stack(alone).mean())


@pytest.mark.parametrize(
    "options",
    [{"kind": kind, "layers": layers} for kind in ("lstm", "gru") for layers in (1, 2)]
    + [{"kind": "stateless", "context": context} for context in (1, 2, 3)],
)
def test_the_predictor_steps_as_it_trains(options):
    predictor = make_predictor(6, PredictorOptions(embedding=5, hidden=7, **options)).eval()
    targets = torch.randint(1, 6, (3, 4))
    whole = predictor(targets)
    assert whole.shape == (3, 5, 7)
    output, state = predictor.start(3)
    torch.testing.assert_close(output, whole[:, 0])
    for u in range(4):
        output, state = predictor.step(targets[:, u], state)
        torch.testing.assert_close(output, whole[:, u + 1])


def test_training_starts_from_blank():
    predictor = make_predictor(6, PredictorOptions(embedding=5, hidden=7)).eval()
    targets = torch.tensor([[1]])
    before = predictor(targets)
    with torch.no_grad():
        predictor.embedding.weight[BLANK] += 1.0
    assert not torch.allclose(before[:, 0], predictor(targets)[:, 0])


@pytest.mark.parametrize("amount", [0.0, 0.5])
def test_the_losses_are_those_of_the_public_function(amount):
    features, lengths, targets, target_lengths = batch()
    network = model(ctc={"weight": 0.5}, loss={"fastemit_lambda": amount}).eval()
    losses = network(features, lengths, targets, target_lengths)
    encoder_out, encoder_lengths = network.encoder(features, lengths)
    joiner = network.joiner
    each = samplewise.transducer_loss(
        joiner.encoder_proj(encoder_out),
        joiner.predictor_proj(network.predictor(targets)),
        joiner.output.weight,
        joiner.output.bias,
        targets,
        encoder_lengths,
        target_lengths,
        reduction="none",
        fastemit_lambda=amount,
    )
    torch.testing.assert_close(losses["transducer"], each.mean())
    torch.testing.assert_close(losses["loss"], losses["transducer"] + 0.5 * losses["ctc"])
    got, right = (torch.autograd.grad(loss, joiner.output.weight)[0] for loss in (losses["loss"], each.mean()))
    torch.testing.assert_close(got, right)


def test_without_weight_there_is_no_ctc_head():
    network = model(ctc={"weight": 0.0})
    assert network.ctc_head is None
    assert set(network(*batch())) == {"loss", "transducer"}


def test_every_parameter_gets_a_gradient():
    network = model()
    network(*batch())["loss"].backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in network.parameters())


def test_intermediate_layers_share_the_ctc_head():
    network = model(encoder__layers=3, ctc={"weight": 0.5, "layers": [1, 2], "intermediate_weight": 0.25}).eval()
    features, lengths, targets, target_lengths = batch()
    losses = network(features, lengths, targets, target_lengths)
    outputs, encoder_lengths = network.encoder.layers(features, lengths)
    torch.testing.assert_close(outputs[-1], network.encoder(features, lengths)[0])
    assert len(outputs) == network.encoder.depth == 3
    logits = [network.ctc_head(output).log_softmax(-1) for output in outputs]
    first, second, last = (ctc_loss(each, targets, encoder_lengths, target_lengths) for each in logits)
    expected = 0.75 * last + 0.25 * (first + second) / 2
    torch.testing.assert_close(losses["ctc"], expected)
    torch.testing.assert_close(losses["loss"], losses["transducer"] + 0.5 * expected)


def test_the_last_layer_is_no_intermediate_one():
    with pytest.raises(UserError, match=r"ctc.layers: \[2\] must be intermediate .* 1 to 1"):
        model(encoder__layers=2, ctc={"layers": [2]})
