"""The measuring process's end of a worker: start it, ask it, wait for it with patience, know how it died."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import IO, Any

NO_MEMORY_DEATHS = (-signal.SIGKILL, -signal.SIGABRT, -signal.SIGSEGV)  # with a limit on memory in force


class WorkerError(Exception):
    """A request that failed; `status` is what the row says."""

    def __init__(self, status: str, reason: str):
        super().__init__(f"{status}: {reason}")
        self.status, self.reason = status, reason


def worker_environment(threads: int, cache: Path, memory: bool) -> dict[str, str]:
    count = str(threads)
    environment = {
        **os.environ,
        "OMP_WAIT_POLICY": "PASSIVE",
        "NUMBA_CACHE_DIR": os.environ.get("NUMBA_CACHE_DIR") or str(cache / "numba"),
        **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), count),
    }
    if memory:  # every block of 64 KiB or more comes from the system and goes back to it
        environment.update(MALLOC_MMAP_THRESHOLD_="65536", MALLOC_TRIM_THRESHOLD_="65536")
    return environment


class WorkerProcess:
    def __init__(self, python: str, environment: dict[str, str]) -> None:
        self.stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            [python, "-m", "samplewise.bench.worker"], env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.stderr, start_new_session=True,
        )  # fmt: skip
        self.answers: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.answers.put(line)
        self.answers.put("")

    def ask(self, timeout: float, **request: Any) -> dict[str, Any]:
        """Send a request, wait for its answer; raise WorkerError with the status that a row then has."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            line = self.answers.get(timeout=timeout)
        except queue.Empty:
            self.close()
            raise WorkerError("too slow", f"{request['do']} took more than {timeout:.0f} s") from None
        except BrokenPipeError:
            line = ""
        if not line:
            raise self._death(request["do"])
        answer = json.loads(line)
        if "error" in answer:
            raise WorkerError(answer["error"], answer["message"])
        return answer

    def _death(self, doing: str) -> WorkerError:
        code, said = self.process.wait(), self.tail()
        if code in NO_MEMORY_DEATHS and (code == -signal.SIGKILL or "bad_alloc" in said or "memory" in said):
            return WorkerError("out of memory", f"the process ended by {signal.Signals(-code).name} in {doing}")
        return WorkerError("failed", f"exit status {code} in {doing}: {said or 'nothing said'}")

    def tail(self) -> str:
        """The last line that the worker wrote to its standard error."""
        self.stderr.seek(0)
        lines = [line for line in self.stderr.read().decode(errors="replace").splitlines() if line.strip()]
        return lines[-1].strip() if lines else ""

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.stderr):
            try:
                if pipe is not None:
                    pipe.close()
            except (BrokenPipeError, ValueError):
                continue

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()
