"""Change one line of the code at a time, as scripts/mutations/*.yaml say, and run the tests that should notice.

A change that every test lets pass, a survivor, is a line that may be wrong without anybody being told. Nothing here is changed:
the work is done in copies of the files that git knows or would add, below .pytest_cache, where compiled kernels stay for the
next time.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import active_children, get_context
from pathlib import Path
from queue import Queue

import pytest
import yaml
from filelock import FileLock, Timeout
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

ROOT = Path(__file__).resolve().parents[1]
LISTS = Path("scripts") / "mutations"
COPIES = Path(".pytest_cache") / "mutants"
FIELDS, OPTIONAL = {"name", "file", "find", "replace", "tests"}, {"only"}
FORKS = get_context("forkserver")  # one process imports what all tests need, which takes longer than most tests do
PRELOAD = ["torch", "transformers.trainer", "jiwer", "soundfile"]  # not numba, whose cache conftest.py places
CAUGHT, SURVIVED, TOO_LONG, BROKEN = "caught", "SURVIVED", "TOO LONG", "DID NOT RUN"
EPILOG = """\
examples:
  make mutants
      All of them, in the project's own environment: some seconds each, much longer where a change has kernels compiled anew.
  python scripts/mutants.py --only beam lattice
      Those whose names hold one of these words.
  python scripts/mutants.py --only beam-threshold --show
      And what pytest said.
  python scripts/mutants.py --list
      Names, files and changes; nothing is run.

