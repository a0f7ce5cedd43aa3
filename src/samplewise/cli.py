"""The `samplewise` command. Heavy packages are imported by the subcommand that needs them, so `--help` is quick."""

from __future__ import annotations

import argparse
import io
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from samplewise import extras
from samplewise.asr import comparing
from samplewise.asr.prepare import arguments as preparing
from samplewise.asr.spoken import arguments as speaking
from samplewise.bench.arguments import add_bench
from samplewise.planning import arguments as planning

FAILED, USAGE = 1, 2
LOG = logging.getLogger("samplewise")
DEBUG = "SAMPLEWISE_DEBUG"  # in the environment: 1 shows the tracebacks of errors that are told without one

TRAIN_EXAMPLES = """\
examples:
  samplewise train recipes/digits.yaml
      Train a recogniser of spoken digit strings on a CPU in a few minutes. Checkpoints, log.jsonl and results.json
      go to runs/digits.
  samplewise train recipes/digits.yaml --output runs/try --set training.steps=300 --set encoder.hidden=128
      The same with other values; keys are those of the YAML file, with dots. docs/training.md lists them.
  samplewise train recipes/digits.yaml --resume
      Go on after Ctrl-C, SIGTERM or a crash, from the last whole checkpoint, as if nothing had happened. With
      --set training.steps=N and a larger N a run is extended, if its schedule is constant_with_warmup or inverse_sqrt.
  torchrun --nproc_per_node 4 -m samplewise train recipes/digits.yaml
      On four processes; every one takes training.batch_size utterances a step.
"""
EVALUATE_EXAMPLES = """\
examples:
  samplewise evaluate runs/digits digits
      The built-in digit strings of held-out recordings.
  samplewise evaluate runs/digits/checkpoint-400 my/manifest.jsonl --texts
      Any recordings: one line {"audio": "a.wav", "text": "one two"} each; paths are relative to the manifest.
  samplewise evaluate runs/digits my/manifest.jsonl --normalisation words
      Letters, marks and digits of all scripts are compared, in lower case; punctuation is not.
  samplewise evaluate runs/digits digits --beam 8
      By beam search over sequences of labels, each with the sum of its alignments: fewer errors, more time.
"""
TRANSCRIBE_EXAMPLES = """\
examples:
  samplewise transcribe runs/digits number.wav
  samplewise transcribe runs/digits *.flac *.ogg
      wav, flac, ogg and more, at any sampling rate; channels are mixed. With several files each line starts with
      the file's name and a tab.
"""


def build_parser() -> argparse.ArgumentParser:
    """The command line; each subcommand's function is its `run` default."""
    parser = argparse.ArgumentParser(
        prog="samplewise",
        description="Train and use transducer speech recognisers whose loss never holds the 4-D logits.",
        epilog="`samplewise COMMAND --help` explains a command and ends with examples. With SAMPLEWISE_DEBUG=1 in the "
        "environment errors, also those of single utterances, are shown with their tracebacks.",
    )
    parser.add_argument("--version", action="store_true", help="print the version and stop")
    commands = parser.add_subparsers(metavar="COMMAND")
    add_prepare(commands)
    add_train(commands)
    add_synthesise(commands)
    add_compare(commands)
    add_evaluate(commands)
    add_transcribe(commands)
    add_plan(commands)
    add_bench(commands)
    return parser


def add_command(commands, name: str, run, summary: str, examples: str, extra: str = "train") -> argparse.ArgumentParser:
    command = commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.set_defaults(run=run, extra=extra)
    return command


def add_prepare(commands) -> None:
    summary = "make manifests of LibriSpeech, AISHELL-1 or the Corpus of Spontaneous Japanese"
    command = add_command(commands, "prepare", run_prepare, summary, preparing.EXAMPLES, extra="corpora")
    preparing.add_arguments(command)


def add_train(commands) -> None:
    command = add_command(commands, "train", run_train, "train a recogniser by a recipe and evaluate it", TRAIN_EXAMPLES)
    command.add_argument("recipe", help="YAML file, for example recipes/digits.yaml")
    command.add_argument(
        "--output", metavar="DIR", help="run directory, new or empty (default: runs/NAME, NAME from the recipe)"
    )
    command.add_argument(
        "--data",
        metavar="DIR",
        help="where the recordings are; for digits also `synthetic` (default: cache, ../shared/data/fsdd, a download, "
        "and without a network synthetic speech)",
    )
    command.add_argument("--resume", action="store_true", help="go on from the last whole checkpoint of the run directory")
    command.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        dest="changes",
        help="change a key of the recipe; may be given several times",
    )


def add_synthesise(commands) -> None:
    summary = "make hours of synthetic speech with a large vocabulary"
    speaking.add_arguments(add_command(commands, "synthesise", run_synthesise, summary, speaking.EXAMPLES, extra="speech"))


def add_compare(commands) -> None:
    summary = "train a recipe with the full loss and over sampled classes, at the same steps and seeds"
    comparing.add_arguments(add_command(commands, "compare", run_compare, summary, comparing.EXAMPLES))


