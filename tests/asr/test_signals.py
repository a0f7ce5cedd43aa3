"""Signals as requests: the first is remembered, a second does what it did before."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from samplewise.asr.signals import FirstSignal, Terminated, terminated

HUP = getattr(signal, "SIGHUP", None)
LINE = "{}: as you wish"


@pytest.fixture
def heard():
    """Numbers of the signals that reach the handlers from before."""
    numbers: list[int] = []
    kinds = [signal.SIGINT, signal.SIGTERM, *([HUP] if HUP else [])]
    before = {number: signal.signal(number, lambda number, frame: numbers.append(number)) for number in kinds}
    yield numbers
    for number, handler in before.items():
        signal.signal(number, handler)


def test_the_first_is_remembered_and_the_second_obeyed(heard):
    told: list[str] = []
    with FirstSignal((signal.SIGINT, signal.SIGTERM), told.append, LINE) as caught:
        assert caught.received == 0
        signal.raise_signal(signal.SIGTERM)
        assert (caught.received, heard, told) == (signal.SIGTERM, [], ["SIGTERM: as you wish"])
        signal.raise_signal(signal.SIGINT)
        assert (caught.received, heard) == (signal.SIGTERM, [signal.SIGINT])
    signal.raise_signal(signal.SIGTERM)
    assert heard == [signal.SIGINT, signal.SIGTERM]


@pytest.mark.skipif(HUP is None, reason="hang-ups are signals of Unix")
def test_a_hang_up_that_is_ignored_stays_so_and_an_interrupt_does_not(heard):
    """nohup, and a job that a script started in the background."""
    for number in (HUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    with FirstSignal((signal.SIGINT, HUP), lambda line: None, LINE) as caught:
        signal.raise_signal(HUP)
        assert caught.received == 0
        signal.raise_signal(signal.SIGINT)
        assert caught.received == signal.SIGINT
    assert heard == []


def test_nobody_to_tell(heard):
    def gone(line: str) -> None:
        raise BrokenPipeError

    with FirstSignal((signal.SIGINT,), gone, LINE) as caught:
        signal.raise_signal(signal.SIGINT)
    assert caught.received == signal.SIGINT


def test_another_thread_catches_nothing(heard):
    def enter() -> None:
        with FirstSignal((signal.SIGINT,), lambda line: None, LINE) as caught:
            found.append(caught.previous)

    found: list[dict] = []
    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert found == [{}]


def test_a_termination_unwinds_as_ctrl_c_does(heard):
    with pytest.raises(KeyboardInterrupt) as error, terminated():
        signal.raise_signal(signal.SIGTERM)
    assert isinstance(error.value, Terminated)
    signal.raise_signal(signal.SIGTERM)
    assert heard == [signal.SIGTERM], "afterwards it does what it did before"


def test_a_worker_that_its_parent_terminates_unwinds_nothing(monkeypatch, heard):
    with terminated():
        monkeypatch.setattr(os, "getpid", lambda: -1)
        signal.raise_signal(signal.SIGTERM)


def test_the_first_is_a_request_within_what_unwinds(heard):
    with terminated(), FirstSignal((signal.SIGTERM,), lambda line: None, LINE) as caught:
        signal.raise_signal(signal.SIGTERM)
        assert caught.received == signal.SIGTERM
        with pytest.raises(Terminated):
            signal.raise_signal(signal.SIGTERM)