an entry of scripts/mutations/*.yaml:
  - name: beam-threshold                  # unlike all others
    file: src/samplewise/asr/beam.py
    find: ordered[beam - 1]               # exactly once in the file
    replace: ordered[0]
    tests: [tests/asr/test_beam.py]       # files, or file::test, one of which must fail within the time limit
    only: lstm                            # of these tests the ones whose names hold this (pytest -k); may be left out

A survivor is mended by a test, not by taking the entry out. An entry whose text is no longer found is an error: say the line as
it is now, or take the entry out if there is no such line any more. Changes that make no difference do not belong in the list.

exit codes: 0 all were caught; 1 something survived, or was not done within the time limit; 2 the list is wrong, tests fail
without any change, or could not be run.
"""


class ListError(Exception):
    """Entries that do not apply; the text says which and what to do."""


@dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    find: str
    replace: str
    tests: tuple[str, ...]
    only: str = ""

    def __str__(self) -> str:
        return f"{self.name}  {self.file}: {self.find!r} -> {self.replace!r}"

    def change(self, root: Path) -> str:
        """The file's text with the change in it."""
        text = (root / self.file).read_text(encoding="utf-8")
        return text.replace(self.find, self.replace)


def read(root: Path) -> list[Mutant]:
    """The lists of the checkout at `root`.

    Raises:
        ListError: it is not a list of entries that apply.
    """
    mutants, wrong, names = [], [], set()
    files = sorted((root / LISTS).glob("*.yaml"))
    entries = [(path.name, n, e) for path in files for n, e in enumerate(yaml.safe_load(path.read_text(encoding="utf-8")), 1)]
    for file, number, entry in entries:
        if not isinstance(entry, dict) or not FIELDS <= entry.keys() <= FIELDS | OPTIONAL:
            wrong.append(f"entry {number} of {file}: it must have {', '.join(sorted(FIELDS))}, perhaps only, and nothing else")
            continue
        texts = (str(entry[name]) for name in ("name", "file", "find", "replace"))
        mutant = Mutant(*texts, tuple(entry["tests"]), entry.get("only", ""))
        mutants.append(mutant)
        if mutant.name in names:
            wrong.append(f"{mutant.name}: another entry has this name")
        names.add(mutant.name)
        if found := fault(root, mutant):
            wrong.append(f"{mutant.name}: {found}")
    if wrong:
        raise ListError("\n".join(wrong))
    return mutants


def fault(root: Path, mutant: Mutant) -> str | None:
    """Why an entry does not apply, if so."""
    if not (root / mutant.file).is_file():
        return f"there is no {mutant.file}"
    count = (root / mutant.file).read_text(encoding="utf-8").count(mutant.find)
    if count != 1:
        return f"its text is {count} times in {mutant.file}, not once; say the line as it is now: {mutant.find!r}"
    if mutant.find == mutant.replace:
        return "it changes nothing"
    try:
        compile(mutant.change(root), mutant.file, "exec")
    except SyntaxError as error:
        return f"with its change {mutant.file} is no Python: {error}"
    for test in mutant.tests:
        file, _, function = test.partition("::")
        if not (root / file).is_file():
            return f"there is no {file}"
        if function and f"def {function.partition('[')[0]}(" not in (root / file).read_text(encoding="utf-8"):
            return f"{file} has no {function}"
    return None if mutant.tests else "it names no tests"


def copy(root: Path, to: Path) -> None:
    """The files of the checkout that git knows or would add, as they are now, and what was compiled in this place before."""
    to.mkdir(parents=True, exist_ok=True)
    for old in to.iterdir():
        if old.name != COPIES.parts[0]:
            shutil.rmtree(old) if old.is_dir() else old.unlink()
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, check=True)
    for name in filter(None, listed.stdout.decode("utf-8", "surrogateescape").split("\0")):
        if (root / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, to / name)


def run_pytest(directory: Path, tests: Sequence[str], only: str, said: Path) -> None:
    """In a process of its own: the tests of a copy, whose code shadows what else is installed."""
    os.setsid()
    os.chdir(directory)
    for stream in (1, 2):
        os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
    os.environ |= {"PYTHONPATH": str(directory / "src"), "PYTHONDONTWRITEBYTECODE": "1"}  # of processes that tests start
    sys.dont_write_bytecode = True  # two versions of a file within a second look the same to its cache
    sys.path[:0] = [str(directory / "src"), str(directory)]
    options = ["-x", "-q", "--no-header", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    raise SystemExit(int(pytest.main([*options, "-k", only, *tests])))


def run_tests(directory: Path, tests: Sequence[str], only: str, limit: float) -> tuple[str, str]:
    """What became of the tests in a copy, and what pytest said. Stopped with all that they started after `limit` seconds."""
    said = directory.with_suffix(".txt")
    said.unlink(missing_ok=True)
    process = FORKS.Process(target=run_pytest, args=(directory, tests, only, said))
    process.start()
    try:
        process.join(limit)
    finally:
        late = process.is_alive()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.join()
    text = said.read_text(encoding="utf-8", errors="replace") if said.exists() else ""
    if late:
        return TOO_LONG, f"{text}\nstopped after {limit:.0f} s"
    return {0: SURVIVED, 1: CAUGHT}.get(process.exitcode, BROKEN), text


def try_one(root: Path, directory: Path, mutant: Mutant, limit: float) -> tuple[str, str]:
    """What becomes of one change in a copy, which is then as it was."""
    file = directory / mutant.file
    try:
        file.write_text(mutant.change(root), encoding="utf-8")
        return run_tests(directory, mutant.tests, mutant.only, limit)
    finally:
        shutil.copy2(root / mutant.file, file)


def try_all(root: Path, mutants: Sequence[Mutant], jobs: int, limit: float, console: Console, show: bool) -> dict[str, str]:
    """The result of every mutant, by name. Each job has a copy of its own.

    Raises:
        ListError: tests fail without any change.
    """
    free: Queue[Path] = Queue()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    (root / COPIES).mkdir(parents=True, exist_ok=True)
    with FileLock(root / COPIES / "lock", timeout=0), Progress(*columns, console=console) as progress:
        for job in range(jobs):
            copy(root, root / COPIES / str(job))
            free.put(root / COPIES / str(job))

        def all_of(doing: str, items: Sequence, expected: str, work: Callable) -> list[str]:
            bar = progress.add_task(doing, total=len(items))

            def one(item) -> str:
                directory, start = free.get(), time.monotonic()
                try:
                    result, said = work(directory, item)
                finally:
                    free.put(directory)
                progress.advance(bar)
                lines = [f"{result} ({time.monotonic() - start:.0f} s) {item}"] if result != expected or show else []
                lines += [said] if show or result not in (expected, SURVIVED) else []
                for line in lines:
                    progress.console.print(line, markup=False, highlight=False, soft_wrap=True)
                return result

            with ThreadPoolExecutor(jobs) as pool:
                try:
                    return list(pool.map(one, items))
                except BaseException:  # Ctrl-C: what has not begun does not begin
                    pool.shutdown(wait=False, cancel_futures=True)
                    for process in active_children():
                        process.kill()
                    raise

        # These compile kernels perhaps, so they have more time.
        tests = sorted({(test, mutant.only) for mutant in mutants for test in mutant.tests})
        found = all_of("without a change", tests, SURVIVED, lambda place, test: run_tests(place, test[:1], test[1], 3 * limit))
        if set(found) != {SURVIVED}:
            raise ListError("tests fail without any change, which must be mended first")
        found = all_of("changes", mutants, CAUGHT, lambda place, mutant: try_one(root, place, mutant, limit))
        return {mutant.name: result for mutant, result in zip(mutants, found, strict=True)}


def chosen(mutants: Sequence[Mutant], only: Sequence[str] | None) -> list[Mutant]:
    """Those whose names hold one of the words; an exact name stands for itself alone."""
    if only is None:
        return list(mutants)
    names = {mutant.name for mutant in mutants}
    for word in only:
        if not any(word in name for name in names):
            raise ListError(f"--only {word}: no name in {LISTS} holds this; --list says them")
    exact = [word for word in only if word in names]
    words = [word for word in only if word not in names]
    return [mutant for mutant in mutants if mutant.name in exact or any(word in mutant.name for word in words)]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="names, or parts of them (default: all)")
    parser.add_argument("--list", action="store_true", help="say what there is, and run nothing")
    parser.add_argument("--show", action="store_true", help="say what pytest said of each")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="changes tried at the same time (default: 2)")
    parser.add_argument("--limit", type=float, default=300, metavar="S", help="seconds for the tests of one (default: 300)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    options, console = parse(arguments), Console()
    try:
        mutants = chosen(read(root), options.only)
        if options.list:
            for mutant in mutants:
                print(mutant)
            return 0
        os.environ |= {"TRITON_INTERPRET": "1", "OMP_WAIT_POLICY": "PASSIVE"}  # before imports, as in tests/conftest.py
        FORKS.set_forkserver_preload(PRELOAD)
        results = try_all(root, mutants, max(1, options.jobs), options.limit, console, options.show)
    except (ListError, Timeout) as error:
        print("another run works on these copies" if isinstance(error, Timeout) else error, file=sys.stderr)
        return 2
    counts = {kind: sorted(name for name in results if results[name] == kind) for kind in (SURVIVED, TOO_LONG, BROKEN)}
    for kind, names in counts.items():
        if names:
            console.print(f"{kind}: {', '.join(names)}", markup=False, soft_wrap=True)
    console.print(f"{sum(result == CAUGHT for result in results.values())} of {len(results)} changes were caught")
    return 2 if counts[BROKEN] else 1 if counts[SURVIVED] or counts[TOO_LONG] else 0


if __name__ == "__main__":
    raise SystemExit(main())
