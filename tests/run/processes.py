"""Finds, waits for and kills the descendants of this process.

adopt_orphans() makes this process a subreaper: a descendant that loses its
parent becomes a child of this process. So no process escapes, whatever sessions
and groups it creates."""

import ctypes
import os
import signal
import time

PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans():
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children(pid):
    found = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children",
                      encoding="ascii") as file:
                found += map(int, file.read().split())
    except OSError:
        pass  # the process has just ended
    return found


def descendants():
    found, queue = [], [os.getpid()]
    while queue:
        next_ones = children(queue.pop())
        found += next_ones
        queue += next_ones
    return found


def reap():
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def is_running(pid):
    """Returns whether the process exists and is no zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8",
                  errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def command_of(pid):
    try:
        with open(f"/proc/{pid}/cmdline", encoding="utf-8",
                  errors="replace") as file:
            return file.read().replace("\0", " ").strip()
    except OSError:
        return ""


def left_behind(grace):
    """Returns (pid, command) of each descendant that still runs after `grace`
    seconds."""
    until = time.monotonic() + grace
    while True:
        reap()
        running = [pid for pid in descendants() if is_running(pid)]
        if not running or time.monotonic() >= until:
            return [(pid, command_of(pid)) for pid in running]
        time.sleep(0.02)


def kill_all():
    """Kills descendants until none is left: a process may fork before it is
    killed."""
    for _ in range(100):
        running = descendants()
        if not running:
            return
        for pid in running:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            except PermissionError:
                pass  # another user's process, which only a root test starts
        reap()
        time.sleep(0.01)


def default_signals():
    """Restores the default actions and unblocks all signals, because exec
    keeps signals ignored and blocked."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        try:
            signal.signal(number, signal.SIG_DFL)
        except OSError:
            pass  # a signal that libc reserves
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
