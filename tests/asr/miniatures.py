"""Corpora in miniature: laid out as their publishers lay them out, under made-up names and with made-up transcripts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import soundfile
import soxr

from .made import SHARED

RATE = 16000
SPEECH = ("an4_mini", "ljspeech_mini", "kathleen_en")
LONGEST = 4.0  # seconds of a clip
SMALL = {
    "encoder.layers": 2,
    "encoder.hidden": 16,
    "encoder.heads": 2,
    "encoder.feed_forward": 16,
    "encoder.kernel": 5,
    "encoder.channels": 8,
    "predictor.embedding": 8,
    "predictor.hidden": 16,
    "joiner.dim": 16,
    "training.steps": 4,
    "training.batch_seconds": 15,
    "training.accumulate": 2,
    "training.warmup_steps": 2,
    "training.log_every": 1,
    "training.evaluate_every": 2,
    "training.save_every": 2,
    "training.workers": 0,
}


SAMPLED = {"sampling.size": 20, "ctc.layers": [1]}


def small(recipe: str, **changes: object) -> list[str]:
    """Options of `samplewise train` that make a recipe of a large corpus a matter of seconds."""
    sampled = SAMPLED if recipe.endswith("sampled") else {}
    values = {**SMALL, **sampled, **{key.replace("__", "."): value for key, value in changes.items()}}
    return [option for key, value in values.items() for option in ("--set", f"{key}={value}")]


def clips() -> Iterator[np.ndarray]:
    """Short recordings at 16 kHz, endlessly: speech where the shared recordings are there, else warbling tones."""
    paths = [SHARED / name / line["audio"] for name in SPEECH for line in listed(SHARED / name / "manifest.jsonl")]
    number = 0
    while True:
        yield read(paths[number % len(paths)]) if paths else warble(number)
        number += 1


def lines(manifest: Path) -> list[dict]:
    return [json.loads(line) for line in manifest.read_text(encoding="utf-8").splitlines()]


def listed(manifest: Path) -> list[dict]:
    """The short utterances of a shared set, if it is there."""
    if not manifest.is_file():
        return []
    return [line for line in lines(manifest) if 1.0 <= line["duration"] <= LONGEST][:20]


def read(path: Path) -> np.ndarray:
    samples, rate = soundfile.read(path, dtype="float32")
    return soxr.resample(samples, rate, RATE) if rate != RATE else samples


def warble(number: int) -> np.ndarray:
    time = np.arange(int((1.5 + 0.1 * (number % 10)) * RATE)) / RATE
    pitch = 200 + 40 * (number % 7) + 30 * np.sin(2 * np.pi * (2 + number % 3) * time)
    return (0.3 * np.sin(2 * np.pi * np.cumsum(pitch) / RATE)).astype(np.float32)


def check_losses(recipe: str, log: list[dict]) -> None:
    """A run's log names the loss that was minimised: over sampled classes, or over all."""
    trained = [line for line in log if "loss" in line]
    name, other = "sampled_nats_per_label", "transducer_nats_per_label"
    if not recipe.endswith("sampled"):
        name, other = other, name
    assert len(trained) == SMALL["training.steps"]
    assert all(line[name] > 0 and line["ctc_nats_per_label"] > 0 and other not in line for line in trained)
    assert all(line["eval_transducer_nats_per_label"] > 0 for line in log if "eval_loss" in line)


LIBRISPEECH = {  # part: utterances of its one chapter
    "train-clean-100": 8,
    "train-clean-360": 3,
    "train-other-500": 3,
    "dev-clean": 3,
    "test-clean": 3,
    "test-other": 2,
}
ENGLISH = ("A GREY HERON", "THE MILLER'S DAUGHTER", "OUR OLD LANTERN", "NO SUCH HARBOUR", "EVERY QUIET EVENING")
ENGLISH_ENDS = ("CAME HOME AGAIN", "STOOD BY THE WATER", "WAS NOT TO BE FOUND", "GREW DARK BEFORE US")


def make_librispeech(directory: Path) -> Path:
    """LibriSpeech/PART/SPEAKER/CHAPTER/SPEAKER-CHAPTER-NUMBER.flac and SPEAKER-CHAPTER.trans.txt, with its text files."""
    root = directory / "LibriSpeech"
    sound = clips()
    for order, (part, count) in enumerate(LIBRISPEECH.items()):
        speaker, chapter = 9000 + order, 700000 + order
        folder = root / part / str(speaker) / str(chapter)
        folder.mkdir(parents=True)
        lines = []
        for number in range(count):
            name = f"{speaker}-{chapter}-{number:04}"
            soundfile.write(folder / f"{name}.flac", next(sound), RATE)
            lines.append(f"{name} {ENGLISH[number % 5]} {ENGLISH_ENDS[(number + order) % 4]}\n")
        (folder / f"{speaker}-{chapter}.trans.txt").write_text("".join(lines))
    (root / "SPEAKERS.TXT").write_text("; made up\n9000 | F | train-clean-100 | 0.01 | Nobody\n")
    (root / "README.TXT").write_text("made up\n")
    return root


