"""The command line of `samplewise prepare`; everything heavy is imported when it runs."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable

EXAMPLES = """\
corpora, and what --from points at:
  librispeech   the directory LibriSpeech with train-clean-100, dev-clean, ... in it, each unpacked from openslr.org/12
  aishell1      the directory data_aishell with transcript and wav in it, from openslr.org/33, the archives in wav unpacked
  csj-aps       the Corpus of Spontaneous Japanese with MORPH/SDB and WAV in it (USB edition), or with dvd3 ... dvd17
Audio is left where it is: the manifests point to it, and take little space.

examples:
  samplewise prepare librispeech --from /corpora/LibriSpeech --to data/librispeech
      Every part that is there, a manifest each: data/librispeech/train-clean-100.jsonl and so on.
  samplewise prepare librispeech --from /corpora/LibriSpeech --to data/librispeech --parts train-clean-100 dev-clean
      Only these. Parts that are prepared already are kept, so the same command goes on after an interruption.
  samplewise train recipes/librispeech_100.yaml --data data/librispeech
      What comes next; docs/corpora.md has all commands of all corpora.
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("corpus", metavar="CORPUS", help="librispeech, aishell1 or csj-aps")
    command.add_argument("--from", metavar="DIR", dest="source", required=True, help="where the corpus was unpacked")
    command.add_argument("--to", metavar="DIR", dest="target", required=True, help="directory for the manifests")
    command.add_argument("--parts", metavar="PART", nargs="+", help="prepare only these parts (default: all that are there)")
    command.add_argument(
        "--jobs",
        metavar="N",
        type=int,
        default=min(8, os.cpu_count() or 1),
        help="threads that read recordings (default: %(default)s)",
    )


def run(arguments: argparse.Namespace, say: Callable[[str], None]) -> int:
    from samplewise.asr.prepare.prepare import prepare

    prepare(arguments.corpus, arguments.source, arguments.target, parts=arguments.parts, jobs=arguments.jobs, say=say)
    return 0
