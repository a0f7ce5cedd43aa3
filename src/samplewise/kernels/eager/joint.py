"""The joint encoding of a tile of nodes, z = act(encoder row + predictor row), and its gradient (paper: f^J)."""

from __future__ import annotations

from torch import Tensor

from samplewise.kernels.activations import TABLE, activate, derivative


def joint(encoder_rows: Tensor, predictor_rows: Tensor, frame: Tensor, token: Tensor, activation: str, out: Tensor) -> None:
    """out[r] = act(encoder_rows[frame[r]] + predictor_rows[token[r]]).

    encoder_rows (F, D), predictor_rows (K, D), frame and token (R,) int64, out (R, D).
    """
    out.copy_(activate(encoder_rows[frame] + predictor_rows[token], activation))


def joint_gradient(
    d_joint: Tensor, joint_out: Tensor, encoder_rows: Tensor, predictor_rows: Tensor, frame: Tensor, token: Tensor,
    activation: str, d_encoder_rows: Tensor, d_predictor_rows: Tensor,
) -> None:  # fmt: skip
    """Send dz (R, D) through the activation and add it to the rows that made it.

    d_encoder_rows and d_predictor_rows accumulate and are float32 (float64 for float64 inputs).
    """
    real = d_encoder_rows.dtype
    sums = joint_out
    if TABLE[activation].of_sum:
        sums = encoder_rows[frame].to(real) + predictor_rows[token].to(real)
    through = d_joint.to(real) * derivative(sums, joint_out.to(real), activation)  # (R, D)
    through.masked_fill_(d_joint == 0, 0.0)  # zero times NaN is zero here
    d_encoder_rows.index_add_(0, frame, through)
    d_predictor_rows.index_add_(0, token, through)
