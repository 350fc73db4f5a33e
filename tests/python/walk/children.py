"""Runs each name in a forked child, so that a crash or a hang affects only one
row."""

from __future__ import annotations

import dataclasses
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator

from .judge import FAILED, Row


@dataclasses.dataclass
class _Child:
    name: str
    pid: int
    pipe: int  # the child writes its row here
    deadline: float
    text: bytes = b""


def _start(name: str, judge: Callable[[str], Row], limit_s: float) -> _Child:
    read, write = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        os.close(write)
        return _Child(name, pid, read, time.monotonic() + limit_s)
    try:
        os.close(read)
        # The parent handles Ctrl-C: it ends the child and reports once.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _silence()
        row = json.dumps(dataclasses.asdict(judge(name)))
        with os.fdopen(write, "w") as out:
            out.write(row)
        code = 0
    except BaseException:
        code = 1
    finally:
        os._exit(code)  # without the parent's exit handlers


def _silence() -> None:
    """Discards what models print while they run."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    os.close(nothing)


def _end(child: _Child, kill: bool) -> int:
    if kill:
        os.kill(child.pid, signal.SIGKILL)
    os.close(child.pipe)
    return os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])


def _row(child: _Child, code: int, blank: Callable[[str], Row]) -> Row:
    if code == 0 and child.text:
        return Row(**json.loads(child.text))
    row = blank(child.name)
    row.verdict = FAILED
    row.reason = (
        f"its process ended by signal {-code}" if code < 0
        else f"its process ended with status {code} and no row"
    )
    return row


def rows(
    names: list[str],
    judge: Callable[[str], Row],
    blank: Callable[[str], Row],
    *,
    jobs: int,
    limit_s: float,
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[Row]:
    """Yields the row of each name when its child has ended. At most `jobs`
    children run at a time.

    A child that takes longer than `limit_s` is killed. Raises
    KeyboardInterrupt when `stopped()`. Kills all children if the iteration ends
    early.
    """
    waiting, running = list(names), {}
    try:
        while waiting or running:
            if stopped():
                raise KeyboardInterrupt
            while waiting and len(running) < jobs:
                child = _start(waiting.pop(0), judge, limit_s)
                running[child.pipe] = child
            yield from _collect(running, blank, limit_s)
    finally:
        for child in running.values():
            _end(child, kill=True)


def _collect(
    running: dict[int, _Child], blank: Callable[[str], Row], limit_s: float
) -> Iterator[Row]:
    """Waits a little for the children in `running`; removes the ended ones."""
    ready, _, _ = select.select(list(running), [], [], 0.2)
    for pipe in ready:
        child = running[pipe]
        text = os.read(pipe, 1 << 16)
        child.text += text
        if not text:
            del running[pipe]
            yield _row(child, _end(child, kill=False), blank)
    for child in list(running.values()):
        if time.monotonic() > child.deadline:
            del running[child.pipe]
            _end(child, kill=True)
            row = blank(child.name)
            row.reason = f"not done after {limit_s:g} s"
            row.seconds = limit_s
            yield row
