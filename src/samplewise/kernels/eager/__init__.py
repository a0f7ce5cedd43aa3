"""Plain PyTorch kernels for any device. Same names and argument order as `kernels.numba`."""

from samplewise.kernels.eager.emission import add_label, emission, emission_gradient
from samplewise.kernels.eager.joint import joint, joint_gradient
from samplewise.kernels.eager.lattice import lattice
from samplewise.kernels.eager.occupancy import locate, select

__all__ = ["add_label", "emission", "emission_gradient", "joint", "joint_gradient", "lattice", "locate", "select"]
