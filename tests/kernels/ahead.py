"""Compile every Triton kernel to machine code for a GPU that is not there, as the launchers specialise them, and list them.

Usage: python -m tests.kernels.ahead BACKEND ARCHITECTURE WARP_SIZE      (such as: cuda 90 32, or: hip gfx942 64)

Prints a line a compiled variant: kernel, bytes of machine code. TRITON_INTERPRET must not be set: the interpreter accepts types
and shapes that the compiler refuses.
"""

from __future__ import annotations

import sys

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from samplewise.checks import ACTIVATIONS
from samplewise.kernels.layout import packed_table

CPU = torch.device("cpu")


class AbsentGPU:
    """What Triton asks its driver before a launch."""

    def __init__(self, backend: str, architecture: str, warp_size: int) -> None:
        self.target = GPUTarget(backend, int(architecture) if architecture.isdigit() else architecture, warp_size)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return self.target


def compile_instead_of_launching() -> None:
    launch, seen = JITFunction.run, set()

    def compile(self, *arguments, grid, warmup, **options):
        compiled = launch(self, *arguments, grid=grid, warmup=True, **options)
        if compiled.hash not in seen:
            seen.add(compiled.hash)
            code = next(code for kind, code in compiled.asm.items() if kind in ("cubin", "hsaco"))
            print(self.fn.__name__, len(code), flush=True)
        return compiled

    JITFunction.run = compile


def every_kernel(kernels, dtype: torch.dtype, activations: tuple[str, ...], classes: tuple[int, ...]) -> None:
    """Call the launchers with tensors as the passes over a group have them."""
    real = torch.float64 if dtype == torch.float64 else torch.float32
    table, nodes = packed_table((5, 4), (3, 2), 5, 4, 3, CPU)
    node, label, frame, token = (torch.zeros(nodes, dtype=torch.int64) for _ in range(4))
    kernels.locate(node, table, torch.zeros(6, dtype=torch.int64), frame, token, label)
    rows, columns, z = torch.zeros(10, 64, dtype=dtype), torch.zeros(8, 64, dtype=dtype), torch.zeros(nodes, 64, dtype=dtype)
    few = torch.zeros(2, 7, dtype=torch.int64)
    for activation in activations:
        kernels.joint(rows, columns, frame, token, activation, z)
        kernels.joint_gradient(z, z, rows, columns, frame, token, activation, rows.to(real), columns.to(real))
        if dtype != torch.float64:
            emissions = torch.zeros(nodes, dtype=torch.float64), *torch.zeros(2, nodes)
            kernels.fused_emission(
                rows, columns, frame, token, activation, rows, rows[:, 0].float(), node, label, 0, *emissions
            )
        kernels.bounds(
            rows, columns, activation, table, label, rows, rows[:, 0].to(real), torch.tensor([[0, 0, 5], [1, 0, 4]]), few,
            torch.zeros(2, 8, 64, dtype=real), torch.zeros(2, 8, dtype=real), *torch.zeros(2, 2, dtype=real),
            *torch.zeros(2, nodes, dtype=real),
        )  # fmt: skip
    log_denominator = torch.zeros(nodes, dtype=torch.float64)
    lp_blank, lp_label = torch.zeros(2, nodes, dtype=real)
    for number in classes:
        logits, bias = torch.zeros(nodes, number, dtype=dtype), torch.zeros(number, dtype=real)
        kernels.emission(logits, bias, node, label, 0, log_denominator, lp_blank, lp_label)
        kernels.emission_gradient(logits, bias, node, label, 0, log_denominator, lp_blank, lp_label, bias)
    losses = torch.ones(2, dtype=torch.float64)
    kernels.lattice(lp_blank, lp_label, table, losses, losses, None, None)
    above = torch.zeros(4, dtype=torch.float64)
    kernels.forward_piece(lp_blank, lp_label, table[:1], above)
    for gamma_label in (lp_label, None):
        kernels.lattice(lp_blank, lp_label, table, losses, losses, lp_blank, gamma_label)
        kernels.backward_piece(lp_blank, lp_label, table[:1], above, above, 1.0, 1.0, lp_blank, gamma_label)
    for tolerance in (0.1, 0.0):
        kernels.select(lp_blank, lp_label, table, losses, tolerance)


def main(backend: str, architecture: str, warp_size: str) -> None:
    driver.set_active(AbsentGPU(backend, architecture, int(warp_size)))
    compile_instead_of_launching()
    from samplewise.kernels import triton as kernels

    if backend == "hip":  # each kernel once: what differs by dtype and activation has been seen for CUDA
        every_kernel(kernels, torch.bfloat16, ("tanh",), (1025,))
        return
    everything = ACTIVATIONS
    every_kernel(kernels, torch.bfloat16, everything, (1, 33, 1025))
    every_kernel(kernels, torch.float32, ("tanh",), (8192,))
    every_kernel(kernels, torch.float16, ("relu",), (129,))
    every_kernel(kernels, torch.float64, ("tanh", "gelu"), (129,))


if __name__ == "__main__":
    assert triton.__version__ and len(sys.argv) == 4, __doc__
    main(*sys.argv[1:])
