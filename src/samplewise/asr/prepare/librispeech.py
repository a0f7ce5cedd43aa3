"""LibriSpeech (Panayotov et al. 2015; openslr.org/12, CC BY 4.0): English books read aloud, 960 h of training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from lhotse.recipes.librispeech import prepare_librispeech

from samplewise.asr.prepare.manifests import Line, Sets, listing, wrong_layout

TRAIN = {"train-clean-100": 28539, "train-clean-360": 104014, "train-other-500": 148688}
COMPLETE = {**TRAIN, "dev-clean": 2703, "dev-other": 2864, "test-clean": 2620, "test-other": 2939}
SPEAKERS = {  # as in the paper
    "train-clean-100": 251,
    "train-clean-360": 921,
    "train-other-500": 1166,
    "dev-clean": 40,
    "dev-other": 33,
    "test-clean": 40,
    "test-other": 33,
}
UNIONS = {"train-960": tuple(TRAIN)}
LAYOUT = """\
  LibriSpeech/
    train-clean-100/19/198/19-198-0000.flac, ...   (part / speaker / chapter)
    train-clean-100/19/198/19-198.trans.txt        (19-198-0000 WHAT IS SAID IN CAPITALS)
    dev-clean/..., test-clean/..."""
GET = "Parts come from https://www.openslr.org/12 as train-clean-100.tar.gz and so on, which unpack into LibriSpeech/."


class LibriSpeech:
    """The parts of LibriSpeech that were unpacked.

    Args:
        source: `LibriSpeech`, or the directory that holds it.

    Raises:
        UserError: no part of LibriSpeech there.
    """

    complete = COMPLETE
    speakers = SPEAKERS
    unions = UNIONS
    recipes = ("recipes/librispeech_100.yaml", "recipes/librispeech_960.yaml")

    def __init__(self, source: Path):
        inner = source / "LibriSpeech"
        self.root = inner if inner.is_dir() else source
        self.parts = tuple(part for part in COMPLETE if (self.root / part).is_dir())
        if not self.parts:
            raise wrong_layout(source, f"no part of LibriSpeech here, {listing(source)}", LAYOUT, GET)
        for part in self.parts:
            if next((self.root / part).glob("*/*/*.trans.txt"), None) is None:
                found = f"no transcripts SPEAKER/CHAPTER/SPEAKER-CHAPTER.trans.txt, {listing(self.root / part)}"
                raise wrong_layout(self.root / part, found, LAYOUT, GET)

    def lines(self, parts: Sequence[str], jobs: int) -> Iterator[tuple[str, list[Line]]]:
        for part in parts:
            found = prepare_librispeech(self.root, dataset_parts=[part], num_jobs=jobs)[part]
            yield part, Sets(found["recordings"], found["supervisions"]).lines(part)
