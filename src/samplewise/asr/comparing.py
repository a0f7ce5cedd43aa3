"""The command line of `samplewise compare`; everything heavy is imported when it runs."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable
from pathlib import Path

EXAMPLES = """\
examples:
  samplewise compare recipes/an4_characters.yaml --size 14 --results an4_characters.jsonl
      Train the recipe with the full loss, and over 14 sampled classes: uniform and CTC-guided negatives, per utterance and
      per batch, with three seeds each: fifteen runs. Every finished run adds a line to the results file.
  samplewise compare recipes/an4_characters.yaml --size 14 --results an4_characters.jsonl --jobs 2 --minutes 30
      Two runs at a time, one thread each; stop with checkpoints after half an hour. The same command goes on.
  samplewise compare recipes/an4_words.yaml --size 16 32 64 --negatives ctc --scopes utterance --results sizes.jsonl
      Which sample size keeps the accuracy.
The same command given twice, in two terminals, shares the runs. Ctrl-C stops them with checkpoints; the same command goes on,
after kill -9, too: a run that outlived its command is waited for.
"""
STOPPING = "{}: the runs save checkpoints and stop; again to leave them to it"
STOPPED = 75  # the status of a command that has to be given again (EX_TEMPFAIL of sysexits.h)


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("recipe", help="YAML file, for example recipes/an4_words.yaml")
    command.add_argument("--size", metavar="N", type=int, nargs="+", required=True, help="sampled classes, see sampling.size")
    command.add_argument(
        "--negatives",
        choices=["uniform", "ctc", "unigram"],
        nargs="+",
        default=["uniform", "ctc"],
        help="where negatives come from (default: uniform ctc)",
    )
    command.add_argument(
        "--scopes",
        choices=["utterance", "batch"],
        nargs="+",
        default=["utterance", "batch"],
        help="classes of each utterance, or of the batch (default: both)",
    )
    command.add_argument(
        "--corrections",
        choices=["none", "logq"],
        nargs="+",
        default=["none"],
        help="of the sampled softmax (default: none, the paper's form)",
    )
    command.add_argument("--seeds", metavar="N", type=int, nargs="+", default=[1, 2, 3], help="default: 1 2 3")
    command.add_argument("--no-full", action="store_true", help="leave out the runs with the full loss")
    command.add_argument("--output", metavar="DIR", help="for the runs' directories (default: runs/compare/NAME of the recipe)")
    command.add_argument("--results", metavar="FILE", required=True, help="JSON-lines file of finished runs; lines are added")
    command.add_argument("--data", metavar="DIR", help="where the data are, as for train")
    command.add_argument("--jobs", metavar="N", type=int, default=1, help="runs beside each other (default: 1)")
    command.add_argument("--minutes", metavar="M", type=float, help="stop the runs with checkpoints after so many minutes")
    command.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], dest="changes", help="change a key of the recipe in all runs"
    )


def run(arguments: argparse.Namespace, say: Callable[[str], None]) -> int:
    """Status 75 if runs were stopped by the clock, 128 and the signal's number if by a signal."""
    from samplewise.asr.compare import compare, make_plans, variants
    from samplewise.asr.recipe import load_recipe
    from samplewise.asr.signals import FirstSignal

    recipe = load_recipe(arguments.recipe, arguments.changes)
    found = variants(arguments.size, arguments.negatives, arguments.scopes, arguments.corrections, full=not arguments.no_full)
    numbers = (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM))
    with FirstSignal(numbers, say, STOPPING) as caught:
        whole = compare(
            arguments.recipe,
            make_plans(arguments.recipe, arguments.changes, found, arguments.seeds),
            Path(arguments.output or Path("runs") / "compare" / recipe.name),
            Path(arguments.results),
            data=arguments.data,
            jobs=arguments.jobs,
            minutes=arguments.minutes,
            stop_when=lambda: caught.received,
            say=say,
        )
    if caught.received and not whole:
        return 128 + caught.received
    return 0 if whole else STOPPED
