"""Stopping in order: the first signal is a request, a second one is obeyed at once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any


class Terminated(KeyboardInterrupt):
    """SIGTERM."""


@contextlib.contextmanager
def terminated() -> Iterator[None]:
    """Within `with`, SIGTERM unwinds the main thread as Ctrl-C does, so that files and locks are left in order."""
    process = os.getpid()

    def unwind(number: int, frame: FrameType | None) -> None:
        if os.getpid() == process:  # and not a data-loader worker, forked with this handler
            raise Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, unwind)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class FirstSignal:
    """Within `with`, remembers and tells the first of some signals; from then on they do again what they did before.

    A hang-up that is ignored, as nohup wants it, stays so; Ctrl-C does not, which scripts let their background jobs ignore: who
    sends it to such a job means it. In another thread than the main one nothing is caught: Python allows no handlers there.

    Args:
        numbers: of the signals.
        tell: takes a line with the signal's name in place of `{}`.
        line: what is told.

    Attributes:
        received: the signal's number, 0 as long as there was none.
    """

    def __init__(self, numbers: tuple[int, ...], tell: Callable[[str], None], line: str):
        self.numbers = numbers
        self.tell = tell
        self.line = line
        self.received = 0
        self.previous: dict[int, Any] = {}
        self.process = os.getpid()

    def __enter__(self) -> FirstSignal:
        if threading.current_thread() is threading.main_thread():
            for number in self.numbers:
                if number in (signal.SIGINT, signal.SIGTERM) or signal.getsignal(number) != signal.SIG_IGN:
                    self.previous[number] = signal.signal(number, self.receive)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)

    def receive(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self.process:  # a data-loader worker, forked with this handler: it is told by its parent
            return
        self.received = number
        self.__exit__()
        with contextlib.suppress(OSError):  # a terminal that has gone
            self.tell(self.line.format(signal.Signals(number).name))
