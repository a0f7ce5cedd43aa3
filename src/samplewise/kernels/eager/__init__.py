"""Plain PyTorch kernels for any device. Same names and argument order as `kernels.numba`."""

from samplewise.kernels.eager.band import band_lattice
from samplewise.kernels.eager.emission import add_label, emission, emission_gradient
from samplewise.kernels.eager.joint import joint, joint_gradient
from samplewise.kernels.eager.lattice import lattice
from samplewise.kernels.eager.occupancy import locate, select
from samplewise.kernels.eager.pieces import backward_piece, forward_piece

__all__ = [
    "add_label",
    "backward_piece",
    "band_lattice",
    "emission",
    "emission_gradient",
    "forward_piece",
    "joint",
    "joint_gradient",
    "lattice",
    "locate",
    "select",
]
