"""The command line of `samplewise synthesise`; everything heavy is imported when it runs."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from samplewise.asr.spoken.needs import VOICES, lacking

EXAMPLES = """\
What has to be there: Debian's flite and bible-kjv (apt-get install flite bible-kjv), and pip install 'samplewise[speech]'.

examples:
  samplewise synthesise
      Three hours of phrases from the King James Bible, read by five voices, in the cache (~/.cache/samplewise/spoken).
      The same command goes on after an interruption.
  samplewise synthesise --to data/spoken --hours 10 --voices slt rms awb --texts lines.txt --jobs 4
      Other texts, a sentence a line; Flite's voices alone; four utterances at a time.
  samplewise train recipes/bible.yaml
      What comes next; `--data` names a directory other than the cache.
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--to", metavar="DIR", help="for the recordings and manifests (default: spoken in the cache)")
    command.add_argument("--hours", metavar="H", type=float, default=3.0, help="training speech (default: %(default)s)")
    command.add_argument(
        "--voices", metavar="NAME", nargs="+", help="slt, rms, awb, kal16 of Flite, joe of Piper (default: all)"
    )
    command.add_argument("--texts", metavar="FILE", help="a sentence a line (default: what the `bible` command prints)")
    command.add_argument("--test", metavar="N", type=int, default=300, help="test utterances (default: %(default)s)")
    command.add_argument("--seed", metavar="N", type=int, default=1, help="of what is read by whom and how (default: 1)")
    command.add_argument("--jobs", metavar="N", type=int, default=1, help="utterances read at a time (default: 1)")


def run(arguments: argparse.Namespace, say: Callable[[str], None]) -> int:
    from samplewise.asr.errors import UserError

    chosen = tuple(arguments.voices or VOICES)
    if lines := lacking(chosen, arguments.texts):
        raise UserError(
            "what is not installed here, and is needed:\n  " + "\n  ".join(lines) + "\n"
            "Other voices are chosen by --voices, other texts than those of `bible` given by --texts."
        )
    from samplewise.asr.spoken.synthesise import Options, synthesise
    from samplewise.asr.spoken.texts import sentences
    from samplewise.asr.spoken.voices import find_voices
    from samplewise.cache import cache_directory, expanded

    options = Options(hours=arguments.hours, test=arguments.test, seed=arguments.seed, voices=chosen)
    voices = find_voices(options.voices, options.sample_rate)
    target = expanded(arguments.to) if arguments.to else cache_directory() / "spoken"
    synthesise(sentences(arguments.texts), voices, target, options, jobs=arguments.jobs, say=say)
    say(f"next: samplewise train recipes/bible.yaml --data {target}")
    return 0
