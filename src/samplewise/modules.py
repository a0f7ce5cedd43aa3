"""nn.Module twins of the functions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from samplewise import checks
from samplewise.choices import Activation, Method, OnNonfinite, Reduction, TopologyName
from samplewise.functional import transducer_loss
from samplewise.kernels.activations import TABLE
from samplewise.planning.budget import parse_budget
from samplewise.planning.methods import NAMES as METHODS
from samplewise.topology import Topology
from samplewise.vocabulary import SampledVocabulary


class TransducerLoss(nn.Module):
    """`transducer_loss` with its options fixed; see there for shapes, reductions and errors. Dropout is for training mode.

    >>> import torch, samplewise
    >>> loss = samplewise.TransducerLoss(blank=0, reduction="sum", on_nonfinite="raise")
    >>> loss(torch.randn(1, 9, 4), torch.randn(1, 3, 4), torch.randn(7, 4), None, torch.tensor([[1, 2]]),
    ...      torch.tensor([9]), torch.tensor([2])).shape
    torch.Size([])
    """

    def __init__(
        self, *, blank: int = 0, activation: Activation = "tanh", reduction: Reduction = "mean", method: Method = "auto",
        memory_budget: int | str | None = None, tolerance: float | None = None, fastemit_lambda: float = 0.0,
        on_nonfinite: OnNonfinite = "keep", topology: Topology | TopologyName = "regular", delay_penalty: float = 0.0,
        dropout: float = 0.0, clamp: float = -1.0,
    ) -> None:  # fmt: skip
        super().__init__()
        checks.check_activation(activation)
        checks.check_choice("reduction", reduction, checks.REDUCTIONS)
        checks.check_choice("method", method, METHODS)
        checks.check_choice("on_nonfinite", on_nonfinite, checks.NONFINITE)
        checks.check_fastemit(fastemit_lambda)
        checks.check_tolerance(tolerance)
        checks.check_whole("blank", blank)
        checks.check_topology(topology)
        checks.check_finite("delay_penalty", delay_penalty)
        checks.check_clamp(clamp)
        self.dropout = checks.check_dropout(dropout)
        parse_budget(memory_budget)
        self.options: dict[str, Any] = {
            "blank": blank, "activation": activation, "reduction": reduction, "method": method,
            "memory_budget": memory_budget, "tolerance": tolerance, "fastemit_lambda": fastemit_lambda,
            "on_nonfinite": on_nonfinite, "topology": topology, "delay_penalty": delay_penalty, "clamp": clamp,
        }  # fmt: skip

    def forward(
        self, encoder_out: Tensor, predictor_out: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor,
        encoder_lengths: Tensor, target_lengths: Tensor, vocabulary: SampledVocabulary | None = None, *,
        alignment: Tensor | None = None, dropout_seed: int | None = None, normalizer: float | Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        return transducer_loss(
            encoder_out, predictor_out, weight, bias, targets, encoder_lengths, target_lengths, vocabulary=vocabulary,
            alignment=alignment, dropout=self.dropout if self.training else 0.0, dropout_seed=dropout_seed,
            normalizer=normalizer, **self.options,
        )  # fmt: skip

    def extra_repr(self) -> str:
        shown = {name: str(value) if isinstance(value, Topology) else repr(value) for name, value in self.options.items()}
        return ", ".join(f"{name}={value}" for name, value in (shown | {"dropout": self.dropout}).items())


class Joiner(nn.Module):
    """Joint network and output layer: z = act(W^A h^A + W^L h^L + b^Z), scores = W^O z + b^O (arXiv 2211.16270, eq. 4, 6).

    Called with encodings alone it returns scores, for decoding; called with targets too it returns the loss and never builds
    the scores. Both go through `forward`, so the wrappers of distributed training see every use of the parameters.

    Args:
        encoder_dim, predictor_dim: features of what the encoder and the predictor give.
        joint_dim: D.
        vocab_size: V, blank included, and the classes of big blanks.
        activation: see `transducer_loss`.
        topology: see `transducer_loss`; the output layer has V + `topology.extra` rows, the last ones for TDT's durations.
        blank: class of the blank, -V..V-1.
        blank_head: of topology "hat" alone: the blank's score comes from a linear layer (D, 1) of its own, `blank_output`, and
            `output` has the V - 1 labels. NeMo's HATJoint and WeNet's hat_joint put a tanh before the blank's layer, whatever
            the labels' activation is: with activation "tanh" this is the same, apart from their dropout's masks.
        dropout: of the joint encodings, in training mode; see `transducer_loss`.

    Raises:
        TransducerError: a size, the blank or the topology is wrong, or blank_head goes with another topology than "hat".

    >>> import torch, samplewise
    >>> joiner = samplewise.Joiner(encoder_dim=8, predictor_dim=6, joint_dim=16, vocab_size=30)
    >>> joiner(torch.randn(2, 50, 8), torch.randn(2, 11, 6)).shape
    torch.Size([2, 50, 11, 30])
    >>> joiner.loss(torch.randn(2, 50, 8), torch.randn(2, 11, 6), torch.randint(1, 30, (2, 10)),
    ...             torch.tensor([50, 42]), torch.tensor([10, 7])).shape
    torch.Size([])
    """

    def __init__(
        self,
        encoder_dim: int,
        predictor_dim: int,
        joint_dim: int,
        vocab_size: int,
        *,
        activation: Activation = "tanh",
        topology: Topology | TopologyName = "regular",
        blank: int = 0,
        blank_head: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.activation = checks.check_activation(activation)
        for name, size in (("encoder_dim", encoder_dim), ("predictor_dim", predictor_dim), ("joint_dim", joint_dim)):
            checks.check_whole(name, size, 1)
        self.dropout = checks.check_dropout(dropout)
        self.topology = checks.check_topology(topology)
        checks.check_whole("vocab_size", vocab_size, 2 if blank_head else 1)
        self.blank = checks.check_blank(blank, vocab_size)
        self.topology.check(vocab_size + self.topology.extra, self.blank)
        if blank_head and self.topology.name != "hat":
            raise checks.TransducerError(
                f"blank_head is True, but topology is {self.topology.name!r}: the blank has a layer of its own with 'hat' alone"
            )
        self.encoder_proj = nn.Linear(encoder_dim, joint_dim)
        self.predictor_proj = nn.Linear(predictor_dim, joint_dim, bias=False)
        self.output = nn.Linear(joint_dim, vocab_size + self.topology.extra - int(blank_head))
        self.blank_output = nn.Linear(joint_dim, 1) if blank_head else None

    def forward(
        self, encoder_out: Tensor, predictor_out: Tensor, targets: Tensor | None = None,
        encoder_lengths: Tensor | None = None, target_lengths: Tensor | None = None, **options,
    ) -> Tensor:  # fmt: skip
        """Scores (B, T, U+1, V + extra), or with targets and lengths the loss; `options` are those of `transducer_loss`.

        encoder_out (B, T, encoder_dim), predictor_out (B, U+1, predictor_dim). For scores they may also be 4-D and broadcast,
        such as (B, 1, 1, encoder_dim) and (B, 1, 1, predictor_dim) for one step of decoding. What the scores mean is said by
        `log_probs`; of "regular", "modified" and "constrained" they are the logits of one softmax.
        """
        acoustic, label = self.encoder_proj(encoder_out), self.predictor_proj(predictor_out)
        if targets is not None:
            if encoder_lengths is None or target_lengths is None:
                raise checks.TransducerError("the loss needs targets, encoder_lengths and target_lengths")
            weight, bias = self._output_layer()
            return transducer_loss(
                acoustic, label, weight, bias, targets, encoder_lengths, target_lengths, activation=self.activation,
                **self._loss_options(options),
            )  # fmt: skip
        if acoustic.dim() == 3 and label.dim() == 3:
            acoustic, label = acoustic[:, :, None], label[:, None]  # (B, T, 1, D), (B, 1, U+1, D)
        z = nn.functional.dropout(TABLE[self.activation].function(acoustic + label), self.dropout, self.training)
        return self.output(z) if self.blank_output is None else self._with_blank(self.output(z), self.blank_output(z), -1)

    def loss(
        self, encoder_out: Tensor, predictor_out: Tensor, targets: Tensor, encoder_lengths: Tensor, target_lengths: Tensor,
        **options,
    ) -> Tensor:  # fmt: skip
        """The transducer loss; the same as calling the module with targets."""
        return self(encoder_out, predictor_out, targets, encoder_lengths, target_lengths, **options)

    def log_probs(self, scores: Tensor, *, normalise: bool = True) -> tuple[Tensor, Tensor | None]:
        """What the scores of a step say: the one definition for all searches.

        log P(symbol) = log_softmax over the V classes; of "hat" log P(blank) = log sigmoid(s) and log P(label k) =
        log(1 - P(blank)) + log_softmax over the labels, which is a softmax over all whose blank has the score
        s + logsumexp over the labels. Durations have a softmax of their own. A topology's `sigma` is for training alone.

        Args:
            scores: (..., V + extra), what the module returns without targets.
            normalise: False leaves out a softmax's denominator, which all have in common: enough to know the best.

        Returns:
            Log-probabilities of the symbols (..., V), and of the durations (..., K), None where there are none; float32, or
            float64 of such scores.
        """
        scores = scores if scores.dtype == torch.float64 else scores.float()
        classes = scores.shape[-1] - self.topology.extra
        symbols, durations = scores[..., :classes], scores[..., classes:] if self.topology.extra else None
        if self.topology.name == "hat":
            of_label = torch.arange(classes, device=scores.device) != self.blank
            total = symbols.masked_fill(~of_label, -torch.inf).logsumexp(-1, keepdim=True)
            symbols = torch.where(of_label, symbols, symbols + total)
        if not normalise:
            return symbols, durations
        return symbols.log_softmax(-1), None if durations is None else durations.log_softmax(-1)

    def _loss_options(self, options: dict[str, Any]) -> dict[str, Any]:
        """Those of a call, with what was said when the module was made."""
        if "topology" in options:
            raise checks.TransducerError(f"topology is an option of the Joiner, made with {self.topology}, not of a call")
        blank = checks.check_whole("blank", options.get("blank", self.blank))
        if self.blank_output is not None and blank not in (self.blank, self.blank - 1 - self.output.out_features):
            raise checks.TransducerError(f"blank is {blank}, but the Joiner was made with a head for blank {self.blank}")
        dropout = self.dropout if self.training else 0.0
        return {"dropout": dropout, **options, "blank": blank, "topology": self.topology}

    def _output_layer(self) -> tuple[Tensor, Tensor]:
        """Weight (V + extra, D) and bias (V + extra,), the blank in its place."""
        weight, bias = self.output.weight, self.output.bias
        if self.blank_output is None:
            return weight, bias
        return self._with_blank(weight, self.blank_output.weight, 0), self._with_blank(bias, self.blank_output.bias, 0)

    def _with_blank(self, labels: Tensor, blank: Tensor, dim: int) -> Tensor:
        before, after = labels.tensor_split([self.blank], dim)
        return torch.cat((before, blank, after), dim)
