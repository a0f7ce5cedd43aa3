"""Patched transducers of transformers against the stock ones: losses, gradients, labels, what is left of 4-D logits."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import samplewise
from samplewise import TransducerError
from samplewise.integrations.transformers import MODELS, patch, unpatch
from tests.integrations.parakeets import BLANK, KINDS, PAD, batch_of, furthest, gradients, lengths_of, make, still, truth, twin
from tests.ops.test_peers import arrays, recorded
from tests.ops.test_topology_peers import disagrees, same

REDUCTIONS = ("mean_volume", "mean", "mean_batch", "sum", "none")


@pytest.mark.parametrize("reduction", [None, *REDUCTIONS])
@pytest.mark.parametrize("kind", KINDS)
def test_loss_and_gradients_are_those_of_the_stock_logits(kind, reduction):
    stock = still(make(kind))
    model, batch = still(patch(twin(stock))), batch_of(kind)
    right = truth(stock, batch, reduction or MODELS[kind])
    output = model(**batch, **({} if reduction is None else {"reduction": reduction}))
    assert output.loss.shape == right.shape and output.loss.dtype == torch.float64 and output.logits is None
    upstream = None if reduction != "none" else torch.tensor([0.5, 1.5, 0.75], dtype=torch.float64)
    torch.testing.assert_close(output.loss, right, rtol=1e-12, atol=0.0)
    assert furthest(gradients(model, output.loss, upstream), gradients(stock, right, upstream)) <= 1e-9


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_the_stock_tdt_loss_itself(reduction):
    stock = still(make("ParakeetForTDT", torch.float32))
    batch = batch_of(labels=(5, 3, 1), pad=PAD, dtype=torch.float32)
    model = still(patch(twin(stock), sigma=0.5))
    for sigma, options in ((0.5, {}), (0.0, {"sigma": 0.0})):
        right = stock(**batch, reduction=reduction, sigma=sigma).loss
        loss = model(**batch, reduction=reduction, **options).loss
        torch.testing.assert_close(loss, right, rtol=2e-6, atol=0.0)
        upstream = None if reduction != "none" else torch.tensor([0.5, 1.5, 0.75])
        assert furthest(gradients(model, loss, upstream), gradients(stock, right, upstream)) <= 5e-5


def test_the_other_outputs_stay():
    stock = still(make())
    batch = batch_of()
    before = stock(**{name: x for name, x in batch.items() if name != "labels"}, output_hidden_states=True)
    after = patch(twin(stock))(**batch, output_hidden_states=True)
    assert type(after) is type(before) and list(after) == [*list(before)[:-1], "loss"]
    assert torch.equal(after.pooler_output, before.pooler_output) and len(after.hidden_states) == len(before.hidden_states)
    as_tuple = patch(twin(stock))(**batch, return_dict=False)
    assert type(as_tuple) is tuple and len(as_tuple) == 3 and torch.equal(as_tuple[2], after.loss)


class Widest(TorchDispatchMode):
    """The most numbers that any tensor holds which an operator gives."""

    most = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        given = function(*args, **(kwargs or {}))
        for x in given if isinstance(given, list | tuple) else (given,):
            if isinstance(x, torch.Tensor):
                Widest.most = max(Widest.most, x.numel())
        return given


@pytest.mark.parametrize("training", [True, False])
def test_no_tensor_is_as_large_as_the_logits(training):
    """Batch x frames x labels x classes of these lengths: 3 x 32 x 31 x 1001."""
    stock = make(dtype=torch.float32, vocab_size=1001, blank_token_id=1000)
    batch = batch_of(labels=(30, 20, 10), frames=(256, 200, 100), dtype=torch.float32)
    largest = 3 * 32 * 31 * 1001

    def most(model):
        Widest.most = 0
        with Widest(), torch.set_grad_enabled(training):
            model.train(training)
            output = model(**batch)
            if training and output.loss is not None:
                output.loss.backward()
        return Widest.most

    patched = patch(twin(stock), memory_budget="2MiB")
    assert most(patched) < largest / 10
    labels = batch.pop("labels")
    assert most(stock) >= largest and labels.shape == (3, 30)


@pytest.mark.parametrize("pad", [PAD, BLANK, -100])
def test_padding_is_never_a_label(pad):
    stock = still(make())
    right = truth(stock, batch_of(), "none")
    model, batch = still(patch(twin(stock))), batch_of(pad=pad)
    torch.testing.assert_close(model(**batch, reduction="none").loss, right, rtol=1e-12, atol=0.0)
    del batch["decoder_input_ids"]  # are made of the labels
    torch.testing.assert_close(model(**batch, reduction="none").loss, right, rtol=1e-12, atol=0.0)
    if pad == -100:
        batch["decoder_input_ids"] = nn.functional.pad(batch["labels"], (1, 0), value=BLANK)
        torch.testing.assert_close(model(**batch, reduction="none").loss, right, rtol=1e-12, atol=0.0)


def test_a_pad_token_inside_a_transcript():
    model, batch = still(patch(make())), batch_of()
    batch["labels"][0, 1] = batch["decoder_input_ids"][0, 2] = PAD
    with pytest.raises(TransducerError, match=r"labels\[0, 1\] is 2.*labels\[0, 2\]"):
        model(**batch)
    loss = model(**batch, label_lengths=torch.tensor([5, 3, 0]), reduction="none").loss
    stock = unpatch(model)
    frames, _ = lengths_of(stock, batch)
    logits = stock(**{name: x for name, x in batch.items() if name != "labels"}).logits
    right = samplewise.rnnt_loss(logits, batch["labels"], frames, torch.tensor([5, 3, 0]), blank=BLANK, reduction="none")
    torch.testing.assert_close(loss, right, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("kind", KINDS)
def test_empty_transcripts_only(kind):
    stock = still(make(kind))
    batch = batch_of(kind, labels=(0, 0), frames=(120, 64))
    right = truth(stock, batch, "none")
    model = still(patch(twin(stock)))
    for labels in (batch["labels"], batch["labels"].float()):  # what a tokenizer makes of two empty strings
        output = model(**batch | {"labels": labels}, reduction="none")
        torch.testing.assert_close(output.loss, right, rtol=1e-12, atol=0.0)
    for reduction in REDUCTIONS[:-1]:
        assert torch.isfinite(model(**batch, reduction=reduction).loss)
    padded = batch | {"labels": torch.full((2, 3), PAD), "decoder_input_ids": torch.full((2, 4), BLANK)}
    torch.testing.assert_close(model(**padded, reduction="none").loss, right, rtol=1e-12, atol=0.0)


def test_mean_with_one_empty_transcript():
    """The stock loss is infinite; here the transcript counts as one label."""
    stock, batch = still(make("ParakeetForTDT", torch.float32)), batch_of(dtype=torch.float32, pad=PAD)
    assert torch.isinf(stock(**batch).loss)
    each = stock(**batch, reduction="none").loss
    loss = still(patch(stock))(**batch).loss
    torch.testing.assert_close(loss, (each / torch.tensor([5.0, 3.0, 1.0])).mean())


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_mask_all_frames_count(kind):
    stock, batch = still(make(kind)), batch_of(kind, frames=(120, 120, 120))
    right = truth(stock, batch, "none")
    model = still(patch(stock))
    del batch["attention_mask"]
    torch.testing.assert_close(model(**batch, reduction="none").loss, right, rtol=1e-9, atol=0.0)


def test_outputs_of_the_encoder_that_are_there_already():
    stock, batch = still(make()), batch_of()
    right = truth(stock, batch, "sum")
    encoded = stock.get_audio_features(batch.pop("input_features"), batch.pop("attention_mask"))
    logits = stock(encoder_outputs=encoded, decoder_input_ids=batch["decoder_input_ids"]).logits
    model = still(patch(stock))
    torch.testing.assert_close(model(encoder_outputs=encoded, **batch, reduction="sum").loss, right, rtol=1e-12, atol=0.0)
    encoded.attention_mask = None  # all frames count
    frames, labels = torch.full((3,), logits.shape[1]), torch.tensor([5, 3, 0])
    right = samplewise.rnnt_loss(logits, batch["labels"], frames, labels, blank=BLANK, reduction="sum")
    torch.testing.assert_close(model(encoder_outputs=encoded, **batch, reduction="sum").loss, right, rtol=1e-12, atol=0.0)


def test_arguments_by_position():
    model, batch = still(patch(make())), batch_of()
    by_name = model(**batch).loss
    mask, inputs = batch["attention_mask"], batch["decoder_input_ids"]
    by_place = model(batch["input_features"], mask, inputs, None, None, None, batch["labels"])
    assert torch.equal(by_place.loss, by_name)


def test_options_reach_the_loss():
    stock, batch = still(make()), batch_of()
    model = still(patch(twin(stock), reduction="sum", fastemit_lambda=0.5, clamp=0.01, method="tiled", memory_budget="4MiB"))
    right = truth(stock, batch, "sum", fastemit_lambda=0.5, clamp=0.01)
    assert furthest(gradients(model, model(**batch).loss), gradients(stock, right)) <= 1e-9
    plain = gradients(stock, truth(stock, batch, "sum"))
    assert furthest(gradients(model, model(**batch).loss), plain) > 1e-2


def test_dropout_is_for_training():
    stock, batch = still(make()), batch_of()
    right = truth(stock, batch, "sum")
    model = still(patch(twin(stock), reduction="sum", dropout=0.3))
    losses = [model(**batch).loss for _ in range(2)]
    assert losses[0] != losses[1] and abs(losses[0] - right) > 1e-3
    torch.testing.assert_close(model.eval()(**batch).loss, right, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("act", ["silu", "gelu", "tanh", "swish", "leaky_relu"])
def test_activations_of_the_joint(act):
    stock, batch = still(make(hidden_act=act)), batch_of()
    right = truth(stock, batch, "sum")
    torch.testing.assert_close(still(patch(twin(stock)))(**batch, reduction="sum").loss, right, rtol=1e-10, atol=0.0)


@pytest.mark.parametrize("durations", [(0, 1, 2, 3, 4), (0, 2), (4, 1, 0), (1, 3)])
def test_durations_are_those_of_the_config(durations):
    """Those without 0 or 1 give NaN gradients in the stock loss."""
    stock, batch = still(make("ParakeetForTDT", durations=durations)), batch_of(labels=(4, 3, 1))
    right = truth(stock, batch, "sum", sigma=0.1)
    model = still(patch(twin(stock), sigma=0.1))
    loss = model(**batch, reduction="sum").loss
    torch.testing.assert_close(loss, right, rtol=1e-12, atol=0.0)
    if torch.isfinite(right):
        assert furthest(gradients(model, loss), gradients(stock, right)) <= 1e-9


def test_num_items_in_batch():
    """The losses of parts add up to that of the whole."""
    model, batch = still(patch(make())), batch_of(labels=(5, 3, 2))
    parts = [{name: x[rows] for name, x in batch.items()} for rows in (slice(0, 2), slice(2, 3))]
    items = (batch["labels"] != -100).sum()
    for count in (items, int(items), items.float().reshape(1)):
        whole = sum(model(**part, num_items_in_batch=count).loss for part in parts)
        torch.testing.assert_close(whole, model(**batch, reduction="sum").loss / 10, rtol=1e-10, atol=0.0)
    padded = [part | {"labels": part["labels"].masked_fill(part["labels"] == -100, PAD)} for part in parts]
    shares = [part["labels"].numel() / 15 for part in padded]  # as Trainer counts, padding included
    for reduction in ("mean_volume", "mean", "mean_batch"):
        found = [model(**part, num_items_in_batch=15, reduction=reduction).loss for part in padded]
        alone = [model(**part, reduction=reduction).loss for part in padded]
        for loss, own, share in zip(found, alone, shares, strict=True):
            torch.testing.assert_close(loss, own * share, rtol=1e-6, atol=0.0)
    for reduction in ("sum", "none"):
        assert torch.equal(model(**batch, num_items_in_batch=7, reduction=reduction).loss,
                           model(**batch, reduction=reduction).loss)  # fmt: skip


def test_a_tokenizer_that_says_two_things(caplog):
    model, batch = still(patch(make())), batch_of()
    other = batch | {"decoder_input_ids": batch["decoder_input_ids"].clone()}
    other["decoder_input_ids"][0, 1] = 19 if other["decoder_input_ids"][0, 1] != 19 else 18
    with caplog.at_level(logging.WARNING, logger="samplewise"):
        model(**other)
        model(**other)
        assert [record.message for record in caplog.records if "decoder_input_ids" in record.message] == [
            caplog.records[0].message
        ]
        caplog.clear()
        patch(unpatch(model))(**batch)
        assert not caplog.records


def one_hot(case, values):
    """A joint whose logits (B, T, U+1, V + K) are the recorded ones: a feature for each, and the weight their columns."""
    logits = torch.cat([values[f"{case['id']}/inputs/{name}"] for name in ("token_logits", "duration_logits")], 3)
    B, T, width, columns = logits.shape
    at = torch.arange(B * T * width).view(B, T, width)
    encoder, decoder = logits.new_zeros(B, T, at.numel()), -logits.new_ones(B, width, at.numel())
    for b in range(B):
        encoder[b].scatter_(1, at[b], 1.0)  # frame t has the features of (b, t, 0), (b, t, 1), ...
        decoder[b].scatter_(1, at[b].t(), 0.0)  # and row u lets those of (b, 0, u), (b, 1, u), ... through
    return logits, encoder, decoder, logits.reshape(-1, columns).t()


class Given(nn.Module):
    """A decoder that has been run."""

    def __init__(self, rows):
        super().__init__()
        self.rows = rows

    def forward(self, input_ids, cache=None):
        return self.rows


def through_a_model(case, values, reduction):
    """Loss and gradient of the recorded logits, with the case's arguments, and the case's numbers."""
    options = case["args"]
    logits, encoder, decoder, weight = one_hot(case, values)
    given = {name: values[f"{case['id']}/inputs/{name}"] for name in ("targets", "logit_lengths", "target_lengths")}
    columns = logits.shape[3]
    model = make(
        "ParakeetForTDT", torch.float32, vocab_size=columns - len(options["durations"]), durations=options["durations"],
        blank_token_id=options["blank_token_id"], pad_token_id=-1, decoder_hidden_size=encoder.shape[2],
    )  # fmt: skip
    model.decoder = Given(decoder)
    model.joint.head.weight.data, model.joint.head.bias.data = weight.contiguous(), logits.new_zeros(columns)
    encoded = type(model.get_audio_features(torch.zeros(1, 64, 16)))(
        pooler_output=encoder, attention_mask=(torch.arange(logits.shape[1]) < given["logit_lengths"][:, None]).int()
    )
    within = torch.arange(given["targets"].shape[1])[None] < given["target_lengths"][:, None]
    labels = given["targets"].masked_fill(~within, -1)
    group = {name: values[f"{case['id']}/{reduction}/{name}"] for name in case["arrays"][reduction]}
    loss = patch(model)(encoder_outputs=encoded, labels=labels, reduction=reduction, sigma=options["sigma"]).loss
    gradient = gradients(model, loss, group["upstream"].reshape(loss.shape).to(loss))["joint.head.weight"]
    right = torch.cat((group["grad_token_logits"], group["grad_duration_logits"]), 3)
    return loss, gradient.t().reshape(logits.shape), group["loss"].reshape(loss.shape), right


@pytest.mark.parametrize("peer, case", recorded(("transformers",), lambda peer, case: not disagrees(peer, case)))
def test_recorded_numbers(peer, case):
    values = arrays(peer)
    for reduction in case["reductions"]:
        loss, gradient, right, right_gradient = through_a_model(case, values, reduction)
        same(loss, right, 5e-6, f"{reduction}: {loss.tolist()}, {peer} says {right.tolist()}")
        same(gradient, right_gradient, 3e-5, f"gradient, {reduction}")


@pytest.mark.parametrize("peer, case", recorded(("transformers",), disagrees))
def test_recorded_gradients_that_are_not_numbers(peer, case):
    """That ours are the sum over all alignments is shown by test_topology_peers; here they come through the model."""
    loss, gradient, right, right_gradient = through_a_model(case, arrays(peer), "none")
    same(loss, right, 5e-6, "loss")
    assert torch.isfinite(gradient).all() and not torch.isfinite(right_gradient).all()
