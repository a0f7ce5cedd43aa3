"""The command line of `samplewise bench`; nothing heavy is imported before a subcommand runs."""

from __future__ import annotations

import argparse
import sys

from samplewise import extras
from samplewise.bench.cases import SUITES

EXAMPLES = """\
examples:
  samplewise bench run --suite quick --output quick.jsonl
      Check, time and weigh every method on workloads of a few seconds.
  samplewise bench run --suite table --output table.jsonl
      The sizes at which the README's figures are taken. Interrupted, the same command goes on where it was.
  samplewise bench export runs/digits --output joints
  samplewise bench run --suite trained --joints joints --output trained.jsonl
      The joints of trained models: what the test utterances of a training run become at each of its checkpoints.
  samplewise bench report table.jsonl --output docs/results --insert README.md docs/*.md
      Tables, plots, one HTML page; and the tables put between their markers in the given files.
  samplewise bench peers
      Which other libraries are there to be measured; `samplewise bench install PEER` makes an environment for one.
"""


def add_bench(commands) -> None:
    """Register `bench` and its subcommands with the subparsers of the command."""
    bench = commands.add_parser(
        "bench",
        help="measure time, memory and error of every method and of other libraries",
        description="Measure time, memory and error of every method and of other libraries, and report.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    bench.set_defaults(run=run_bench, action=None, bench_parser=bench)
    actions = bench.add_subparsers(metavar="ACTION")
    add_run(actions)
    add_report(actions)
    add_export(actions)
    add_action(actions, "peers", "list the other libraries that can be measured, and where they are")
    install = add_action(actions, "install", "install another library into an environment of its own")
    install.add_argument("peer", help="a name from `samplewise bench peers`")
    install.add_argument("--path", metavar="DIR", help="take it from this directory of importable packages instead of PyPI")


def add_action(actions, name: str, summary: str) -> argparse.ArgumentParser:
    action = actions.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
    action.set_defaults(run=run_bench, action=name)
    return action


def add_run(actions) -> None:
    run = add_action(actions, "run", "measure, one JSON line a case and method")
    run.add_argument("--suite", choices=SUITES, nargs="+", default=["table"], help="which cases (default: table)")
    run.add_argument("--joints", metavar="DIR", help="where suite trained finds encodings of trained models, *.npz")
    run.add_argument("--case", metavar="NAME", nargs="+", default=["*"], help="of these, only the ones named; * and ? are wild")
    run.add_argument("--output", metavar="FILE", default="runs/bench.jsonl", help="rows are added to it (default: %(default)s)")
    run.add_argument("--methods", metavar="METHOD", nargs="+", help="not the case's own: auto, auto:loss, auto:bf16, ...")
    run.add_argument("--peers", metavar="PEER", nargs="*", help="only these other libraries; none if nothing follows")
    run.add_argument("--budget", metavar="SIZE", help='memory_budget of our methods, such as "64MiB" (default: their own)')
    run.add_argument("--limit", metavar="SIZE", help="memory that a step may take (default: 85%% of what is free)")
    run.add_argument("--rounds", metavar="N", type=int, default=7, help="steps of each method that count (default: 7)")
    run.add_argument("--threads", metavar="N", type=int, help="default: as many as there are cores")
    run.add_argument("--timeout", metavar="S", type=float, default=600.0, help="seconds for a step (default: 600)")
    run.add_argument("--fresh", action="store_true", help="measure again what the file has already")
    run.add_argument("--busy", action="store_true", help="take rows measured beside other work as they are, marked")
    run.add_argument("--dry-run", action="store_true", help="list what would be measured")


def add_export(actions) -> None:
    export = add_action(
        actions, "export", "write what the joint of a training run sees, at each of its checkpoints, for suite trained"
    )
    export.add_argument("run_directory", metavar="RUN", help="of `samplewise train`, or one checkpoint in it")
    export.add_argument("--output", metavar="DIR", required=True, help="NAME_stepN.npz are written into it")
    export.add_argument("--data", metavar="DIR", help="where the recordings are, as for `samplewise train`")
    export.add_argument(
        "--labels", metavar="N", type=int, default=100, help="test utterances are joined to so many (default: 100)"
    )
    export.add_argument("--utterances", metavar="N", type=int, default=2, help="joined ones in a file (default: 2)")


def add_report(actions) -> None:
    report = add_action(actions, "report", "make tables, plots and a page from measurements")
    report.add_argument("files", metavar="FILE.jsonl", nargs="+", help="what `samplewise bench run` wrote")
    report.add_argument("--output", metavar="DIR", default="docs/results", help="default: %(default)s")
    report.add_argument(
        "--insert",
        metavar="FILE.md",
        nargs="+",
        default=[],
        help="fill what is between <!-- bench:NAME --> and <!-- /bench -->",
    )


def run_bench(arguments: argparse.Namespace) -> int:
    if arguments.action is None:
        arguments.bench_parser.print_help()
        return 2
    from samplewise.bench.errors import BenchError

    try:
        from samplewise.bench import commands

        return commands.ACTIONS[arguments.action](arguments)
    except BenchError as error:
        print(f"samplewise: {error}", file=sys.stderr)
    except ModuleNotFoundError as error:
        print(
            f"samplewise: {extras.advice(['bench', 'train'] if arguments.action == 'export' else ['bench'], error)}",
            file=sys.stderr,
        )
    return 1
