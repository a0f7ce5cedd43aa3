"""The patch of NeMo's joints; see `samplewise.integrations.nemo`."""

from __future__ import annotations

import functools
import logging
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from samplewise import checks
from samplewise.choices import Activation, Method
from samplewise.errors import TransducerError
from samplewise.functional import joint_loss, transducer_loss
from samplewise.integrations.arguments import called
from samplewise.integrations.joints import is_linear
from samplewise.integrations.nemo_loss import RNNTLoss
from samplewise.integrations.reductions import REDUCTIONS
from samplewise.modules import TransducerLoss
from samplewise.vocabulary import SampledVocabulary

logger = logging.getLogger("samplewise")

ACTIVATIONS: dict[type[nn.Module], Activation] = {nn.ReLU: "relu", nn.Tanh: "tanh", nn.Sigmoid: "sigmoid"}


class Output(NamedTuple):
    """What a joint does after the sum of its projections: scores = weight z + bias, z = dropout(act(sum))."""

    weight: Tensor
    bias: Tensor | None
    activation: Activation
    dropout: float


def output_of(joint: Any) -> Output | str:
    """The last part of a NeMo joint, or why it is not of the form that `transducer_loss` takes."""
    layers = list(joint.joint_net)
    activation, between, last = ACTIVATIONS.get(type(layers[0])), layers[1:-1], layers[-1]
    if joint.is_adapter_available():
        return "it has adapters"
    if activation is None or not is_linear(last) or len(between) > 1 or not all(isinstance(x, nn.Dropout) for x in between):
        return f"its joint_net is {', '.join(type(layer).__name__ for layer in layers)}"
    dropout = sum(_active(layer) for layer in between)
    if not hasattr(joint, "blank_pred"):
        scale = 1.0 / joint.temperature if _is_scaled(joint) else 1.0
        bias = last.bias
        if scale != 1.0:
            return Output(last.weight * scale, None if bias is None else bias * scale, activation, dropout)
        return Output(last.weight, bias, activation, dropout)
    squash, drop, blank, *_ = joint.blank_pred
    if activation != "tanh" or type(squash) is not nn.Tanh or not is_linear(blank) or _active(drop) != dropout:
        shares = f"dropout {_active(drop)} and {dropout}"
        return f"its blank is read from tanh of the sum, its labels from {activation}, with {shares}"
    return Output(torch.cat((last.weight, blank.weight)), torch.cat((last.bias, blank.bias)), activation, dropout)


def _active(dropout: nn.Dropout) -> float:
    return dropout.p if dropout.training else 0.0


def _is_scaled(joint: Any) -> bool:
    """Whether NeMo divides the scores by the temperature: where it takes their log-softmax."""
    on_host = joint.log_softmax is None and not joint.joint_net[-1].weight.is_cuda
    return bool(on_host or joint.log_softmax) and joint.temperature != 1.0


class _Whole(nn.Module):
    """A NeMo joint as `joint_loss` calls one, without its last columns."""

    def __init__(self, joint: Any, unused: int) -> None:
        super().__init__()
        self.of_nemo, self.unused = joint, unused

    def forward(self, encoder_out: Tensor, predictor_out: Tensor) -> Tensor:
        scores = self.of_nemo.joint(encoder_out[:, :, 0], predictor_out[:, 0])
        return scores[..., : scores.shape[3] - self.unused]


