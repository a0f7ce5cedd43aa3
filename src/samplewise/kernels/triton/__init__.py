"""GPU kernels in Triton, for CUDA and ROCm. Same names and argument order as `kernels.eager`.

With TRITON_INTERPRET=1, set before this is imported, they run on the CPU, slowly, for tests.
"""

from samplewise.kernels.triton.arcs import arcs_backward_piece, arcs_forward_piece, arcs_lattice
from samplewise.kernels.triton.bounds import bounds
from samplewise.kernels.triton.dropout import drop
from samplewise.kernels.triton.emission import emission, emission_gradient
from samplewise.kernels.triton.entries import entries, entries_gradient
from samplewise.kernels.triton.fused import fused_emission
from samplewise.kernels.triton.joint import joint, joint_gradient
from samplewise.kernels.triton.lattice import backward_piece, forward_piece, lattice
from samplewise.kernels.triton.occupancy import locate, select

__all__ = [
    "arcs_backward_piece", "arcs_forward_piece", "arcs_lattice", "backward_piece", "bounds", "drop", "emission",
    "emission_gradient", "entries", "entries_gradient", "forward_piece", "fused_emission", "joint", "joint_gradient", "lattice",
    "locate", "select",
]  # fmt: skip