AISHELL = {"train": 6, "dev": 2, "test": 3}
MANDARIN = ("河边 的 小 船", "他 们 今天 读 书", "山 上 有 白 云", "请 打开 ｋ 歌 软件")


def make_aishell(directory: Path) -> Path:
    """data_aishell/wav/PART/SPEAKER/BAC009SPEAKERWNUMBER.wav and the transcripts of all parts in one file, words apart."""
    root = directory / "data_aishell"
    sound = clips()
    lines = []
    for order, (part, count) in enumerate(AISHELL.items()):
        for number in range(count):
            speaker = f"S9{order}{number % 2:02}"
            folder = root / "wav" / part / speaker
            folder.mkdir(parents=True, exist_ok=True)
            name = f"BAC009{speaker}W{number:04}"
            soundfile.write(folder / f"{name}.wav", next(sound), RATE, subtype="PCM_16")
            unseen = " 龘" if part == "test" and number == 0 else ""
            lines.append(f"{name} {MANDARIN[(number + order) % 4]}{unseen}\n")
    (root / "transcript").mkdir()
    (root / "transcript" / "aishell_transcript_v0.8.txt").write_text("".join(lines), encoding="utf-8")
    return root


CSJ = ("A90F0001", "A90M0002", "A01M0264", "A01M0097", "A01M0110", "A01F0001", "S00F0019", "S90F0003", "D90F0004")
PIECES = [  # of a talk: short units as they are written down, tags included, and how they are pronounced
    [("(F えー)", "(F エー)"), ("港", "ミナト"), ("の", "ノ"), ("灯り", "アカリ")],
    [("(D こ)", "(D コ)"), ("古い", "フルイ"), ("船", "フネ"), ("です", "デス<H>")],
    [("(A 二十;２０)", "ニジュー"), ("年", "ネン"), ("まえ", "(W マイ;マエ)"), ("んー", "ンー")],
    [("(R ×××)", "(R ×××)"), ("さん", "サン")],
    [("白い", "シロイ"), ("雲", "クモ")],
]
CSJ_TEXTS = ["えー港の灯りこ古い船です", "二十年まえん", "白い雲"]  # close pieces are one; names blanked out are left out


def make_csj(directory: Path, *, dvd: bool = False) -> Path:
    """Talks of made-up content with their transcripts in Shift-JIS: MORPH/SDB and WAV, or the layout of the DVDs."""
    sound = clips()
    for order, talk in enumerate(CSJ):
        volume = ("core", "noncore")[order % 2]
        wav = directory / (f"dvd{3 + order}/{talk}" if dvd else f"WAV/{volume}")
        sdb = directory / (f"dvd{3 + order}/{talk}" if dvd else f"MORPH/SDB/{volume}")
        samples, rows = talk_of(talk, sound)
        for folder in (wav, sdb):
            folder.mkdir(parents=True, exist_ok=True)
        for channel in ("-L", "-R") if talk.startswith("D") else ("",):
            soundfile.write(wav / f"{talk}{channel}.wav", samples, RATE, subtype="PCM_16")
        (sdb / f"{talk}.sdb").write_bytes("".join(row + ("\r\n" if dvd else "\n") for row in rows).encode("shift_jis"))
    (directory / "README.txt").write_text("made up\n")
    return directory


def talk_of(name: str, sound: Iterator[np.ndarray]) -> tuple[np.ndarray, list[str]]:
    """A recording, and a row for every short unit: the third column the talk, the fourth piece, time and channel."""
    samples, rows, start = [np.zeros(RATE, np.float32)], [], 1.0
    for number, piece in enumerate(PIECES, start=1):
        clip = next(sound)
        end = start + len(clip) / RATE
        for order, (surface, spoken) in enumerate(piece):
            time = f"{number:04} {start:09.3f}-{end:09.3f} L:-{number:03}-{order + 1:03}"
            plain = surface.strip("()").split(" ")[-1].split(";")[0]
            columns = ["短", f"{number:04}", name, time, plain, surface, "", "", "", plain, spoken, "名詞"]
            rows.append("\t".join(columns))
        pause = 0.2 if number == 1 else 0.8
        samples += [clip, np.zeros(round(pause * RATE), np.float32)]
        start = round(end + pause, 3)
    return np.concatenate(samples), rows