class FusedForward:
    """The `forward` of a patched joint: with `fuse_loss_wer` ours, without it NeMo's."""

    def __init__(self, joint: Any, options: dict[str, Any], fused_by_patch: bool) -> None:
        self.joint, self.options, self.fused_by_patch = joint, options, fused_by_patch

    def __call__(
        self, encoder_outputs: Tensor, decoder_outputs: Tensor | None, encoder_lengths: Tensor | None = None,
        transcripts: Tensor | None = None, transcript_lengths: Tensor | None = None, compute_wer: bool = False,
        keep_hypotheses: bool = False,
    ) -> Any:  # fmt: skip
        joint = self.joint
        given = {"encoder_lengths": encoder_lengths, "transcripts": transcripts, "transcript_lengths": transcript_lengths}
        if not joint.fuse_loss_wer:
            there = {name: value for name, value in given.items() if value is not None}
            return type(joint).forward(joint, encoder_outputs=encoder_outputs, decoder_outputs=decoder_outputs, **there)
        checks.check_tensors(**given)
        integers = [x.long() for x in given.values() if x is not None]
        loss = None
        if decoder_outputs is not None:
            _check_encodings(joint, encoder_outputs, decoder_outputs)
            with called(
                encoder_out="encoder_outputs", predictor_out="decoder_outputs", targets="transcripts",
                target_lengths="transcript_lengths", weight="joint_net[-1].weight",
            ):  # fmt: skip
                loss = self._loss(encoder_outputs.transpose(1, 2), decoder_outputs.transpose(1, 2), *integers)
        if not compute_wer:
            joint.hypotheses = [] if keep_hypotheses else None
            return loss, None, None, None
        return loss, *self._errors(encoder_outputs.detach(), *integers, keep=keep_hypotheses)

    def _loss(self, encoder_out: Tensor, predictor_out: Tensor, frames: Tensor, targets: Tensor, labels: Tensor) -> Tensor:
        joint, loss, output = self.joint, loss_of(self.joint, self.joint.loss), output_of(self.joint)
        topology, vocabulary = loss.drawn(), sampled_by(joint, targets, labels, loss.blank)
        unused = loss.topology.extra - topology.extra  # durations, where omega leaves them out
        options: dict[str, Any] = {
            "blank": loss.blank, "reduction": REDUCTIONS[loss.reduction], "fastemit_lambda": loss.fastemit_lambda,
        }  # fmt: skip
        if isinstance(output, str):
            if vocabulary is not None or loss.clamp > 0:
                raise TransducerError(f"the joint can have no sampled vocabulary and no clamp, as {output}")
            _say_once(output)
            whole = _Whole(joint, unused)
            integers = (targets, frames, labels)
            return loss.valued(joint_loss(whole, encoder_out, predictor_out, *integers, topology=topology, **options))
        acoustic, label = joint.project_encoder(encoder_out), joint.project_prednet(predictor_out)
        hat, weight, bias = hasattr(joint, "blank_pred"), output.weight, output.bias
        if unused:
            weight, bias = weight[:-unused], None if bias is None else bias[:-unused]
        if joint.training and joint.masking_prob > 0 and not hat:
            label = label * (torch.rand(*label.shape[:2], 1) > joint.masking_prob).to(label)
        value = transducer_loss(
            acoustic, label, weight, bias, targets, frames, labels, activation=output.activation, dropout=output.dropout,
            topology="hat" if hat else topology, clamp=loss.clamp, vocabulary=vocabulary, **options, **self.options,
        )  # fmt: skip
        return loss.valued(value)

    def _errors(self, encoder_outputs: Tensor, frames: Tensor, targets: Tensor, labels: Tensor, *, keep: bool) -> tuple:
        """Word error rate, errors and words of the batch."""
        joint, wer = self.joint, self.joint.wer
        if wer is None:
            raise TransducerError("compute_wer is True, but the joint has no metric: set_wer gives it one")
        synchronised = wer._to_sync
        wer._to_sync = synchronised and not joint.training
        try:
            wer.update(predictions=encoder_outputs, predictions_lengths=frames, targets=targets, targets_lengths=labels)
            joint.hypotheses = wer.get_hypotheses() if keep else None
            found = wer.compute()
            wer.reset()
        finally:
            wer._to_sync = synchronised
        return tuple(found)


def _check_encodings(joint: Any, encoder_outputs: Tensor, decoder_outputs: Tensor) -> None:
    """That both are (B, features, length), as NeMo's encoders and decoders give them."""
    checks.check_three_dimensional(encoder_outputs=encoder_outputs, decoder_outputs=decoder_outputs)
    for name, tensor, size in (
        ("encoder_outputs", encoder_outputs, joint.encoder_hidden),
        ("decoder_outputs", decoder_outputs, joint.pred_hidden),
    ):
        if tensor.shape[1] != size:
            raise TransducerError(f"{name} must be (B, {size}, length), features first, but has shape {tuple(tensor.shape)}")


def loss_of(joint: Any, given: Any) -> RNNTLoss:
    """The settings of a loss, checked against the joint.

    Raises:
        TransducerError: there is none, or it does not go with the joint.
    """
    if given is None:
        raise TransducerError("fuse_loss_wer is set, but the joint has no loss: set_loss gives it one")
    loss, hat = RNNTLoss.of(given), hasattr(joint, "blank_pred")
    for special, kind in (("blank_pred", "HATJoint"), ("n_samples", "SampledRNNTJoint")):
        if hasattr(joint, special) and loss.topology.name != "regular":
            raise TransducerError(f"the joint is a {kind}, but its loss is {loss.loss_name!r}: it must be plain RNN-T")
    if loss.clamp > 0 and (loss.topology.extra or hat):
        raise TransducerError(
            f"clamp is {loss.clamp}, but without the 4-D tensor NeMo's bounds, on the tokens alone of TDT or on the"
            " log-probabilities of a HATJoint, cannot be kept: leave it at -1, or this joint unpatched"
        )
    columns = joint.num_classes_with_blank
    if loss.blank >= columns - loss.topology.extra:
        raise TransducerError(
            f"the loss was made with num_classes {loss.blank}, the blank's class, but the joint has {columns} outputs,"
            f" {loss.topology.extra} of them for durations"
        )
    return loss


