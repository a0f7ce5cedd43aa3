"""nn.Module twins of the functions."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from samplewise import checks
from samplewise.functional import transducer_loss
from samplewise.kernels.activations import TABLE
from samplewise.plan.budget import parse_budget
from samplewise.vocabulary import SampledVocabulary


class TransducerLoss(nn.Module):
    """`transducer_loss` with its options fixed; see there for shapes, reductions and errors.

    >>> import torch, samplewise
    >>> loss = samplewise.TransducerLoss(blank=0, reduction="sum", on_nonfinite="raise")
    >>> loss(torch.randn(1, 9, 4), torch.randn(1, 3, 4), torch.randn(7, 4), None, torch.tensor([[1, 2]]),
    ...      torch.tensor([9]), torch.tensor([2])).shape
    torch.Size([])
    """

    def __init__(
        self, *, blank: int = 0, activation: str = "tanh", reduction: str = "mean", method: str = "auto",
        memory_budget: int | str | None = None, tolerance: float | None = None, fastemit_lambda: float = 0.0,
        on_nonfinite: str = "keep",
    ) -> None:  # fmt: skip
        super().__init__()
        checks.check_activation(activation)
        checks.check_choice("reduction", reduction, checks.REDUCTIONS)
        checks.check_choice("method", method, checks.METHODS)
        checks.check_choice("on_nonfinite", on_nonfinite, checks.NONFINITE)
        checks.check_fastemit(fastemit_lambda)
        checks.check_tolerance(tolerance)
        checks.check_whole("blank", blank)
        parse_budget(memory_budget)
        self.options: dict[str, Any] = {
            "blank": blank, "activation": activation, "reduction": reduction, "method": method,
            "memory_budget": memory_budget, "tolerance": tolerance, "fastemit_lambda": fastemit_lambda,
            "on_nonfinite": on_nonfinite,
        }  # fmt: skip

    def forward(
        self, encoder_out: Tensor, predictor_out: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor,
        encoder_lengths: Tensor, target_lengths: Tensor, vocabulary: SampledVocabulary | None = None,
    ) -> Tensor:  # fmt: skip
        return transducer_loss(
            encoder_out, predictor_out, weight, bias, targets, encoder_lengths, target_lengths, vocabulary=vocabulary,
            **self.options,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.options.items())


class Joiner(nn.Module):
    """Joint network and output layer: z = act(W^A h^A + W^L h^L + b^Z), logits = W^O z + b^O (arXiv 2211.16270, eq. 4, 6).

    Called with encodings alone it returns logits, for decoding; called with targets too it returns the loss and never builds
    the logits. Both go through `forward`, so the wrappers of distributed training see every use of the parameters.

    Args:
        encoder_dim, predictor_dim: features of what the encoder and the predictor give.
        joint_dim: D.
        vocab_size: V, blank included.
        activation: see `transducer_loss`.

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
        activation: str = "tanh",
    ) -> None:
        super().__init__()
        self.activation = checks.check_activation(activation)
        for name, size in (("encoder_dim", encoder_dim), ("predictor_dim", predictor_dim), ("joint_dim", joint_dim)):
            checks.check_whole(name, size, 1)
        checks.check_whole("vocab_size", vocab_size, 1)
        self.encoder_proj = nn.Linear(encoder_dim, joint_dim)
        self.predictor_proj = nn.Linear(predictor_dim, joint_dim, bias=False)
        self.output = nn.Linear(joint_dim, vocab_size)

    def forward(
        self, encoder_out: Tensor, predictor_out: Tensor, targets: Tensor | None = None,
        encoder_lengths: Tensor | None = None, target_lengths: Tensor | None = None, **options,
    ) -> Tensor:  # fmt: skip
        """Logits (B, T, U+1, V), or with targets and lengths the loss; `options` are those of `transducer_loss`.

        encoder_out (B, T, encoder_dim), predictor_out (B, U+1, predictor_dim). For logits they may also be 4-D and broadcast,
        such as (B, 1, 1, encoder_dim) and (B, 1, 1, predictor_dim) for one step of decoding.
        """
        acoustic, label = self.encoder_proj(encoder_out), self.predictor_proj(predictor_out)
        if targets is not None:
            if encoder_lengths is None or target_lengths is None:
                raise checks.TransducerError("the loss needs targets, encoder_lengths and target_lengths")
            return transducer_loss(
                acoustic, label, self.output.weight, self.output.bias, targets, encoder_lengths, target_lengths,
                activation=self.activation, **options,
            )  # fmt: skip
        if acoustic.dim() == 3 and label.dim() == 3:
            acoustic, label = acoustic[:, :, None], label[:, None]  # (B, T, 1, D), (B, 1, U+1, D)
        return self.output(TABLE[self.activation].function(acoustic + label))

    def loss(
        self, encoder_out: Tensor, predictor_out: Tensor, targets: Tensor, encoder_lengths: Tensor, target_lengths: Tensor,
        **options,
    ) -> Tensor:  # fmt: skip
        """The transducer loss; the same as calling the module with targets."""
        return self(encoder_out, predictor_out, targets, encoder_lengths, target_lengths, **options)
