"""The Corpus of Spontaneous Japanese (Maekawa 2003; clrd.ninjal.ac.jp/csj): its academic presentations, CSJ-APS.

Transcripts are Shift-JIS files of short units (SDB) with tags for fillers, slips and mispronunciations. lhotse's recipe
parses them into texts as they were spoken; pieces less than `GAP` apart are put together up to `LONGEST` seconds.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from lhotse.recipes.csj import concat_csj_supervisions, prepare_manifests

from samplewise.asr.errors import UserError
from samplewise.asr.prepare.manifests import Line, Sets, listing, wrong_layout

GAP, LONGEST = 0.5, 10.0  # seconds
PRESENTATION = "A"  # first letter of the names of academic presentations
EVALUATION = {  # the official test sets, ten talks each; the third is of another kind of talks
    "eval1": "A01M0097 A01M0110 A01M0137 A03M0106 A03M0112 A03M0156 A04M0051 A04M0121 A04M0123 A05M0011",
    "eval2": "A01F0001 A01F0034 A01F0063 A01M0056 A01M0141 A02M0012 A03F0072 A03M0016 A06F0135 A06M0064",
    "eval3": "S00F0019 S00F0066 S00F0148 S00F0152 S00M0008 S00M0070 S00M0079 S00M0112 S00M0213 S01F0105",
}
VALIDATION = "A01M0264 A01M0377 A01M0776 A01M0891 A03F0109 A04M0899 A05M0420 A07M0318 A07M0912 A11M0795"  # as in lhotse
NOTHING: Mapping[str, tuple[str, ...]] = {}
COMPLETE: Mapping[str, int] = {}  # depends on how pieces are put together
TALKS = {part: len(names.split()) for part, names in {**EVALUATION, "valid": VALIDATION}.items()}
LAYOUT = """\
  MORPH/SDB/core/A01M0097.sdb, MORPH/SDB/noncore/...   (USB edition: transcripts)
  WAV/core/A01M0097.wav, WAV/noncore/...               (USB edition: recordings)
or
  dvd3/A01M0097/A01M0097.sdb, dvd3/A01M0097/A01M0097.wav, ..., dvd17/..."""
GET = "The corpus is licensed by NINJAL: https://clrd.ninjal.ac.jp/csj/en/. The XML transcripts alone are not enough."


class AcademicTalks:
    """The academic presentations of the corpus, and the talks of its third test set.

    Args:
        source: the directory of the corpus, USB or DVD edition.

    Raises:
        UserError: no transcripts of academic presentations there, or transcripts without recordings.
    """

    complete = COMPLETE
    speakers = TALKS
    unions = NOTHING
    recipes = ("recipes/csj_aps.yaml",)

    def __init__(self, source: Path):
        self.root = source.resolve()
        transcripts = sorted(self.root.glob("MORPH/SDB/*/*.sdb")) or sorted(self.root.glob("dvd*/*/*.sdb"))
        parts = {path.stem: part_of(path.stem) for path in transcripts}
        self.talks = {path.stem: (path, self._recording(path)) for path in transcripts if parts[path.stem]}
        self.parts = tuple(part for part in ("train", "valid", *EVALUATION) if part in parts.values())
        if "train" not in self.parts:
            raise wrong_layout(source, f"no transcripts of academic presentations (A*.sdb), {listing(source)}", LAYOUT, GET)
        silent = [wav for _, wav in self.talks.values() if not wav.is_file()]
        if silent:
            raise wrong_layout(source, f"{len(silent)} of {len(self.talks)} talks have no recording, as {silent[0]}", LAYOUT)

    def _recording(self, transcript: Path) -> Path:
        """Where the recording of a transcript belongs."""
        if transcript.is_relative_to(self.root / "MORPH"):
            return self.root / "WAV" / transcript.parent.name / f"{transcript.stem}.wav"
        return transcript.with_suffix(".wav")

    def lines(self, parts: Sequence[str], jobs: int) -> Iterator[tuple[str, list[Line]]]:
        for part in parts:
            with tempfile.TemporaryDirectory() as folder:
                self._lay_out(part, Path(folder))
                try:
                    found = prepare_manifests(Path(folder), dataset_parts=[part], num_jobs=jobs)[part]
                except UnicodeDecodeError as error:
                    raise UserError(f"{self.root}: a transcript of {part} is not in Shift-JIS as published ({error})") from None
            pieces = concat_csj_supervisions(found["supervisions"], gap=GAP, maxlen=LONGEST)
            yield part, [line for line in Sets(found["recordings"], pieces).lines(part) if line["text"].strip()]

    def _lay_out(self, part: str, folder: Path) -> None:
        """The talks of a part as lhotse's recipe wants them: a folder a talk with its transcript and the recording's place."""
        for name, (transcript, wav) in self.talks.items():
            if part_of(name) == part:
                talk = folder / part / name
                talk.mkdir(parents=True)
                (talk / f"{name}.sdb").symlink_to(transcript)
                (talk / f"{name}-wav.list").write_text(wav.as_posix())


def part_of(talk: str) -> str | None:
    """The part that a talk belongs to; None for kinds of talks that CSJ-APS does not hold."""
    for part, names in EVALUATION.items():
        if talk in names.split():
            return part
    if talk in VALIDATION.split():
        return "valid"
    return "train" if talk.startswith(PRESENTATION) else None
