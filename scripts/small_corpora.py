"""Lay out two small corpora of real speech as their recipes expect them: cepstra of CMU AN4, one woman's ARCTIC sentences.

docs/training.md says where they come from. Audio is left where it is.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import numpy as np
import soundfile

from samplewise import strict_json
from samplewise.asr.prepare.manifests import Line
from samplewise.asr.writing import write_lines

EXAMPLES = """\
examples:
  python scripts/small_corpora.py an4 DIRECTORY/an4 data/an4
      From feat/an4_clstk and feat/an4test_clstk (cepstra that CMU Sphinx writes) and etc/*.transcription.
  python scripts/small_corpora.py kathleen DIRECTORY/dataset-voice-kathleen data/kathleen
      From data/arctic_*.wav, with a text of the same name beside each. Sentences b0500 to b0539 are the test.
"""
CEPSTRA, RATE = 13, 100  # of a frame; frames a second
TRANSCRIPT = re.compile(r"(?:<s>)?\s*(.*?)\s*(?:</s>)?\s*\(([\w-]+)\)\s*")
TEST = re.compile(r"arctic_b05[0-3]\d")


def an4(source: Path, target: Path) -> list[Line]:
    lines: list[Line] = []
    texts: dict[str, str] = {}
    for path in sorted((source / "etc").glob("*.transcription")):
        texts |= transcripts(path)
    for split, folder in (("train", "an4_clstk"), ("test", "an4test_clstk")):
        found = {path.stem: path for path in sorted((source / "feat" / folder).rglob("*.mfc"))}
        features = {key: cepstra(path) for key, path in found.items() if key in texts}
        if not features:
            sys.exit(f"no .mfc file in {source / 'feat' / folder} belongs to a line of {source / 'etc'}")
        print(f"{split}: {len(features)} utterances; {len(found) - len(features)} more have no transcript")
        archive = f"an4_{split}_f16.npz"
        np.savez_compressed(target / archive, **{key: frames.astype(np.float16) for key, frames in features.items()})
        lines += [
            {
                "feats": f"{archive}:{key}",
                "duration": len(frames) / RATE,
                "text": texts[key].lower(),
                "speaker": found[key].parent.name,
                "split": split,
            }
            for key, frames in features.items()
        ]
    return lines


def transcripts(path: Path) -> dict[str, str]:
    """Texts by the name of the utterance, which stands in brackets behind each."""
    matches = (TRANSCRIPT.fullmatch(line) for line in path.read_text(encoding="utf-8").splitlines())
    return {match[2]: match[1] for match in matches if match}


def cepstra(path: Path) -> np.ndarray:
    """Frames (F, 13) of a file of CMU Sphinx: how many numbers follow, and these, in either order of bytes."""
    data = path.read_bytes()
    for order in "<>":
        if int(np.frombuffer(data, f"{order}i4", 1)[0]) * 4 + 4 == len(data):
            return np.frombuffer(data, f"{order}f4", offset=4).reshape(-1, CEPSTRA)
    sys.exit(f"{path} is not a file of cepstra, or was cut short")


def kathleen(source: Path, target: Path) -> list[Line]:
    takes: dict[str, Path] = {}
    for path in sorted((source / "data").glob("arctic_*.wav"), reverse=True):
        takes[path.stem.rpartition("_")[0]] = path  # of several takes the first
    lines = [
        {
            "audio": str(path.resolve()),
            "duration": round(soundfile.info(path).duration, 4),
            "text": path.with_suffix(".txt").read_text(encoding="utf-8").strip(),
            "speaker": "kathleen",
            "split": "test" if TEST.fullmatch(prompt) else "train",
        }
        for prompt, path in sorted(takes.items())
    ]
    if not lines:
        sys.exit(f"no data/arctic_*.wav in {source}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", choices=["an4", "kathleen"])
    parser.add_argument("source", type=Path, help="where the corpus is")
    parser.add_argument("target", type=Path, help="directory for manifest.jsonl, which the recipe is given with --data")
    arguments = parser.parse_args()
    arguments.target.mkdir(parents=True, exist_ok=True)
    lines = (an4 if arguments.corpus == "an4" else kathleen)(arguments.source, arguments.target)
    write_lines(arguments.target / "manifest.jsonl", lines)
    counts = {split: sum(line["split"] == split for line in lines) for split in ("train", "test")}
    print(f"{arguments.target / 'manifest.jsonl'}: {strict_json.text(counts)}")


if __name__ == "__main__":
    main()
