"""CPU kernels compiled by numba. Same names and argument order as `kernels.eager`."""

from samplewise.kernels.numba.band import band_lattice
from samplewise.kernels.numba.emission import add_label, emission, emission_gradient
from samplewise.kernels.numba.joint import joint, joint_gradient
from samplewise.kernels.numba.lattice import backward_piece, forward_piece, lattice
from samplewise.kernels.numba.occupancy import locate, select

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
