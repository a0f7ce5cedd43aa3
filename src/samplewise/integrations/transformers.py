"""Hugging Face transformers: its Parakeet and Nemotron transducers with the loss of samplewise, as of 5.23 and 5.24.

A patched model stays the model that it is; what changes are the classes of the model and of its joint, to ones whose forward
knows what to do where labels are given. The stock forward then runs without labels, and its joint returns losses, not logits.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import samplewise
from samplewise import checks
from samplewise.choices import Method, OnNonfinite
from samplewise.errors import TransducerError
from samplewise.integrations.arguments import called
from samplewise.integrations.output_layer import output_layer
from samplewise.integrations.reductions import REDUCTIONS
from samplewise.topology import Topology, regular, tdt

logger = logging.getLogger("samplewise")

MODELS = {  # and the reduction that is the default of the stock loss, or would be if there were one
    "ParakeetForRNNT": "mean_volume",
    "ParakeetForTDT": "mean",
    "NemotronAsrStreamingForRNNT": "mean_volume",
    "Nemotron3_5AsrForRNNT": "mean_volume",
}
NAMES = tuple(str(name) for name in REDUCTIONS if name is not None)
SHARED = ("mean_volume", "sum")  # reductions whose sum over parts of a batch needs no more than Trainer's count
IGNORED = -100  # the label that Trainer does not count
OPTIONS, STOCK = "_samplewise", "_samplewise_stock"
ARGUMENTS = {
    "targets": "labels", "target_lengths": "label_lengths", "encoder_lengths": "attention_mask's frames",
    "encoder_out": "pooler_output", "predictor_out": "decoder_input_ids", "weight": "joint.head.weight",
    "bias": "joint.head.bias",
}  # fmt: skip


@dataclass
class _Patch:
    """What `patch` was told of a model, and what it did to it."""

    reduction: str
    sigma: float
    dropout: float
    options: dict[str, Any]
    counts: bool = False  # whether accepts_loss_kwargs is the patch's
    compared: bool = False  # whether a batch's decoder_input_ids were compared with its labels


@dataclass
class _Call:
    """A forward with labels, for the joint in it."""

    labels: Tensor  # (B, U)
    label_lengths: Tensor  # (B,)
    frames: Tensor | None  # (B,), None for all that there are
    dropout: float
    options: dict[str, Any]
    done: bool = False


_CALL: ContextVar[_Call | None] = ContextVar("call", default=None)


def patch(
    model: nn.Module, *, reduction: str | None = None, sigma: float = 0.0, method: Method = "auto",
    memory_budget: int | str | None = None, tolerance: float | None = None, dropout: float = 0.0, fastemit_lambda: float = 0.0,
    delay_penalty: float = 0.0, clamp: float = -1.0, on_nonfinite: OnNonfinite = "keep",
) -> nn.Module:  # fmt: skip
    """Give a transducer of transformers the loss of samplewise: `model(..., labels=...)` never holds 4-D logits, in training
    and in evaluation.

    What stays: weights, their names, `generate`, calls without labels, `save_pretrained` (which saves nothing of the patch),
    the keywords of `model(...)` (`reduction=` and, of TDT, `sigma=` overrule those here) and its outputs but for `logits`,
    which is None where labels are given. The loss and gradients are those of the stock loss on the same labels.

    What changes:

    - padding is no label: labels that are `pad_token_id`, `blank_token_id` or -100 must follow an utterance's others, and do
      not count (the stock RNN-T loss counts what is padded with `pad_token_id`). Where the pad token may stand in a transcript,
      as unknown text, give `label_lengths` (B,) to `model(...)`, too.
    - both Nemotron classes, which have no loss of their own, have one.
    - `decoder_input_ids` may be left out: blank, followed by the labels. So may `attention_mask`.
    - `num_items_in_batch`, as Trainer gives it: the loss is this batch's share of the mean over all parts of an accumulated
      batch, on all processes: the number of labels that are not -100, by `num_items_in_batch`. Where padding is -100 and
      the reduction "mean_volume", that is sum_b loss_b / num_items_in_batch. `model.accepts_loss_kwargs` is set, if it is not
      yet, to True for "mean_volume" and "sum", which then takes no notice of it, and to False for the others, for which
      Trainer's mean over parts is right.
    - an empty transcript is a transcript; "mean" counts it as having one label (the stock loss is infinite), and so is a batch
      of them; durations without 0 or 1 give no NaN.

    Args:
        model: a ParakeetForRNNT, ParakeetForTDT, NemotronAsrStreamingForRNNT or Nemotron3_5AsrForRNNT, before Trainer or
            accelerate, an adapter, compiler or distributed wrapper gets it.
        reduction: of B losses with U_b labels each: "mean_volume" = sum_b loss_b / sum_b U_b, the default of RNN-T; "mean" =
            mean of loss_b / max(1, U_b), the default of TDT; "mean_batch" = sum_b loss_b / B; "sum"; "none" (B,).
        sigma: of TDT, see `samplewise.topology.tdt`; its durations are those of the model's config.
        dropout: of the joint encodings while the model trains; the models have none, and were trained with 0.2 in NeMo.
        method, memory_budget, tolerance, fastemit_lambda, delay_penalty, clamp, on_nonfinite: as of `transducer_loss`.

    Returns:
        The model itself.

    Raises:
        TransducerError: the model is none of these, is patched already, has a joint with an activation that samplewise has
            not, or an option is wrong. A forward with labels raises it for labels, lengths or masks that are wrong, and for an
            output layer that is no linear one (see `output_layer`: LoRA and sharded weights are taken as they are in the
            layer's own forward; dropout of an adapter is refused).

    >>> import torch, transformers
    >>> from samplewise.integrations.transformers import patch
    >>> encoder = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, num_mel_bins=16,
    ...                subsampling_conv_channels=4)
    >>> model = transformers.ParakeetForTDT(transformers.ParakeetTDTConfig(
    ...     vocab_size=21, blank_token_id=20, pad_token_id=2, decoder_hidden_size=16, encoder_config=encoder))
    >>> output = patch(model)(input_features=torch.randn(2, 120, 16), labels=torch.tensor([[5, 7, 9], [4, -100, -100]]))
    >>> output.loss.backward()
    >>> output.loss.shape, output.logits
    (torch.Size([]), None)
    """
    name = next((parent.__name__ for parent in type(model).__mro__ if parent.__name__ in MODELS), None)
    if name is None:
        raise TransducerError(
            f"model is a {type(model).__name__}; patch takes one of {', '.join(MODELS)}, before anything wraps it"
            " (of an adapter's model: its get_base_model())"
        )
    if hasattr(type(model), STOCK):
        raise TransducerError("model is patched already; unpatch(model) first")
    whole: Any = model
    joints = [module for module in whole.joint.modules() if {"head", "activation"} <= module._modules.keys()]
    for where, module in (("model", model), *(("model.joint", joint) for joint in joints)):
        if "forward" in vars(module):
            raise TransducerError(f"{where}.forward was replaced, as accelerate does: patch the model before it is prepared")
    config = whole.config
    checks.check_choice("config.hidden_act", config.hidden_act, checks.ACTIVATION_NAMES)
    reduction = _reduction(reduction, MODELS[name])
    loss = samplewise.TransducerLoss(
        blank=config.blank_token_id, activation=config.hidden_act, method=method, memory_budget=memory_budget,
        tolerance=tolerance, fastemit_lambda=fastemit_lambda, delay_penalty=delay_penalty, dropout=dropout, clamp=clamp,
        on_nonfinite=on_nonfinite, topology=_topology(config, sigma),
    )  # fmt: skip
    options = _Patch(reduction, sigma, loss.dropout, loss.options, "accepts_loss_kwargs" not in vars(model))
    if options.counts:
        whole.accepts_loss_kwargs = reduction in SHARED
    setattr(model, OPTIONS, options)
    whole.__class__ = _with_forward(whole.__class__, _model_forward)
    for joint in joints:
        joint.__class__ = _with_forward(joint.__class__, _joint_forward)
    return model


def unpatch(model: nn.Module) -> nn.Module:
    """Undo `patch`: the model is what it was, with the weights that it has now.

    Raises:
        TransducerError: the model is not patched, or was wrapped since in a way that hides it.
    """
    if STOCK not in vars(type(model)):
        raise TransducerError(f"model is a {type(model).__name__} that is not patched, or was sharded since")
    whole: Any = model
    for module in (whole, *whole.joint.modules()):
        if STOCK in vars(type(module)):
            module.__class__ = vars(type(module))[STOCK]
    options = vars(model).pop(OPTIONS)
    if options.counts:
        vars(model).pop("accepts_loss_kwargs", None)
    return model


@functools.cache
def _with_forward(stock: Any, run: Callable[..., Any]) -> Any:
    """A class like `stock`, and under its name, whose forward is run(self, the stock forward, the arguments by name).

    The signature is the stock one, but there is no __wrapped__: who unwraps a forward (accelerate) stops here.
    """
    signature = inspect.signature(stock.forward)
    names = list(signature.parameters)[1:]

    def forward(self, *args, **kwargs):
        return run(self, functools.partial(stock.forward, self), dict(zip(names, args, strict=False)) | kwargs)

    def __reduce_ex__(self, protocol):
        return _empty, (stock, run), *super(made, self).__reduce_ex__(protocol)[2:]

    forward.__doc__, forward.__signature__ = stock.forward.__doc__, signature  # type: ignore[attr-defined]
    body = {"forward": forward, "__reduce_ex__": __reduce_ex__, STOCK: stock, "__doc__": stock.__doc__}
    made = type(stock)(stock.__name__, (stock,), body | {"__module__": stock.__module__, "__qualname__": stock.__qualname__})
    return made


def _empty(stock: type, run: Callable[..., Any]) -> nn.Module:
    """What a copy or a pickle is filled into."""
    made = _with_forward(stock, run)
    return made.__new__(made)


def _model_forward(model: Any, stock: Callable[..., Any], given: dict[str, Any]) -> Any:
    options: _Patch | None = vars(model).get(OPTIONS)
    if options is None or given.get("labels") is None:
        return stock(**given)
    as_dict = given.pop("return_dict", None)
    as_dict = model.config.return_dict if as_dict is None else as_dict
    reduction = _reduction(given.pop("reduction", None), options.reduction)
    items, labels, call = given.pop("num_items_in_batch", None), given["labels"], _call(model, options, given)
    call.options["reduction"] = REDUCTIONS[reduction]
    token = _CALL.set(call)
    try:
        output = stock(**given, return_dict=True)
    finally:
        _CALL.reset(token)
    if not call.done:
        raise TransducerError("model.joint was replaced after patch(model): unpatch the model, and patch it again")
    loss = output.logits.reshape(-1 if reduction == "none" else ())
    if items is not None and reduction not in ("sum", "none"):
        count = (labels != IGNORED).sum().clamp(min=1).to(loss)
        loss = loss * count / (items.to(loss).reshape(()) if isinstance(items, Tensor) else items)
    output = type(output)(**{**output, "loss": loss, "logits": None})
    return output if as_dict else output.to_tuple()


def _call(model: Any, options: _Patch, given: dict[str, Any]) -> _Call:
    """What the joint has to know; `given` is left with what the stock forward takes without labels."""
    config, labels, lengths = model.config, given.pop("labels"), given.pop("label_lengths", None)
    if isinstance(labels, Tensor) and labels.numel() == 0:
        labels = labels.long()  # a tokenizer's tensor of no labels is of floats
    sigma = given.pop("sigma", None)
    topology = _topology(config, options.sigma if sigma is None else sigma)
    blank = config.blank_token_id
    if lengths is not None:
        lengths = lengths.to(labels.device)
    else:
        lengths = samplewise.label_lengths(labels, *dict.fromkeys((config.pad_token_id, blank, IGNORED)))
    inputs = given.get("decoder_input_ids")
    if inputs is None:
        within = torch.arange(labels.shape[1], device=labels.device) < lengths[:, None]
        inputs = nn.functional.pad(torch.where(within, labels, blank), (1, 0), value=blank)
    elif not options.compared and len(inputs) == len(labels):
        options.compared = True
        _compare(inputs, labels, lengths)
    given["decoder_input_ids"] = inputs.masked_fill(inputs < 0, blank)  # which pads as labels do, and changes no loss
    call = _Call(labels, lengths, _frames(model, given), options.dropout, dict(options.options, topology=topology))
    return call


def _frames(model: Any, given: dict[str, Any]) -> Tensor | None:
    """Frames (B,) of the encoder's output; None for all of them."""
    encoded, mask = given.get("encoder_outputs"), given.get("attention_mask")
    own = getattr(encoded, "attention_mask", None)
    if own is not None:
        return own.sum(-1)
    return None if mask is None else model.encoder._get_subsampling_output_length(mask.sum(-1))


