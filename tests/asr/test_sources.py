"""Where the digits come from: each place, in order, and what is said when one of them is not what it should be."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import tarfile
import urllib.error

import pytest
import soundfile

from samplewise.asr import sources
from samplewise.asr.corpus import WORDS, Recording
from samplewise.asr.errors import UserError, WriteError
from samplewise.asr.problems import BadDataLog

from .made import RATE, tone


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """No cache, no shared data, no network, and eSpeak replaced by one recording."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sources, "shared_directories", lambda: [tmp_path / "shared"])
    monkeypatch.setattr(sources.urllib.request, "urlopen", no_network)
    spoken = [Recording(tone(0, 0, 0), 0, "espeak", "test", "0_espeak_0")]
    monkeypatch.setattr(sources, "synthesise_digits", lambda rate: spoken)
    return tmp_path


def no_network(url, timeout):
    assert timeout > 0
    raise urllib.error.URLError("no route to host")


def served(content: bytes, length: int | None = None):
    """A stand-in for urlopen that answers with `content`."""

    class Answer(io.BytesIO):
        def __init__(self) -> None:
            super().__init__(content)
            self.headers = {"Content-Length": str(len(content) if length is None else length)}

    return lambda url, timeout: Answer()


def archive(takes: int = sources.TAKES, speakers: int = sources.SPEAKERS, extra=()) -> bytes:
    """A tar.gz as GitHub gives it, every recording the same short sound."""
    sound = io.BytesIO()
    soundfile.write(sound, tone(0, 0, 0, seconds=0.02), RATE, format="WAV")
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz", compresslevel=1) as tar:
        names = [
            f"fsdd-1.0.10/recordings/{digit}_{'abcdefgh'[speaker]}_{take}.wav"
            for digit in range(10)
            for speaker in range(speakers)
            for take in range(takes)
        ]
        for name in ["fsdd-1.0.10/README.md", *names, *extra]:
            member = tarfile.TarInfo(name)
            member.size = len(sound.getvalue())
            tar.addfile(member, io.BytesIO(sound.getvalue()))
    return content.getvalue()


def find(said, data=None):
    return sources.find_digits(data, RATE, BadDataLog(), said)


def test_a_given_directory_is_used(digits_directory, nowhere, said):
    found = find(said, str(digits_directory))
    assert (found.kind, found.where, len(found.recordings)) == ("fsdd", str(digits_directory), 160)
    assert "the whole data set has 3000" in said.text
    assert {r.split for r in found.recordings if r.key.endswith("_4.wav")} == {"test"}
    assert {r.split for r in found.recordings if r.key.endswith("_5.wav")} == {"train"}


def test_the_cache_comes_before_the_shared_data(digits_directory, nowhere, said):
    shutil.copytree(digits_directory, nowhere / "shared")
    assert find(said).where == str(nowhere / "shared")
    shutil.copytree(digits_directory, nowhere / "cache" / "samplewise" / "fsdd")
    assert find(said).where == str(nowhere / "cache" / "samplewise" / "fsdd")


