"""CPU kernels compiled by numba. Same names and argument order as `kernels.eager`; `exponentials`, `interval_lattice` and
`sweep` are numba's alone."""

from samplewise.kernels.numba.arcs import arcs_backward_piece, arcs_forward_piece, arcs_lattice
from samplewise.kernels.numba.bounds import bounds
from samplewise.kernels.numba.corridor import sweep
from samplewise.kernels.numba.dropout import drop
from samplewise.kernels.numba.emission import emission, emission_gradient
from samplewise.kernels.numba.entries import entries, entries_gradient
from samplewise.kernels.numba.exponentials import exponentials
from samplewise.kernels.numba.intervals import interval_lattice
from samplewise.kernels.numba.joint import joint, joint_gradient
from samplewise.kernels.numba.lattice import backward_piece, forward_piece, lattice
from samplewise.kernels.numba.occupancy import locate, select

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
    "exponentials",
    "forward_piece",
    "interval_lattice",
    "joint",
    "joint_gradient",
    "lattice",
    "locate",
    "select",
    "sweep",
]  # fmt: skip
