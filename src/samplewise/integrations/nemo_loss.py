"""NeMo's RNNTLoss; see `samplewise.integrations.nemo`."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from samplewise import checks
from samplewise import topology as topologies
from samplewise.errors import TransducerError
from samplewise.functional import reduction_weights, rnnt_loss
from samplewise.integrations.arguments import called, with_emitted_value
from samplewise.integrations.reductions import REDUCTIONS
from samplewise.topology import Topology

logger = logging.getLogger("samplewise")

# By NeMo's name of a loss: its lattice, and the options that NeMo reads for it.
LOSSES: dict[str, tuple[str, tuple[str, ...]]] = {
    "warprnnt_numba": ("regular", ("fastemit_lambda", "clamp")),
    "warprnnt": ("regular", ()),
    "pytorch": ("regular", ()),
    "multiblank_rnnt": ("multi_blank", ("big_blank_durations", "sigma", "fastemit_lambda", "clamp")),
    "multiblank_rnnt_pytorch": ("multi_blank", ("big_blank_durations", "sigma")),
    "tdt": ("tdt", ("durations", "sigma", "omega", "fastemit_lambda", "clamp")),
    "tdt_pytorch": ("tdt", ("durations", "sigma")),
}
LOSSES["default"] = LOSSES["warprnnt_numba"]
CLASSES = {
    "RNNTLossNumba": "warprnnt_numba", "RNNTLoss": "warprnnt", "RNNTLossPytorch": "pytorch",
    "MultiblankRNNTLossNumba": "multiblank_rnnt", "MultiblankRNNTLossPytorch": "multiblank_rnnt_pytorch",
    "TDTLossNumba": "tdt", "TDTLossPytorch": "tdt_pytorch",
}  # fmt: skip


class RNNTLoss(nn.Module):
    """`nemo.collections.asr.losses.rnnt.RNNTLoss` without NeMo: the same arguments, call and numbers, on any device.

    loss_b is (1 + fastemit_lambda) times -log P(targets_b), as in NeMo; of FastEmit the gradient is that of the paper, of
    labels alone. It can be the `loss` of a NeMo model or joint, instead of NeMo's own.

    Args:
        num_classes: class of the blank: the number of labels, and of big blanks with these; durations do not count.
        reduction: "mean_batch" = sum_b loss_b / B; "mean" = mean over b of loss_b / max(1, U_b); "mean_volume" =
            sum_b loss_b / max(1, sum_b U_b); "sum"; None (B,).
        loss_name: "default", "warprnnt_numba", "warprnnt" or "pytorch"; "multiblank_rnnt" or "multiblank_rnnt_pytorch"; "tdt"
            or "tdt_pytorch". The names of one loss differ in the options that they read, as in NeMo.
        loss_kwargs: those that NeMo reads, others are ignored with a warning: fastemit_lambda, clamp, sigma, omega, durations,
            big_blank_durations. With probability omega, drawn in each call by Python's `random`, a call of "tdt" is the plain
            RNN-T loss over the tokens, without sigma, and durations get gradients of 0.

    What differs: `clamp` bounds each element of an utterance's gradient, of tokens but not of durations, *before* the reduction
    and whatever multiplies the loss afterwards. So do NeMo's CUDA kernels; on the CPU NeMo bounds after both, so that there a
    batch of another size, or a scaler of mixed precision, means another bound. "tdt" and "multiblank_rnnt" run on the CPU,
    too; float64 stays float64; half precision is not copied to float32; an empty transcript counts as one label in "mean",
    where NeMo's is infinite; without a path the loss is infinite and its gradient 0, where "tdt_pytorch" says about 1000.

    Raises:
        TransducerError: an argument has the wrong shape, type or range; the message names the utterance and the numbers.

    Memory: see `samplewise.rnnt_loss`; the logits exist already. `patch` needs none.

    >>> import torch
    >>> from samplewise.integrations.nemo import RNNTLoss
    >>> loss = RNNTLoss(num_classes=6, reduction="mean_volume", loss_name="tdt", loss_kwargs={"durations": [0, 1, 2]})
    >>> log_probs = torch.randn(2, 9, 4, 6 + 1 + 3, requires_grad=True)
    >>> loss(log_probs=log_probs, targets=torch.randint(0, 6, (2, 3)), input_lengths=torch.tensor([9, 5]),
    ...      target_lengths=torch.tensor([3, 1])).backward()
    >>> log_probs.grad.shape
    torch.Size([2, 9, 4, 10])
    """

    def __init__(
        self, num_classes: int, reduction: str | None = "mean_batch", loss_name: str = "default",
        loss_kwargs: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        checks.check_choice("reduction", reduction, tuple(REDUCTIONS))  # type: ignore[arg-type]
        checks.check_choice("loss_name", loss_name, tuple(LOSSES))
        self.blank = checks.check_whole("num_classes", num_classes, 0)
        self.reduction, self.loss_name = reduction, loss_name
        lattice, known = LOSSES[loss_name]
        given = dict(loss_kwargs or {})
        unused = [name for name in given if name not in known]
        if unused:
            logger.warning("loss_kwargs of %s: %s is not used by this loss", loss_name, ", ".join(unused))
        read = {name: given[name] for name in known if given.get(name) is not None}
        self.fastemit_lambda = checks.check_fastemit(read.get("fastemit_lambda", 0.0))
        self.clamp = checks.check_clamp(read.get("clamp", -1.0))
        self.omega = checks.check_finite("omega", read.get("omega", 0.0))
        self.topology = topologies.regular()
        if lattice == "tdt":
            self.topology = topologies.tdt(read.get("durations", ()), read.get("sigma", 0.0))
        elif lattice == "multi_blank":
            with called(durations="big_blank_durations"):
                self.topology = topologies.multi_blank(read.get("big_blank_durations", ()), sigma=read.get("sigma", 0.0))

    @classmethod
    def of(cls, loss: Any) -> RNNTLoss:
        """Ours with the settings of NeMo's, or ours itself.

        Raises:
            TransducerError: it is a loss of another kind, such as "graph_w_transducer".
        """
        if isinstance(loss, cls):
            return loss
        inner = getattr(loss, "_loss", None)
        name = CLASSES.get(type(inner).__name__)
        if inner is None or name is None:
            raise TransducerError(
                f"the loss is a {type(loss).__name__} of {type(inner).__name__}; it must be NeMo's RNNTLoss of one of "
                f"{', '.join(CLASSES)}, or samplewise's"
            )
        return cls(inner.blank, loss.reduction, name, {option: getattr(inner, option) for option in LOSSES[name][1]})

    @property
    def _loss(self) -> RNNTLoss:
        """NeMo's has its loss function here, with the blank that `SampledRNNTJoint` changes."""
        return self

    def forward(self, log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor) -> Tensor:
        """The loss of log_probs (B, T, U+1, V) or logits, with durations' columns last; a scalar, or (B,) without a reduction.

        targets (B, U), input_lengths (B,) in 1..T, target_lengths (B,) in 0..U.
        """
        integers = {"targets": targets, "input_lengths": input_lengths, "target_lengths": target_lengths}
        checks.check_tensors(**integers)
        with called(logits="log_probs", logit_lengths="input_lengths"):
            checks.check_logits(log_probs, packed=False)
            extra = self.topology.extra
            if self.blank >= log_probs.shape[3] - extra:
                durations = f", {extra} of them for durations" if extra else ""
                raise TransducerError(
                    f"num_classes is {self.blank}, the blank's class, but log_probs has {log_probs.shape[3]} columns{durations}"
                )
            losses = self._each(log_probs, *(x.long() for x in integers.values()))
        return losses if self.reduction is None else self.reduce(losses, target_lengths)

    def reduce(self, losses: Tensor | list[Tensor], target_lengths: Tensor | list[Tensor]) -> Tensor:
        """Losses (B,), or those of parts of a batch, reduced."""
        checks.check_choice("reduction", self.reduction, tuple(REDUCTIONS))  # type: ignore[arg-type]
        losses = torch.cat(losses) if isinstance(losses, list) else losses
        lengths = torch.cat(target_lengths) if isinstance(target_lengths, list) else target_lengths
        weights = reduction_weights(REDUCTIONS[self.reduction], lengths)
        return losses if weights is None else (losses * weights.to(losses)).sum()

    def drawn(self) -> Topology:
        """The lattice of a call: what `omega` decides."""
        rnnt = LOSSES[self.loss_name][0] == "tdt" and random.uniform(0, 1) < self.omega
        return topologies.regular() if rnnt else self.topology

    def valued(self, loss: Tensor) -> Tensor:
        """With NeMo's factor of the value."""
        return with_emitted_value(loss, self.fastemit_lambda)

    def _each(self, log_probs: Tensor, targets: Tensor, frames: Tensor, labels: Tensor) -> Tensor:
        topology, extra, integers = self.drawn(), self.topology.extra, (targets, frames, labels)
        tokens, durations = log_probs.split((log_probs.shape[3] - extra, extra), 3)
        options: dict[str, Any] = {
            "blank": self.blank, "reduction": "none", "fastemit_lambda": self.fastemit_lambda, "topology": topology,
        }  # fmt: skip
        if not (topology.extra and self.clamp > 0):
            return self.valued(rnnt_loss(log_probs if topology.extra else tokens, *integers, clamp=self.clamp, **options))
        bounded = rnnt_loss(torch.cat((tokens, durations.detach()), 3), *integers, clamp=self.clamp, **options)
        free = rnnt_loss(torch.cat((tokens.detach(), durations), 3), *integers, **options)
        return self.valued(_BothGradients.apply(bounded, free))

    def extra_repr(self) -> str:
        options = {name: getattr(self, name) for name in ("fastemit_lambda", "clamp", "omega")}
        shown = {"num_classes": self.blank, "reduction": self.reduction, "loss_name": self.loss_name, **options}
        return ", ".join(f"{name}={value!r}" for name, value in shown.items()) + f", topology={self.topology}"


class _BothGradients(torch.autograd.Function):
    """One of two equal losses, whose gradients add up."""

    @staticmethod
    def forward(ctx, one, other):
        return one.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream):
        return upstream, upstream
