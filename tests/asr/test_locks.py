"""Locks go with the process that holds them."""

from __future__ import annotations

import subprocess
import sys

from samplewise.asr import locks
from samplewise.asr.locks import FileLock, hold, is_held, take_lock

HOLD = (
    "import sys, filelock; lock = filelock.FileLock(sys.argv[1]); lock.acquire(); print('held', flush=True); sys.stdin.read()"
)


def test_a_lock_goes_with_its_process(tmp_path):
    path = tmp_path / "a.lock"
    assert not is_held(path) and not path.exists(), "to look is not to make"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None and process.stdout.readline() == b"held\n"
        assert is_held(path) and take_lock(path) is None
        with hold(path) as held:
            assert not held
        process.kill()
    assert not is_held(path)
    with hold(path) as held:
        assert held and is_held(path)
    assert not is_held(path)


def test_a_file_system_without_locks_keeps_nobody_out(tmp_path, monkeypatch):
    def refuse(self):
        raise NotImplementedError

    monkeypatch.setattr(locks.FileLock, "acquire", refuse)
    (tmp_path / "a.lock").touch()
    assert isinstance(take_lock(tmp_path / "a.lock"), FileLock) and not is_held(tmp_path / "a.lock")
