"""Peak memory of the joint and the loss, forward and backward, measured in a fresh process.

In a process that has trained already an allocator hands out memory that other layers gave back, and the growth of its
resident memory says little. So a new process makes random encodings with the lengths of a given batch, runs a tiny
batch first (threads start, kernels are compiled), and then measures how far its peak resident memory rises above what
it held before, during `Joiner.loss` and its backward. Projections, workspace and all gradients are part of it; the
encoder's and predictor's outputs themselves are not. On a GPU the growth of the allocator's peak is taken instead.

    python -m samplewise.asr.memory '{"encoder_lengths": [50, 40], "target_lengths": [9, 7], "vocab_size": 17, ...}'
"""

from __future__ import annotations

import ctypes
import gc
import json
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from samplewise import Joiner, sample_vocabulary
from samplewise.choices import Activation
from samplewise.topology import named

FLOAT_BYTES = 4
TIMEOUT = 300  # seconds
COPIES, SMALL = 6, 2 * 2**30  # of logits and encodings in the batched method; bytes that may be risked to measure it


@dataclass(frozen=True)
class LossStep:
    """The shapes and options of one call of `Joiner.loss`; `sampling` is size and scope of sampled classes, if any are, and
    `topology` the key of one, whose blanks are beside blank 0."""

    encoder_lengths: list[int]
    target_lengths: list[int]
    encoder_dim: int
    predictor_dim: int
    joint_dim: int
    vocab_size: int
    activation: Activation
    method: str
    memory_budget: int | str | None
    sampling: tuple[int, str] | None = None
    topology: str = "regular"
    blank_head: bool = False

    @property
    def outputs(self) -> int:
        """Rows of the output layer."""
        return self.vocab_size + named(self.topology).extra

    @property
    def padded_nodes(self) -> int:
        """B * T * (U+1) of the padded batch."""
        return len(self.encoder_lengths) * max(self.encoder_lengths) * (max(self.target_lengths) + 1)

    @property
    def logits_bytes(self) -> int:
        """Bytes of one float32 copy of the logits (B, T, U+1, V); ordinary implementations keep one to four."""
        return self.padded_nodes * self.outputs * FLOAT_BYTES

    @property
    def joint_bytes(self) -> int:
        """Bytes of one float32 copy of the joint encodings (B, T, U+1, D), which the logits are made from."""
        return self.padded_nodes * self.joint_dim * FLOAT_BYTES


def measure(step: LossStep) -> dict[str, Any]:
    """Run `step` in a new process, and once more with the batched method if that takes little.

    Returns:
        `peak_bytes` (None where it could not be measured), `measured_as`, `batched_peak_bytes` of the ordinary way on
        the same batch, `logits_shape`, and the sizes of one copy of what is never built: `logits_bytes`, `joint_bytes`.
    """
    peak, how = run(step)
    small = COPIES * (step.logits_bytes + step.joint_bytes) <= SMALL
    ordinary = replace(step, method="batched", memory_budget=None, sampling=None)
    batched, _ = run(ordinary) if small and peak is not None else (None, "")
    return {
        "peak_bytes": peak,
        "measured_as": how,
        "batched_peak_bytes": batched,
        "logits_shape": [len(step.encoder_lengths), max(step.encoder_lengths), max(step.target_lengths) + 1, step.outputs],
        "logits_bytes": step.logits_bytes,
        "joint_bytes": step.joint_bytes,
    }


def run(step: LossStep) -> tuple[int | None, str]:
    """Peak bytes of a step in a process of its own, and how they were measured or why they were not."""
    command = [sys.executable, "-m", "samplewise.asr.memory", json.dumps(asdict(step), allow_nan=False)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT)
    except (OSError, subprocess.SubprocessError) as error:  # OSError: no memory for another process
        return None, f"not measured: {error}"
    if done.returncode != 0:
        return None, f"not measured: {done.stderr.strip().splitlines()[-1:] or done.returncode}"
    try:
        peak, how = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, TypeError, ValueError):
        return None, f"not measured: the process said {done.stdout[-80:]!r}"
    return peak, how


def describe(memory: dict[str, Any]) -> str:
    """The measurement in one line."""
    peak, batched = memory["peak_bytes"], memory["batched_peak_bytes"]
    took = f"{mebibytes(peak)} at the peak, {memory['measured_as']}" if peak is not None else memory["measured_as"]
    ordinary = f"; the ordinary batched way measured the same: {mebibytes(batched)}" if batched is not None else ""
    return (
        f"memory of the joint and the loss, forward and backward, largest batch: {took}; one copy of the full 4-D logits "
        f"{tuple(memory['logits_shape'])}: {mebibytes(memory['logits_bytes'])}, and of the joint encodings they are made "
        f"from: {mebibytes(memory['joint_bytes'])}{ordinary}"
    )


def mebibytes(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"


def main(text: str) -> None:
    step = LossStep(**json.loads(text))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    joiner = Joiner(
        step.encoder_dim, step.predictor_dim, step.joint_dim, step.vocab_size, activation=step.activation,
        topology=named(step.topology), blank_head=step.blank_head,
    ).to(device)  # fmt: skip
    for lengths in (([4, 3], [2, 1]), (step.encoder_lengths, step.target_lengths)):
        joiner.zero_grad(set_to_none=True)
        inputs = random_inputs(step, *lengths, device=device)
        start = begin(device)
        vocabulary = None
        if step.sampling is not None:
            size, scope = step.sampling
            vocabulary = sample_vocabulary(inputs[2], inputs[4], step.vocab_size, size, blank=0, scope=scope)
        loss = joiner.loss(
            *inputs, reduction="mean", method=step.method, memory_budget=step.memory_budget, vocabulary=vocabulary
        )
        loss.backward()
        peak, how = end(device)
        del inputs, loss
    print(json.dumps([None if peak is None else max(0, peak - start), how], allow_nan=False))


def random_inputs(step: LossStep, frames: list[int], labels: list[int], device: str) -> list[torch.Tensor]:
    batch = len(frames)
    encoder_out = torch.randn(batch, max(frames), step.encoder_dim, device=device, requires_grad=True)
    predictor_out = torch.randn(batch, max(labels) + 1, step.predictor_dim, device=device, requires_grad=True)
    spoken = sorted(set(range(step.vocab_size)).difference(named(step.topology).blanks(0)))
    targets = torch.tensor(spoken, device=device)[torch.randint(len(spoken), (batch, max(labels)), device=device)]
    lengths = [torch.tensor(numbers, device=device) for numbers in (frames, labels)]
    return [encoder_out, predictor_out, targets, *lengths]


def begin(device: str) -> int:
    """Give back what is free, forget earlier peaks; the bytes held now."""
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
        if trim is not None:
            trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
        return proc_status("VmRSS") or 0
    return 0


def end(device: str) -> tuple[int | None, str]:
    """Peak bytes since `begin`, and what they are a peak of."""
    if device == "cuda":
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated(), "growth of the GPU allocator's peak, fresh process"
    if sys.platform == "linux":
        return proc_status("VmHWM"), "growth of peak resident memory, fresh process"
    return None, "not measured on this system"


def proc_status(name: str) -> int | None:
    """A size of this process from /proc, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    return None


if __name__ == "__main__":
    main(sys.argv[1])
