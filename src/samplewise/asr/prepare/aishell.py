"""AISHELL-1 (Bu et al. 2017, arXiv 1709.05522; openslr.org/33, Apache-2.0): read Mandarin, 150 h of training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from lhotse.recipes.aishell import prepare_aishell

from samplewise.asr.prepare.manifests import Line, Sets, listing, wrong_layout

NAME, TRANSCRIPT = "data_aishell", "transcript/aishell_transcript_v0.8.txt"
COMPLETE = {"train": 120098, "dev": 14326, "test": 7176}
SPEAKERS = {"train": 340, "dev": 40, "test": 20}
NO_UNIONS: Mapping[str, tuple[str, ...]] = {}
LAYOUT = f"""\
  {NAME}/
    {TRANSCRIPT}   (BAC009S0002W0122 and the words after it)
    wav/train/S0002/BAC009S0002W0122.wav, ...   (part / speaker)
    wav/dev/..., wav/test/..."""
GET = "data_aishell.tgz from https://www.openslr.org/33 unpacks into data_aishell/."
UNPACK = 'Unpack the speakers\' archives first: for f in {wav}/*.tar.gz; do tar xzf "$f" -C {wav}; done'


class Aishell:
    """AISHELL-1, unpacked.

    Args:
        source: `data_aishell`, or the directory that holds it.

    Raises:
        UserError: it is not laid out as AISHELL-1, or the archives of its speakers are still packed.
    """

    complete = COMPLETE
    speakers = SPEAKERS
    unions = NO_UNIONS
    recipes = ("recipes/aishell1.yaml",)

    def __init__(self, source: Path):
        source = source.resolve()
        self.root = source if source.name == NAME else source / NAME
        if not self.root.is_dir():
            raise wrong_layout(source, f"no {NAME} here, {listing(source)}", LAYOUT, GET)
        if not (self.root / TRANSCRIPT).is_file():
            raise wrong_layout(self.root, f"no {TRANSCRIPT}, {listing(self.root)}", LAYOUT, GET)
        wav = self.root / "wav"
        for part in COMPLETE:
            if next((wav / part).glob("*/*.wav"), None) is None:
                hint = UNPACK.format(wav=wav) if next(wav.glob("*.tar.gz"), None) is not None else GET
                raise wrong_layout(self.root, f"no recordings wav/{part}/SPEAKER/*.wav, in wav {listing(wav)}", LAYOUT, hint)
        self.parts = tuple(COMPLETE)

    def lines(self, parts: Sequence[str], jobs: int) -> Iterator[tuple[str, list[Line]]]:
        """lhotse reads the three parts at once, on one thread."""
        found = prepare_aishell(self.root.parent)
        for part in parts:
            yield part, Sets(found[part]["recordings"], found[part]["supervisions"]).lines(part)
