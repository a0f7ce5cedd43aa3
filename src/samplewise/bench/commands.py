"""What the subcommands of `samplewise bench` do."""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import psutil
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from samplewise.bench import environments, joints, machine
from samplewise.bench.cases import Case, suite
from samplewise.bench.errors import BenchError
from samplewise.bench.names import Method
from samplewise.bench.peers.registry import BY_METHOD, PEERS
from samplewise.bench.records import Row, append_row, done_keys, key_of, read_rows
from samplewise.bench.runner import CaseRun, Settings
from samplewise.errors import TransducerError
from samplewise.planning.budget import parse_budget, show_bytes

FREE_SHARE = 0.85  # of the free memory that a step may take

console = Console(highlight=False, soft_wrap=True, stderr=True)


@dataclass(frozen=True)
class Todo:
    """A case, and those of its methods that have no row yet."""

    case: Case
    methods: tuple[str, ...]


def run(arguments: argparse.Namespace) -> int:
    settings = Settings(
        threads=arguments.threads or machine.default_threads(), rounds=max(1, arguments.rounds),
        budget=size("--budget", arguments.budget), timeout=arguments.timeout,
        limit=size("--limit", arguments.limit) or int(FREE_SHARE * psutil.virtual_memory().available),
    )  # fmt: skip
    if arguments.joints is not None:
        os.environ[joints.DIRECTORY] = str(Path(arguments.joints).resolve())  # for the workers, too
    output, commit = Path(arguments.output), machine.code_state()
    known = read_rows([output]) if output.exists() and not arguments.fresh else []
    todos = list(plan(arguments, settings, commit, done_keys(known, arguments.busy)))
    if arguments.dry_run:
        for todo in todos:
            print(f"{todo.case.name}: {' '.join(todo.methods)}")
        return 0
    if not todos:
        console.print(f"everything is in {output} already; --fresh measures again")
        return 0
    total = sum(len(todo.methods) for todo in todos)
    console.print(f"{len(todos)} cases, {total} methods, {settings.rounds} rounds of each in turns; rows go to {output}")
    look_at_machine()
    with ended_in_order(), progress_bar(total) as (say, advance), tempfile.TemporaryDirectory() as scratch:
        for todo in todos:

            def sink(row: Row) -> None:
                row["busy"] = row["busy"] or arguments.busy
                append_row(output, row)
                advance(row)

            CaseRun(todo.case, settings, commit, Path(scratch), sink, say).run(todo.methods)
    console.print(f"{output}: `samplewise bench report {output}` makes tables and plots of it")
    return 0


def size(option: str, text: str | None) -> int | None:
    try:
        return parse_budget(text)
    except TransducerError:
        raise BenchError(f'{option} is {text!r}; write bytes, or text such as "64MiB"') from None


def plan(arguments: argparse.Namespace, settings: Settings, commit: str, done: set[str]) -> Iterator[Todo]:
    seen = set()
    for case in (case for name in arguments.suite for case in suite(name)):
        if case.name in seen or not any(fnmatch(case.name, pattern) for pattern in arguments.case):
            continue
        seen.add(case.name)
        methods = chosen(arguments.methods or case.methods, arguments.peers)
        missing = tuple(m for m in methods if key_of(row_of(case, m, settings, commit)) not in done)
        if missing:
            yield Todo(case, missing)
    if not seen:
        raise BenchError(f"no case of {', '.join(arguments.suite)} is {' or '.join(arguments.case)}")


def row_of(case: Case, method: str, settings: Settings, commit: str) -> Row:
    """As much of a row as its key needs."""
    return {
        "commit": commit, "case": case.name, "sizes": case.sizes(), "method": method, "threads": settings.threads,
        "budget": settings.budget,
    }  # fmt: skip


def chosen(methods: Sequence[str], peers: Sequence[str] | None) -> list[str]:
    unknown = [name for name in peers or () if name not in PEERS]
    if unknown:
        raise BenchError(f"unknown peer {unknown[0]!r}; there are {', '.join(PEERS)}")
    bases = {method: Method.parse(method).base for method in methods}
    return [m for m, base in bases.items() if peers is None or base not in BY_METHOD or BY_METHOD[base].name in peers]


def look_at_machine() -> None:
    others = machine.others_now()
    load = " ".join(f"{value:.2f}" for value in machine.load_average())
    console.print(f"{machine.cpu_model()}; load {load}; other processes use {others:.2f} cores")
    if others > machine.MOST_BY_OTHERS:
        console.print(
            f"that is more than {machine.MOST_BY_OTHERS}: rows whose time others disturb are marked, and measured again by the"
            " next run of this command, unless it has --busy"
        )


@contextmanager
def ended_in_order() -> Iterator[None]:
    """Let SIGTERM do what Ctrl-C does, so that no worker outlives the run."""

    def stop(*unused: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def progress_bar(total: int) -> Iterator[tuple[Callable[[str], None], Callable[[Row], None]]]:
    """Functions that say what is being done, and that one row is there."""
    columns = (BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=total)

        def advance(row: Row) -> None:
            progress.console.print(line_of(row))
            progress.advance(task)

        yield (lambda text: progress.update(task, description=text)), advance


def line_of(row: Row) -> str:
    """A row for the reader who watches."""
    parts = []
    if row["seconds"]:
        parts.append(f"{row['seconds']['median']:.4g} s")
    if row["ratio"]:
        parts.append(f"{row['ratio']['median']:.3g} of gemm3")
    if row["memory"]:
        parts.append(show_bytes(row["memory"]["workspace"]))
    if row["check"]:
        parts.append(f"errors {row['check']['loss']:.0e} {row['check']['gradient'] or 0.0:.0e}")
    figures = ", ".join(parts) if row["status"] == "ok" else row["reason"]
    mark = " (busy)" if row["busy"] else ""
    return f"{row['case']:16s} {row['method']:22s} {row['status']}{mark}  {figures}"


def peers(arguments: argparse.Namespace) -> int:
    for peer in PEERS.values():
        place = environments.locate(peer)
        found = place if isinstance(place, str) else " ".join(f"{key} {value}" for key, value in place.versions.items())
        print(f"{peer.name:22s} {found}")
    return 0


def install(arguments: argparse.Namespace) -> int:
    environments.install(arguments.peer, arguments.path, console.print)
    return 0


def export(arguments: argparse.Namespace) -> int:
    from samplewise.asr.errors import UserError
    from samplewise.bench.export import export_run

    try:
        for path in export_run(
            Path(arguments.run_directory), Path(arguments.output), arguments.data, arguments.labels, arguments.utterances
        ):
            print(path)
    except UserError as error:
        raise BenchError(str(error)) from None
    return 0


def report(arguments: argparse.Namespace) -> int:
    from samplewise.bench.report.write import write_report

    rows = read_rows(Path(file) for file in arguments.files)
    for path in write_report(rows, Path(arguments.output), [Path(file) for file in arguments.insert]):
        print(path)
    return 0


ACTIONS: dict[str, Callable[[argparse.Namespace], int]] = {
    "run": run, "export": export, "report": report, "peers": peers, "install": install,
}  # fmt: skip
