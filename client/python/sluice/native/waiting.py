"""Makes waiting calls of the library interruptible and reports long waits."""
from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from sluice.native.daemon import find_programs

T = TypeVar("T")
SILENT_S = 2.0  # a longer wait is reported
_ASK_S = 2.0  # timeout of the status query for that report


class Calls:
    """Runs the waiting calls of one session, each on a thread of its own:
    Python handles Ctrl-C only between two lines of Python. An interrupt ends
    the caller's wait, not the call. The session must not end during a call, so
    a close takes effect when the last call returns. Thread safety: safe."""

    def __init__(self, close: Callable[[int], None]) -> None:
        self._close = close
        self._lock = threading.Lock()
        self._running = 0
        self._closing = 0  # the session, if it is to end after the last call
        self.on_event: Any = None  # kept alive: called until the session's end

    def interruptible(self, call: Callable[[], T], say: Callable[[], object]
                      ) -> T:
        """Runs `call` on a thread; returns its result or raises its exception.
        Calls `say` if `call` takes longer than SILENT_S."""
        answer: list[T] = []
        raised: list[BaseException] = []
        over = threading.Event()

        def run() -> None:
            try:
                answer.append(call())
            except BaseException as error:
                raised.append(error)
            finally:
                self._end()
                over.set()

        with self._lock:
            self._running += 1
        thread = threading.Thread(target=run, name="sluice waits", daemon=True)
        try:
            thread.start()
        except Exception:  # no thread has started that would call `_end`
            self._end()
            raise
        if not over.wait(SILENT_S):
            say()
        over.wait()
        if raised:
            raise raised[0]
        return answer[0]

    def close(self, session: int) -> None:
        with self._lock:
            if self._running:
                self._closing = session
                return
        self._close(session)

    def _end(self) -> None:
        with self._lock:
            self._running -= 1
            session = 0 if self._running else self._closing
        if session:
            self._close(session)


def waits_for(socket: str, job: str, world: int) -> str:
    """Describes what a `plan` call waits for; "" if that is not known."""
    program = find_programs().sluicectl
    if program is None:
        return ""
    try:
        told = subprocess.run(
            [program, "--socket", socket, "status", "--json"], timeout=_ASK_S,
            capture_output=True, check=True).stdout
        return _line(json.loads(told), job, world)
    except (OSError, ValueError, LookupError, subprocess.SubprocessError):
        return ""


def _line(status: Mapping[str, Any], job: str, world: int) -> str:
    [planning] = [p for p in status["planning"] if p["job"] == job]
    if planning["state"] == "collecting":
        attached = {r["rank"] for j in status["jobs"] if j["name"] == job
                    for r in j["ranks"]}
        # Which ranks are on other nodes is not known here.
        missing = [str(r) for r in range(world) if r not in attached] if (
            planning["ranks_wanted"] == world) else []
        return (f"{planning['ranks']} of {planning['ranks_wanted']} ranks of "
                f"the job on this node have asked" + (
                    f"; not attached: {', '.join(missing)}" if missing else
                    ""))
    if planning["waiting_for"]:
        return (f"host memory that {', '.join(planning['waiting_for'])} gives "
                "back comes first")
    return "the daemon plans"
