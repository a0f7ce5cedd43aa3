"""What a backend is: the kernels that each has, and those that only some have. What they do is said in `kernels/eager`.

A module of functions with these names and signatures is one, for mypy too (`backend.py`).
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from samplewise.kernels.masks import Dropout
from samplewise.topology import Bound


class Kernels(Protocol):
    """What every backend has."""

    def joint(
        self, encoder_rows: Tensor, predictor_rows: Tensor, frame: Tensor, token: Tensor, activation: str, out: Tensor,
    ) -> None: ...  # fmt: skip

    def joint_gradient(
        self, d_joint: Tensor, joint_out: Tensor, encoder_rows: Tensor, predictor_rows: Tensor, frame: Tensor, token: Tensor,
        activation: str, d_encoder_rows: Tensor, d_predictor_rows: Tensor,
    ) -> None: ...  # fmt: skip

    def drop(self, z: Tensor, frame: Tensor, token: Tensor, dropout: Dropout) -> None: ...

    def emission(
        self, logits: Tensor, bias: Tensor, node: Tensor, label: Tensor, blank: int, log_denominator: Tensor, lp_blank: Tensor,
        lp_label: Tensor,
    ) -> None: ...  # fmt: skip

    def emission_gradient(
        self, logits: Tensor, bias: Tensor, node: Tensor, label: Tensor, blank: int, log_denominator: Tensor,
        gamma_blank: Tensor, gamma_label: Tensor, d_bias: Tensor,
    ) -> None: ...  # fmt: skip

    def entries(
        self, logits: Tensor, bias: Tensor, node: Tensor, label: Tensor, form: Bound, log_denominators: Tensor, out: Tensor,
    ) -> None: ...  # fmt: skip

    def entries_gradient(
        self, logits: Tensor, bias: Tensor, node: Tensor, label: Tensor, form: Bound, log_denominators: Tensor, gammas: Tensor,
        d_bias: Tensor,
    ) -> None: ...  # fmt: skip

    def bounds(
        self, encoder_rows: Tensor, predictor_rows: Tensor, activation: str, utterances: Tensor, targets: Tensor,
        weight: Tensor, bias: Tensor, stretches: Tensor, classes: Tensor, rows: Tensor, row_bias: Tensor, rest: Tensor,
        slack: Tensor, ub_blank: Tensor, ub_label: Tensor, dropout: Dropout | None = None,
    ) -> None: ...  # fmt: skip

    def lattice(
        self, lp_blank: Tensor, lp_label: Tensor, utterances: Tensor, weights: Tensor, losses: Tensor,
        gamma_blank: Tensor | None, gamma_label: Tensor | None,
    ) -> None: ...  # fmt: skip

    def forward_piece(self, lp_blank: Tensor, lp_label: Tensor, piece: Tensor, above: Tensor) -> None: ...

    def backward_piece(
        self, lp_blank: Tensor, lp_label: Tensor, piece: Tensor, above: Tensor, below: Tensor, loss: float | Tensor,
        weight: float | Tensor, gamma_blank: Tensor, gamma_label: Tensor | None,
    ) -> None: ...  # fmt: skip

    def arcs_lattice(
        self, entries: Tensor, utterances: Tensor, form: Bound, weights: Tensor, losses: Tensor, gammas: Tensor | None,
    ) -> None: ...  # fmt: skip

    def arcs_forward_piece(self, entries: Tensor, piece: Tensor, form: Bound, after: int, above: Tensor) -> None: ...

    def arcs_backward_piece(
        self, entries: Tensor, piece: Tensor, form: Bound, after: int, above: Tensor, below: Tensor, loss: float | Tensor,
        weight: float | Tensor, gammas: Tensor,
    ) -> None: ...  # fmt: skip

    def locate(
        self, node: Tensor, utterances: Tensor, targets: Tensor, frame: Tensor, token: Tensor, label: Tensor,
    ) -> None: ...  # fmt: skip

    def select(
        self, gamma_blank: Tensor, gamma_label: Tensor, utterances: Tensor, losses: Tensor, tolerance: float,
    ) -> Tensor: ...  # fmt: skip


class WithExponentials(Kernels, Protocol):
    """Of a CPU: tanh and sigmoid from exponentials made once a row."""

    def exponentials(
        self, encoder_rows: Tensor, predictor_rows: Tensor, utterances: Tensor, activation: str,
    ) -> tuple[Tensor, Tensor] | None: ...  # fmt: skip


class WithFusedEmission(Kernels, Protocol):
    """Of a GPU: emissions without joint encodings and logits in memory."""

    def fused_emission(
        self, encoder_rows: Tensor, predictor_rows: Tensor, frame: Tensor, token: Tensor, activation: str, weight: Tensor,
        bias: Tensor, node: Tensor, label: Tensor, blank: int, log_denominator: Tensor, lp_blank: Tensor, lp_label: Tensor,
    ) -> None: ...  # fmt: skip


class WithIntervals(Kernels, Protocol):
    """Of a CPU: bounds and lattice of an interval of labels a frame, of which the rest is never made."""

    def sweep(
        self, encoder_rows: Tensor, predictor_rows: Tensor, activation: str, utterances: Tensor, targets: Tensor,
        weight: Tensor, bias: Tensor, stretches: Tensor, classes: Tensor, rows: Tensor, row_bias: Tensor, rest: Tensor,
        slack: Tensor, level: Tensor, floor: Tensor | None, known: tuple[Tensor, ...], room: Tensor, state: tuple[Tensor, ...],
        found: Tensor, ub_blank: Tensor, ub_label: Tensor,
    ) -> None: ...  # fmt: skip

    def interval_lattice(
        self, lp_blank: Tensor, lp_label: Tensor, utterances: Tensor, rows: Tensor, losses: Tensor, gamma_blank: Tensor | None,
        gamma_label: Tensor | None,
    ) -> None: ...  # fmt: skip