def _compare(inputs: Tensor, labels: Tensor, lengths: Tensor) -> None:
    """Once: both come from a tokenizer, which is asked twice."""
    width = min(inputs.shape[1] - 1, labels.shape[1])
    within = torch.arange(width, device=labels.device) < lengths[:, None]
    if bool((within & (inputs[:, 1 : width + 1] != labels[:, :width])).any()):
        logger.warning(
            "decoder_input_ids are not the blank followed by the labels, in the first batch; if that is not meant, leave them"
            " out, and they are made of the labels"
        )


def _joint_forward(joint: Any, stock: Callable[..., Any], given: dict[str, Any]) -> Any:
    """The losses (B, 1, 1), or their sum (1, 1, 1), where the model was given labels."""
    call = _CALL.get()
    if call is None:
        return stock(**given)
    call.done = True
    encoder, decoder = given["encoder_hidden_states"][:, :, 0], given["decoder_hidden_states"][:, 0]  # (B, T, D), (B, U+1, D)
    weight, bias = output_layer(joint.head, encoder)
    every = torch.full(encoder.shape[:1], encoder.shape[1], device=encoder.device)
    frames = every if call.frames is None else call.frames.clamp(max=encoder.shape[1])
    with called(**ARGUMENTS):
        loss = samplewise.transducer_loss(
            encoder, decoder, weight, bias, call.labels, frames, call.label_lengths,
            dropout=call.dropout if joint.training else 0.0, **call.options,
        )  # fmt: skip
    return loss.reshape(-1, 1, 1)


def _reduction(given: str | None, default: str) -> str:
    if given is None:
        return default
    checks.check_choice("reduction", given, NAMES)
    return given


def _topology(config: Any, sigma: float) -> Topology:
    durations = getattr(config, "durations", None)
    if durations is not None:
        return tdt(durations, sigma)
    if sigma:
        raise TransducerError(f"sigma is {sigma}, but {config.model_type} has no durations: it is an option of TDT")
    return regular()