def add_evaluate(commands) -> None:
    command = add_command(
        commands,
        "evaluate",
        run_evaluate,
        "print the word error rate of a recogniser, with insertions, deletions and substitutions",
        EVALUATE_EXAMPLES,
    )
    command.add_argument("checkpoint", help="a run directory, or a checkpoint-N in it")
    command.add_argument("corpus", metavar="DATA", help="`digits`, a manifest.jsonl, or a directory that holds one")
    command.add_argument("--data", metavar="DIR", help="for `digits`: where the recordings are, as for train")
    command.add_argument("--split", metavar="NAME", help="take only the manifest's lines of this split")
    add_beam(command)
    command.add_argument(
        "--normalisation",
        choices=["none", "lower", "words"],
        help="of both texts before they are compared: nothing beside the tokenizer's own, lower case, or words alone, without "
        "punctuation (default: the recipe's decoding.normalisation)",
    )
    command.add_argument("--texts", action="store_true", help="print every utterance that is not right")
    command.add_argument("--json", action="store_true", help="print numbers as JSON instead of sentences")


def add_transcribe(commands) -> None:
    command = add_command(commands, "transcribe", run_transcribe, "print the text of recordings", TRANSCRIBE_EXAMPLES)
    command.add_argument("checkpoint", help="a run directory, or a checkpoint-N in it")
    command.add_argument("files", metavar="FILE", nargs="+", help="a recording")
    add_beam(command)


def add_beam(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--beam",
        metavar="N",
        type=int,
        help="label sequences kept from frame to frame, 1 for greedy search (default: the recipe's)",
    )


def add_plan(commands) -> None:
    summary = "say what the loss of a batch would take: method, memory, operations, the largest batch"
    planning.add_arguments(add_command(commands, "plan", planning.run, summary, planning.EXAMPLES))


def run_prepare(arguments: argparse.Namespace) -> int:
    return preparing.run(arguments, say)


def run_synthesise(arguments: argparse.Namespace) -> int:
    return speaking.run(arguments, say)


def run_compare(arguments: argparse.Namespace) -> int:
    return comparing.run(arguments, say)


def run_train(arguments: argparse.Namespace) -> int:
    from samplewise.asr.recipe import load_recipe

    recipe = load_recipe(arguments.recipe, arguments.changes)  # before the heavy imports: a typo shows at once
    from samplewise.asr.train import train

    directory = Path(arguments.output or Path("runs") / recipe.name)
    outcome = train(recipe, directory, data=arguments.data, resume=arguments.resume, say=say)
    return 128 + outcome.stopped_by if outcome.stopped_by else 0


def run_evaluate(arguments: argparse.Namespace) -> int:
    from samplewise.asr.scoring import score

    score(
        arguments.checkpoint,
        arguments.corpus,
        data=arguments.data,
        split=arguments.split,
        beam=arguments.beam,
        normalisation=arguments.normalisation,
        texts=arguments.texts,
        as_json=arguments.json,
        say=say,
    )
    return 0


def run_transcribe(arguments: argparse.Namespace) -> int:
    from samplewise.asr.checkpoint import load_recogniser
    from samplewise.asr.transcribe import transcribe

    failed = 0
    for path, found in transcribe(load_recogniser(arguments.checkpoint), arguments.files, arguments.beam, complain):
        if not isinstance(found, str):
            complain(str(found))
            failed += 1
        else:
            print(found if len(arguments.files) == 1 else f"{path}\t{found}", flush=True)
    return FAILED if failed else 0


def say(line: str) -> None:
    print(line, flush=True)


def complain(line: str) -> None:
    print(f"samplewise: {line}", file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit status is 0, 1 for a failure, 2 for a wrong command line, 128 + a signal's number."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if arguments.version:
        from samplewise import __version__

        print(__version__)
        return 0
    if not hasattr(arguments, "run"):
        parser.print_help()
        return USAGE
    if os.environ.get(DEBUG) == "1":
        logging.basicConfig()
        LOG.setLevel(logging.DEBUG)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names that are not Unicode, texts that a terminal cannot show
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # spinning threads starve each other on few cores
    try:
        from samplewise import TransducerError
        from samplewise.asr.errors import UserError
        from samplewise.asr.writing import FULL, REFUSED
    except ImportError as error:
        complain(extras.advice([arguments.extra], error))
        return FAILED
    try:
        return arguments.run(arguments)
    except (UserError, TransducerError) as error:
        LOG.debug("", exc_info=True)
        complain(str(error))
        return FAILED
    except ImportError as error:
        complain(extras.advice([arguments.extra], error))
        return FAILED
    except KeyboardInterrupt:
        complain("interrupted")
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the reader of our output has gone, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:  # where no function of ours wrote: standard output, a library's own files
        if error.errno not in (*FULL, *REFUSED):
            raise
        doing, way = ("write", "make room") if error.errno in FULL else ("use", "see to its permissions or choose another")
        complain(f"cannot {doing} {error.filename or 'the output'}: {error.strerror}; {way} and give the same command again")
        return FAILED


if __name__ == "__main__":
    sys.exit(main())
