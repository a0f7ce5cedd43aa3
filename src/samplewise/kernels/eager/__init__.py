"""Plain PyTorch kernels for any device. Same names and argument order as `kernels.numba`."""

from samplewise.kernels.eager.arcs import arcs_backward_piece, arcs_forward_piece, arcs_lattice
from samplewise.kernels.eager.bounds import bounds
from samplewise.kernels.eager.dropout import drop
from samplewise.kernels.eager.emission import emission, emission_gradient
from samplewise.kernels.eager.entries import entries, entries_gradient
from samplewise.kernels.eager.joint import joint, joint_gradient
from samplewise.kernels.eager.lattice import lattice
from samplewise.kernels.eager.occupancy import locate, select
from samplewise.kernels.eager.pieces import backward_piece, forward_piece

__all__ = [
    "arcs_backward_piece",
    "arcs_forward_piece",
    "arcs_lattice",
    "backward_piece",
    "bounds",
    "drop",
    "emission",
    "emission_gradient",
    "entries",
    "entries_gradient",
    "forward_piece",
    "joint",
    "joint_gradient",
    "lattice",
    "locate",
    "select",
]  # fmt: skip
