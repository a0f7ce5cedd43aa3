"""The command line of `samplewise plan`. Nothing heavy is imported before it runs."""

from __future__ import annotations

import argparse

EXAMPLES = """\
examples:
  samplewise plan --batch 32 --frames 400 --labels 60 --vocab 2048 --dim 512
      Method, tile, workspace and operations of such a batch.
  samplewise plan --batch 1024 --frames 1000 --labels 100 --vocab 256 --dim 64 --budget 256MiB
      The same with a workspace of at most 256 MiB.
  samplewise plan --batch 8 --frames 400 --labels 60 --vocab 2048 --dim 512 --memory 6GiB
      And how many such utterances fit 6 GiB, by every method.
  samplewise plan --batch 2 --frames 400,250 --labels 60,31 --vocab 2048 --dim 512 --dtype bfloat16
      Utterances of different lengths, in half precision.
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--batch", type=int, required=True, metavar="B", help="utterances")
    command.add_argument(
        "--frames", type=lengths, required=True, metavar="T", help="encoder frames: a number, or one an utterance"
    )
    command.add_argument("--labels", type=lengths, required=True, metavar="U", help="labels: a number, or one an utterance")
    command.add_argument("--vocab", type=int, required=True, metavar="V", help="classes, blank included")
    command.add_argument("--dim", type=int, required=True, metavar="D", help="joint dimension")
    command.add_argument("--dtype", default="float32", choices=("float32", "float64", "bfloat16", "float16"))
    command.add_argument("--method", default="auto", choices=("auto", "batched", "samplewise", "tiled", "guided"))
    command.add_argument("--budget", metavar="BYTES", help='bound of the workspace, bytes or text such as "256MiB"')
    command.add_argument("--memory", metavar="BYTES", help="also say how many such utterances fit this memory, by every method")
    command.add_argument(
        "--share", type=float, default=0.1, metavar="R",
        help="share of nodes that carry the occupancy: 0.4 at random weights, 0.1 and less after training (default: 0.1)",
    )  # fmt: skip
    command.add_argument(
        "--topology", default="regular", choices=("regular", "modified", "constrained", "hat", "multi_blank", "tdt"),
        help="what lattice, with the defaults of samplewise.topology (default: regular)",
    )  # fmt: skip
    command.add_argument("--device", default="cpu", help="whose memory and caches count, such as cuda (default: cpu)")
    command.add_argument("--loss-only", action="store_true", help="plan an evaluation without gradients")


def lengths(text: str) -> int | list[int]:
    """A length, or several separated by commas."""
    numbers = [int(part) for part in text.split(",")]
    return numbers[0] if len(numbers) == 1 else numbers


def run(arguments: argparse.Namespace) -> int:
    import torch

    from samplewise.planning.plan import plan

    found = plan(
        arguments.batch, arguments.frames, arguments.labels, arguments.vocab, arguments.dim,
        dtype=getattr(torch, arguments.dtype), method=arguments.method, memory_budget=as_budget(arguments.budget),
        share=arguments.share, gradient=not arguments.loss_only, device=arguments.device, topology=arguments.topology,
    )  # fmt: skip
    print(found)
    if arguments.memory:
        print(f"\nutterances like the longest that fit {arguments.memory}, with encodings and gradients")
        for method in ("batched", "samplewise", "tiled", "guided"):
            print(f"  {method:12}{found.largest_batch(as_budget(arguments.memory) or 0, method):8}")
    return 0


def as_budget(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.isdigit() else text
