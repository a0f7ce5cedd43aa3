"""Tiny transducers of transformers, batches for them, and what their loss is: that of the logits of the stock joint."""

from __future__ import annotations

import copy

import torch
import transformers
from torch import nn

import samplewise
from samplewise.integrations.reductions import REDUCTIONS

KINDS = {  # and the class of their configuration
    "ParakeetForRNNT": "ParakeetRNNTConfig",
    "ParakeetForTDT": "ParakeetTDTConfig",
    "NemotronAsrStreamingForRNNT": "NemotronAsrStreamingConfig",
    "Nemotron3_5AsrForRNNT": "Nemotron3_5AsrConfig",
}
NO_DROPOUT = dict.fromkeys(("dropout", "dropout_positions", "layerdrop", "activation_dropout", "attention_dropout"), 0.0)
ENCODER = dict(
    hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, num_mel_bins=16,
    subsampling_conv_channels=4, **NO_DROPOUT,
)  # fmt: skip
CLASSES, BLANK, PAD = 21, 20, 2


def make(kind="ParakeetForRNNT", dtype=torch.float64, **changes):
    """A model of a class, always the same one, training but for its batch normalisation, which would tie utterances."""
    torch.manual_seed(0)
    streaming = kind.startswith("Nemotron")
    encoder = "NemotronAsrStreamingEncoderConfig" if streaming else "ParakeetEncoderConfig"
    options = {
        "vocab_size": CLASSES, "blank_token_id": BLANK, "pad_token_id": PAD, "decoder_hidden_size": 24, "num_decoder_layers": 1,
        "encoder_config": getattr(transformers, encoder)(**ENCODER),
    }  # fmt: skip
    if kind == "Nemotron3_5AsrForRNNT":
        options |= {"num_prompts": 4, "default_prompt_id": 1, "prompt_intermediate_size": 16}
    model = getattr(transformers, kind)(getattr(transformers, KINDS[kind])(**options | changes)).to(dtype)
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.3)  # of sharper distributions than a fresh model's
    return model.train().requires_grad_(True)


def still(model):
    """The model with its batch normalisation as in evaluation."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.eval()
    return model


def batch_of(kind="ParakeetForRNNT", labels=(5, 3, 0), frames=(120, 96, 64), pad=-100, dtype=torch.float64):
    """Features with masks, labels with padding, and as the processor makes them the decoder's inputs."""
    draw = torch.Generator().manual_seed(1)
    B, U, F = len(labels), max(labels), max(frames)
    rows = torch.randint(3, BLANK, (B, U), generator=draw)
    within = torch.arange(U)[None] < torch.tensor(labels)[:, None]
    inputs = nn.functional.pad(rows.masked_fill(~within, PAD), (1, 0), value=BLANK)
    batch = {
        "input_features": torch.randn(B, F, 16, generator=draw, dtype=torch.float64).to(dtype),
        "attention_mask": torch.arange(F)[None] < torch.tensor(frames)[:, None],
        "labels": rows.masked_fill(~within, pad),
        "decoder_input_ids": inputs,
    }
    if kind.startswith("Nemotron"):
        batch["num_lookahead_tokens"] = 3
    if kind == "Nemotron3_5AsrForRNNT":
        batch["prompt_ids"] = torch.arange(B) % 4
    return batch


def lengths_of(model, batch):
    """Frames and labels of each utterance."""
    mask = batch["attention_mask"]
    with torch.no_grad():
        given = {name: x for name, x in batch.items() if name not in ("labels", "decoder_input_ids")}
        frames = model.get_audio_features(**given).attention_mask.sum(-1)
    assert frames.max() > 1 and len(frames) == len(mask)
    return frames, (~torch.isin(batch["labels"], torch.tensor([PAD, BLANK, -100]))).sum(1)


def topology_of(model, sigma=0.0):
    durations = getattr(model.config, "durations", None)
    return "regular" if durations is None else samplewise.topology.tdt(durations, sigma)


def truth(model, batch, reduction, sigma=0.0, **options):
    """The loss of the 4-D logits that a model gives which was never patched."""
    frames, labels = lengths_of(model, batch)
    logits = model(**{name: x for name, x in batch.items() if name != "labels"}).logits
    if batch["labels"].shape[1] == 0:
        logits = logits.reshape(len(frames), -1, 1, logits.shape[-1])  # the stock forward has dropped the axis of labels
    assert logits.dim() == 4
    return samplewise.rnnt_loss(
        logits, batch["labels"].long(), frames, labels, blank=BLANK, reduction=REDUCTIONS[reduction],
        topology=topology_of(model, sigma), **options,
    )  # fmt: skip


def gradients(model, loss, upstream=None):
    """Of every parameter, by its name, zero where there is none."""
    model.zero_grad()
    loss.backward(upstream)
    return {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}


def furthest(got, right):
    """The largest difference of two sets of gradients, by the largest of its tensor, or a thousandth of the largest of all:
    biases before a softmax or a normalisation have a gradient of zero, and what rounding leaves of it."""
    assert got.keys() == right.keys()
    right = {name: x for name, x in right.items() if x.numel()}
    least = 1e-3 * max(float(x.abs().max()) for x in right.values())
    return max(float((got[name] - x).abs().max()) / max(float(x.abs().max()), least) for name, x in right.items())


def twin(model):
    """Another one with the same weights."""
    return copy.deepcopy(model)
