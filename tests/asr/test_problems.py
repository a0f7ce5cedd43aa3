"""Bad data is counted once, across processes, and told of at the end."""

from __future__ import annotations

import errno
import pickle

import pytest

from samplewise.asr.errors import UserError
from samplewise.asr.problems import BadData, BadDataError, BadDataLog, named


def test_counts_and_report():
    log = BadDataLog()
    for i in range(5):
        log.add(BadData(f"file {i}", "silent recording", f"{i} s"))
    log.add(BadData("file 0", "silent recording", "again"))
    log.add(BadData("file 9", "missing file"))
    assert log.counts() == {"silent recording": 5, "missing file": 1}
    report = log.report()
    assert "skipped 6 utterances" in report
    assert "5 x silent recording" in report and "file 0: 0 s" in report and "and 2 more" in report


def test_nothing_skipped_says_nothing():
    assert BadDataLog().report() == ""


def test_processes_share_a_file(tmp_path):
    path = tmp_path / "skipped.jsonl"
    BadDataLog("skip", path).add(BadData("a", "silent recording"))
    other = BadDataLog("skip", path)
    other.add(BadData("b", "missing file"))
    other.add(BadData("a", "silent recording"))
    with path.open("a") as file:
        file.write('{"key": "c", "rea')  # a process was killed while it wrote
    assert BadDataLog("skip", path).counts() == {"silent recording": 1, "missing file": 1}
    assert str(path) in other.report()


def test_raise_names_the_utterance():
    with pytest.raises(UserError, match="a: silent recording"):
        BadDataLog("raise").add(BadData("a", "silent recording"))


def test_the_error_crosses_processes():
    error = pickle.loads(pickle.dumps(BadDataError("a", "missing file", "b")))
    assert error.problem == BadData("a", "missing file", "b")


@pytest.mark.parametrize(("name", "raised"), [*((n, OSError) for n in ("ENOSPC", "EDQUOT", "EROFS")), ("EACCES", BadDataError)])
def test_no_utterance_is_to_blame_for_a_full_disk(name, raised):
    with pytest.raises(raised), named("a.wav"):
        raise OSError(getattr(errno, name), "")
