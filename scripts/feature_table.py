"""What each transducer library has, beside samplewise: the table of docs/migrate.md.

Usage: python scripts/feature_table.py [--insert docs/migrate.md]

samplewise's column is what a small call of each thing says when this script runs: one that fails ends it. The other columns
are facts of the versions named at their heads, from their code and from runs on a CPU; a cell "-" was not looked at.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

import samplewise
from documents import fill

PEERS = {
    "torchaudio": "2.11.1",
    "warp-transducer": "f546575",
    "optimized_transducer": "1.4",
    "fast_rnnt": "1.3",
    "k2": "1.24.4",
    "NeMo": "3.0.0",
    "transformers": "5.24.0",
    "SpeechBrain": "1.1.2",
}
B, T, U, V, D = 3, 6, 3, 7, 5


class Batch(NamedTuple):
    encoder_out: Tensor
    predictor_out: Tensor
    weight: Tensor
    bias: Tensor
    targets: Tensor
    encoder_lengths: Tensor
    target_lengths: Tensor


def batch(extra: int = 0, dtype: torch.dtype = torch.float32) -> Batch:
    generator = torch.Generator().manual_seed(3)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(dtype).requires_grad_()

    floats = normal(B, T, D), normal(B, U + 1, D), normal(V + extra, D), normal(V + extra)
    return Batch(*floats, torch.randint(1, V, (B, U), generator=generator), torch.tensor([5, 4, 5]), torch.tensor([3, 0, 2]))


def works(extra: int = 0, dtype: torch.dtype = torch.float32, given: Batch | None = None, **options) -> bool:
    """Whether there are a finite loss and gradients."""
    inputs = given or batch(extra, dtype)
    loss = samplewise.transducer_loss(*inputs, **options)
    loss.sum().backward()
    return bool(torch.isfinite(loss).all()) and all(bool(torch.isfinite(x.grad).all()) for x in inputs[:4])


def by_length() -> bool:
    """Whether the workspace stays where it is when the lattice gets 64 times as large."""
    small, large = (samplewise.plan(1, t, u, 512, 256, memory_budget="16MiB") for t, u in ((400, 50), (3200, 400)))
    return max(small.workspace, large.workspace) <= 16 * 2**20


def int32() -> bool:
    inputs = batch()
    return works(given=Batch(*inputs[:4], *(x.int() for x in inputs[4:])))


def strided() -> bool:
    inputs = batch()
    wide = torch.randn(B, T, 2 * D)[..., ::2].detach().requires_grad_()
    return works(given=inputs._replace(encoder_out=wide))


def span() -> Tensor:
    return torch.tensor([0, T - 1]).expand(B, U, 2)


TDT = samplewise.topology.tdt((0, 1, 2), sigma=0.05)
YES, NO, CALLER = "yes", "no", "the caller's"
# name, our check, what the peers have in the order of PEERS
ROWS: tuple[tuple[str, Callable[[], bool], tuple[str, ...]], ...] = (
    ("no 4-D tensor, exact loss", by_length, (NO, NO, "packed, no padding", NO, NO, NO, NO, NO)),
    ("runs on a CPU", works, (YES, YES, YES, YES, YES, "RNN-T", "TDT; RNN-T by torchaudio", "by torchaudio")),
    ("float64", lambda: works(dtype=torch.float64), (NO, YES, NO, YES, YES, "on a CPU", "TDT", NO)),
    ("bfloat16", lambda: works(dtype=torch.bfloat16), (NO, NO, NO, NO, NO, "copied to float32", "copied to float32", "-")),
    ("int64 and int32 targets and lengths", int32, (NO, NO, NO, "int64", "int64", "copied", "copied", "copied")),
    ("largest length below T", works, (NO, "-", NO, YES, YES, "cut before", "cut before", "-")),
    ("strided inputs", strided, (NO, NO, NO, YES, YES, "copied", "copied", "-")),
    ("empty targets", works, (YES, "wrong at width 0", YES, NO, YES, YES, "`mean` infinite", "-")),
    ("TDT", lambda: works(3, topology=TDT), (NO, NO, NO, NO, NO, "CUDA; on a CPU in PyTorch", YES, NO)),
    ("multi-blank", lambda: works(topology=samplewise.topology.multi_blank((2,), (2,)), given=no_twos()),
     (NO, NO, NO, NO, NO, YES, NO, NO)),
    ("HAT", lambda: works(topology="hat"), (NO, NO, NO, NO, YES, YES, NO, NO)),
    ("one symbol a frame", lambda: works(topology="modified"), (NO, NO, YES, YES, YES, NO, NO, NO)),
    ("FastEmit", lambda: works(fastemit_lambda=0.01), (NO, NO, NO, NO, NO, YES, NO, NO)),
    ("delay penalty", lambda: works(delay_penalty=0.01), (NO, NO, NO, YES, YES, NO, NO, NO)),
    ("alignment-restricted", lambda: works(alignment=span()), (NO, NO, NO, "pruned", "pruned", NO, NO, NO)),
    ("dropout inside the joint", lambda: works(dropout=0.2), (CALLER, CALLER, CALLER, CALLER, CALLER, YES, NO, CALLER)),
    ("clamped gradients", lambda: works(clamp=0.1), (YES, NO, NO, NO, NO, YES, NO, NO)),
    ("sampled softmax", lambda: works(vocabulary=sampled()), (NO, NO, NO, NO, NO, YES, NO, NO)),
)  # fmt: skip


def no_twos() -> Batch:
    inputs = batch()
    return inputs._replace(targets=inputs.targets.masked_fill(inputs.targets == 2, 3))


def sampled() -> samplewise.SampledVocabulary:
    inputs = batch()
    return samplewise.sample_vocabulary(inputs.targets, inputs.target_lengths, vocab_size=V, size=6)


def table() -> str:
    lines = ["| | samplewise | " + " | ".join(f"{name} {version}" for name, version in PEERS.items()) + " |"]
    lines.append("|" + "---|" * (2 + len(PEERS)))
    for name, check, theirs in ROWS:
        assert len(theirs) == len(PEERS), name
        if not check():
            raise SystemExit(f"{name}: samplewise does not do what the table says")
        lines.append(f"| {name} | {YES} | " + " | ".join(theirs) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--insert", type=Path, metavar="FILE", help="put the table between its markers there")
    arguments = parser.parse_args()
    made = table()
    print(made)
    if arguments.insert:
        fill(arguments.insert, "results:features", "results", made)


if __name__ == "__main__":
    main()