def test_the_same_recordings_have_the_same_fingerprint_anywhere(digits_directory, nowhere, said):
    copy = nowhere / "copy"
    copy.mkdir()
    lines = []
    for path in (digits_directory / "recordings").iterdir():
        digit, speaker, take = path.stem.split("_")
        samples, rate = soundfile.read(path)
        soundfile.write(copy / f"{path.stem}.flac", samples, rate)
        split = "test" if int(take) < 5 else "train"
        lines.append({"audio": f"{path.stem}.flac", "text": WORDS[int(digit)], "speaker": speaker, "split": split})
    (copy / "manifest.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert find(said, str(copy)).fingerprint == find(said, str(digits_directory)).fingerprint


def test_a_given_directory_that_is_wrong_is_an_error(nowhere, digits_directory, said):
    with pytest.raises(UserError, match="no directory"):
        find(said, str(nowhere / "absent"))
    (nowhere / "empty").mkdir()
    with pytest.raises(UserError, match=r"neither a manifest\.jsonl nor files such as"):
        find(said, str(nowhere / "empty"))
    part = nowhere / "part"
    shutil.copytree(digits_directory, part)
    for path in (part / "recordings").glob("7_bob_*"):
        path.unlink()
    with pytest.raises(UserError, match="bob has none of seven in the train split"):
        find(said, str(part))


def test_a_manifest_of_something_else_is_an_error(nowhere, said):
    (nowhere / "other").mkdir()
    (nowhere / "other" / "manifest.jsonl").write_text('{"audio": "a.wav", "text": "good morning"}\n')
    with pytest.raises(UserError, match=r"1 x not a recording of one digit\n +manifest\.jsonl:1"):
        find(said, str(nowhere / "other"))


def test_one_odd_line_of_a_manifest_is_named_and_the_rest_goes_on(nowhere, digits_directory, said):
    folder = nowhere / "other"
    shutil.copytree(digits_directory, folder)
    lines = []
    for path in sorted((folder / "recordings").glob("*.wav")):
        digit, speaker, take = path.stem.split("_")
        split = "test" if int(take) < 5 else "train"
        lines.append(
            {"audio": f"recordings/{path.name}", "text": sources.WORDS[int(digit)], "speaker": speaker, "split": split}
        )
    odd = [
        {**lines[0], "text": "ten"},
        {**lines[0], "text": ["one"]},
        {**lines[0], "split": None},
        {**lines[0], "audio": "a" * 300},
    ]
    content = "\n".join(map(json.dumps, [*odd[:2], *lines, *odd[2:]])) + "\n{"
    (folder / "manifest.jsonl").write_text("\ufeff" + content, encoding="utf-8")
    bad = BadDataLog()
    found = sources.find_digits(str(folder), RATE, bad, said)
    assert len(found.recordings) == len(lines)
    assert bad.counts() == {"not a recording of one digit": 3, "not a line of JSON": 1, "unreadable recording": 1}


def test_a_download_is_unpacked_into_the_cache_and_found_again(nowhere, said, monkeypatch):
    monkeypatch.setattr(sources, "TAKES", 6)  # reading 3000 files takes a while
    monkeypatch.setattr(sources, "COMPLETE", 360)
    extra = ["fsdd-1.0.10/recordings/../../../evil.wav", "/evil/0_evil_0.wav", "fsdd-1.0.10/recordings/notes.txt"]
    monkeypatch.setattr(sources.urllib.request, "urlopen", served(archive(takes=6, extra=extra)))
    found = find(said)
    cache = nowhere / "cache" / "samplewise"
    assert (found.kind, len(found.recordings)) == ("fsdd", 360)
    assert [path.name for path in cache.iterdir()] == ["fsdd"]
    assert len(list(cache.rglob("*.*"))) == 360
    assert not list(nowhere.rglob("*evil*"))
    monkeypatch.setattr(sources.urllib.request, "urlopen", no_network)
    assert find(said).where == str(cache / "fsdd")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda: no_network, "no route to host"),
        (lambda: served(b"<html>log in first</html>"), "download of"),
        (lambda: served(archive(takes=2)[:-200]), "download of"),
        (lambda: served(archive(takes=1), length=10**6), "of 1000000 bytes arrived"),
        (lambda: served(archive(takes=3)), "180 recordings of 60 speaker-digit pairs; expected 3000"),
        (lambda: served(archive(speakers=1)), "500 recordings of 10 speaker-digit pairs"),
    ],
    ids=["offline", "no archive", "cut short", "fewer bytes", "fewer takes", "fewer speakers"],
)
def test_a_failed_download_says_why_and_what_to_do(nowhere, said, monkeypatch, answer, reason):
    monkeypatch.setattr(sources.urllib.request, "urlopen", answer())
    cache = sources.cache_directory()
    with pytest.raises(UserError) as error:
        sources.download(cache, said)
    assert reason in str(error.value) and "--data" in str(error.value)
    assert not list(cache.iterdir()), "a failed download leaves nothing in the cache"


def test_a_disk_without_room_for_the_download_is_told(nowhere, said, monkeypatch):
    def full(url, path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(sources, "fetch", full)
    with pytest.raises(WriteError, match=r"cannot write .*fsdd: the disk is full: .* are free in .*Make room"):
        sources.download(sources.cache_directory(), said)


def test_without_a_network_speech_is_synthetic_and_says_so(nowhere, said):
    found = find(said)
    assert found.kind == "synthetic"
    assert "NO REAL RECORDINGS" in said.text and "no route to host" in said.text
    assert "SYNTHETIC SPEECH" in said.text and "--data" in said.text


def test_synthetic_speech_can_be_asked_for(nowhere, said, digits_directory):
    shutil.copytree(digits_directory, nowhere / "shared")
    assert find(said, "synthetic").kind == "synthetic"
    assert "NO REAL RECORDINGS" not in said.text


def test_an_unusable_recording_is_left_out_and_counted(digits_directory, nowhere, said):
    copy = nowhere / "copy"
    shutil.copytree(digits_directory, copy)
    (copy / "recordings" / "3_ann_6.wav").write_bytes(b"nothing")
    bad = BadDataLog()
    assert len(sources.find_digits(str(copy), RATE, bad, said).recordings) == 159
    assert "3_ann_6.wav" in bad.report()
    with pytest.raises(UserError, match="3_ann_6"):
        sources.find_digits(str(copy), RATE, BadDataLog("raise"), said)


def test_the_real_recordings(shared_fsdd, said):
    found = find(said, str(shared_fsdd))
    assert len(found.recordings) == sources.COMPLETE
    assert sum(r.split == "test" for r in found.recordings) == 300
    assert len({r.speaker for r in found.recordings}) == sources.SPEAKERS