def sampled_by(joint: Any, targets: Tensor, target_lengths: Tensor, blank: int) -> SampledVocabulary | None:
    """The classes of a `SampledRNNTJoint` in training: the blank, the batch's labels and n_samples drawn ones; else None."""
    if not (hasattr(joint, "n_samples") and joint.training and torch.is_grad_enabled()):
        return None
    count = joint.num_classes_with_blank
    labels = checks.check_targets(targets, target_lengths, count, blank)
    drawn = torch.randperm(count - 1)[: joint.n_samples]
    classes = torch.cat((labels[labels >= 0], drawn, torch.tensor([blank]))).unique()[None]
    return SampledVocabulary(classes, torch.zeros(classes.shape, dtype=torch.float64), count, blank)


def patch(
    model: Any, *, method: Method = "auto", memory_budget: int | str | None = None, tolerance: float | None = None
) -> Any:
    """Let the joint of a NeMo model, or a joint, compute its loss by one `samplewise.transducer_loss`, without the 4-D tensor.

        asr_model = EncDecRNNTBPEModel(cfg=cfg.model, trainer=trainer)
        samplewise.integrations.nemo.patch(asr_model)

    For `RNNTJoint`, `HATJoint` and `SampledRNNTJoint` under NeMo's RNNTLoss or ours. The fused path, `fuse_loss_wer=True`, is
    what changes; a model without it gets it, a joint must have it. `fused_batch_size` has no effect any more: the whole batch
    is one call. All else, decoding and export among it, stays NeMo's, and so does what is trained and saved.

    Same numbers: loss and gradients of NeMo's fused path, for all reductions and losses of `RNNTLoss`; dropout in training;
    `masking_prob`; `temperature` where NeMo divides by it; the sums of errors and words. What differs: the word error rate
    is that of the batch, where NeMo's is the mean of its parts'; `omega` is drawn once a batch; dropout's masks are others, and
    in a HATJoint the blank and the labels share one; HAT's 1 - P(blank) is not kept above 1e-6; a SampledRNNTJoint draws once
    for the batch, padding is no label, and the smallest label is not taken for the blank.

    A joint with adapters, a HATJoint whose activation is not tanh, and layers that were put in the place of NeMo's go through
    `samplewise.joint_loss`: NeMo's own modules, the logits of one utterance at a time. The log says so.

    Args:
        model: a NeMo model with a `joint`, or such a joint.
        method, memory_budget, tolerance: see `samplewise.transducer_loss`.

    Returns:
        the same object. `unpatch` undoes it; `change_vocabulary` makes a new joint, which has to be patched anew.

    Raises:
        TransducerError: it is not such a model; its loss is of another kind; `clamp` with TDT or HAT.
    """
    options: dict[str, Any] = {"method": method, "memory_budget": memory_budget, "tolerance": tolerance}
    TransducerLoss(**options)  # says what is wrong with them
    joint = joint_of(model)
    present = vars(joint).get("forward")
    if present is not None and not isinstance(present, FusedForward):
        raise TransducerError(f"the joint's forward has been replaced by {present!r} already")
    fused_by_patch = not joint.fuse_loss_wer or (present is not None and present.fused_by_patch)
    if not joint.fuse_loss_wer:
        if joint is model:
            raise TransducerError(
                "the joint computes no loss: give the model to patch, or call set_fuse_loss_wer(True, loss, metric) before"
            )
        loss_of(joint, model.loss)
        joint.set_fuse_loss_wer(True, model.loss, model.wer)
    elif joint.loss is not None:
        loss_of(joint, joint.loss)
    joint.forward = FusedForward(joint, options, fused_by_patch)
    return model


def unpatch(model: Any) -> Any:
    """Take back `patch`: the joint's own forward, and a model that was not fused is not any more. Returns the same object."""
    joint = joint_of(model)
    present = vars(joint).get("forward")
    if isinstance(present, FusedForward):
        del joint.forward
        if present.fused_by_patch:
            joint.set_fuse_loss_wer(False)
    return model


def joint_of(model: Any) -> Any:
    """The joint of a NeMo model, or the joint itself."""
    joint = model if hasattr(model, "joint_net") else getattr(model, "joint", None)
    wanted = ("joint_net", "fuse_loss_wer", "project_encoder")
    if not isinstance(joint, nn.Module) or not all(hasattr(joint, name) for name in wanted):
        raise TransducerError(f"model is a {type(model).__name__}; it must be a NeMo model with an RNNTJoint, or such a joint")
    return joint


@functools.cache
def _say_once(reason: str) -> None:
    logger.warning("the joint's loss is computed by NeMo's modules, one utterance at a time: %s", reason)
