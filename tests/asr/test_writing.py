"""Files are written whole or not at all; what stood in the way is told, with its numbers."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from pathlib import Path

import pytest

from samplewise import strict_json
from samplewise.asr import writing
from samplewise.asr.checkpoint import read_json
from samplewise.asr.errors import UserError, WriteError
from samplewise.asr.problems import BadData, BadDataLog
from samplewise.asr.writing import append_line, make_directory, read_json_lines, saving, write_bytes, write_json


@pytest.fixture
def tiny_disk(tmp_path):
    """A disk of 16 KiB, where this user may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(place)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no mounts for this user")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_is_told_with_what_is_missing_and_loses_nothing(tiny_disk):
    path = tiny_disk / "a.json"
    write_json(path, {"a": 1})
    with pytest.raises(WriteError, match=r"a\.json: the disk is full: 39\.1 KiB are needed, .* are free in .*Make room"):
        write_bytes(path, b"x" * 40_000)
    assert read_json(path) == {"a": 1}
    assert [each.name for each in tiny_disk.iterdir()] == ["a.json"], "what was begun does not fill the disk"
    (tiny_disk / "ballast").write_bytes(b"x" * (12 << 10))
    lines = tiny_disk / "lines.jsonl"
    with pytest.raises(WriteError, match=r"lines\.jsonl: the disk is full: 5\.\d KiB are needed, 0 B are free"):
        append_line(lines, {"text": "x" * 5300})
    (tiny_disk / "ballast").unlink()
    append_line(lines, {"text": "y"})
    assert list(read_json_lines(lines)) == [{"text": "y"}]


def test_what_has_no_room_is_not_begun(tiny_disk):
    writing.need(tiny_disk / "small", 1000)
    with pytest.raises(WriteError, match=r"checkpoint-7: the disk is full: 1\.0 MiB are needed, 16\.0 KiB are free"):
        writing.need(tiny_disk / "checkpoint-7", 1 << 20)


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.ENOSPC, r"the disk is full: 5 B are needed, .* are free in .*Make room"),
        (errno.EDQUOT, r"the quota is used up: 5 B are needed.*Make room"),
        (errno.EROFS, "Read-only file system.*Make it writable, or choose another place"),
        (errno.EACCES, "Permission denied.*Make it writable"),
        (errno.EIO, "Input/output error.*what was saved before is whole"),
    ],
)
def test_every_reason_names_the_file_and_the_way_on(tmp_path, monkeypatch, number, reason):
    def refuse(self, content):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "write_bytes", refuse)
    with pytest.raises(WriteError, match=rf"cannot write .*a\.bin: {reason}"):
        write_bytes(tmp_path / "a.bin", b"12345")
    assert not list(tmp_path.iterdir())


def test_a_place_that_is_none_is_told(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(WriteError, match=r"cannot write .*runs: Not a directory"):
        make_directory(tmp_path / "file" / "runs")
    with pytest.raises(WriteError, match="cannot write"):
        append_line(tmp_path / "none" / "log.jsonl", {})


def test_a_writer_that_does_not_say_why_is_seen_through(tmp_path, monkeypatch):
    """torch.save and safetensors raise errors without a number."""
    unsaid = RuntimeError("unexpected pos 64 vs 0\nand more")
    with (
        pytest.raises(WriteError, match=r"cannot write .*: unexpected pos 64 vs 0\. "),
        saving(tmp_path / "a", 1, (RuntimeError,)),
    ):
        raise unsaid
    monkeypatch.setattr(writing, "free_bytes", lambda path: 10)
    full = "disk is full: 11 B are needed, 10 B are"
    with pytest.raises(WriteError, match=full), saving(tmp_path / "a", 11, (RuntimeError,)):
        raise unsaid


def test_json_is_written_whole(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert read_json(path) == {"a": 1}


def test_json_holds_no_nan_and_every_text():
    values = {"a": [float("nan"), (float("-inf"), 1.5)], "b": "ö\ud800"}
    text = strict_json.text(values, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()
    assert "ö" in text and json.loads(text) == {"a": [None, [None, 1.5]], "b": "ö\ud800"}


def test_a_line_that_was_cut_short_costs_no_other(tmp_path):
    path = tmp_path / "lines.jsonl"
    append_line(path, {"n": 1, "text": "a\u2028b"})
    with path.open("a") as file:
        file.write('{"n": 2, "te')
    append_line(path, {"n": 3})
    assert [line["n"] for line in read_json_lines(path)] == [1, 3]
    path.write_text("n: 1\n")
    assert list(read_json_lines(path, leave_out="broken")) == []
    with pytest.raises(ValueError, match="line 1: not JSON"):
        list(read_json_lines(path))


def test_bad_data_are_counted_after_a_kill(tmp_path):
    path = tmp_path / "skipped.jsonl"
    BadDataLog("skip", path).add(BadData("a", "silent recording"))
    with path.open("a") as file:
        file.write('{"key": "b", "rea')
    BadDataLog("skip", path).add(BadData("c", "silent recording"))
    assert BadDataLog("skip", path).counts() == {"silent recording": 2}


def test_a_file_that_cannot_be_read_is_not_called_absent(tmp_path, monkeypatch):
    def fail(self, **options):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with pytest.raises(UserError, match=r"no run\.json in"):
        read_json(tmp_path / "run.json")
    monkeypatch.setattr(Path, "read_text", fail)
    with pytest.raises(UserError, match=r"cannot read .*run\.json: Input/output error"):
        read_json(tmp_path / "run.json")
