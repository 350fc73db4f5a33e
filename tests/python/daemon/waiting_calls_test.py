"""Tests a session's blocking calls, each of which runs on its own thread."""

from __future__ import annotations

import threading

import pytest

from sluice.native.waiting import Calls


def no_threads_left(thread):
    raise RuntimeError("can't start new thread")


# If the failed call counted as running, close() would leave the session open.
def test_a_session_closes_if_no_thread_can_be_started(monkeypatch):
    closed = []
    calls = Calls(closed.append)
    monkeypatch.setattr(threading.Thread, "start", no_threads_left)
    with pytest.raises(RuntimeError, match="can't start"):
        calls.interruptible(lambda: 1, lambda: None)
    calls.close(7)
    assert closed == [7]


def test_a_session_closes_after_its_last_running_call():
    closed, goes_on = [], threading.Event()
    calls = Calls(closed.append)

    def call():
        calls.close(7)
        assert not closed
        goes_on.set()
        return "answer"

    assert calls.interruptible(call, lambda: None) == "answer"
    assert goes_on.is_set()
    assert closed == [7]
