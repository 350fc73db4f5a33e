"""Runs a command for as long as one process lives:
`python -I -S _guard.py PARENT FOLDER COMMAND...`

`daemon.PrivateDaemon` starts the private sluiced through it. It prints the
command's process id, ends the command when process PARENT has ended, however
it did, or when it is told to (SIGTERM), and removes FOLDER.

Why a process between: the kernel's parent-death signal comes when the
*thread* that started the child ends, and a session may be opened by a thread
that ends early; setting it needs code between fork and exec, which is unsafe
beside torch's threads; and the folder has to be removed after kill -9.
This process has one thread, so that it may use the signal for its own child.
It is a script of its own, on the standard library, to start within 20 ms.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys

PR_SET_PDEATHSIG = 1
GRACE_S = 5  # from SIGTERM to SIGKILL
NO_PIDFD_POLL_MS = 200


class _Told(Exception):
    """SIGTERM came."""


def _stop(number: int, frame: object) -> None:
    raise _Told


def _begin() -> None:
    """In the child, before its command."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # of a group, too
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    # Also when this process is killed: then only the folder stays.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _watch(process: int) -> int | None:
    """A descriptor that becomes readable when `process` ends; None where the
    kernel has no such thing (before Linux 5.3, or a sandbox)."""
    try:
        return os.pidfd_open(process)
    except (AttributeError, OSError):
        return None


def _await_end(parent: int, child: subprocess.Popen[bytes] | None) -> None:
    """Returns when the parent has ended, or the child, if one is given."""
    pids = [parent] if child is None else [parent, child.pid]
    watched = [fd for fd in map(_watch, pids) if fd is not None]
    poll = select.poll()
    for fd in watched:
        poll.register(fd, select.POLLIN)
    timeout_ms = None if len(watched) == len(pids) else NO_PIDFD_POLL_MS
    # An adopted process has another parent: asked after the watch is set up,
    # so that an end before it is not missed, nor a number that is used again.
    while os.getppid() == parent and (child is None or child.poll() is None):
        poll.poll(timeout_ms)


def _end(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _start(command: list[str]) -> subprocess.Popen[bytes] | None:
    try:
        return subprocess.Popen(command, preexec_fn=_begin,
                                stdin=subprocess.DEVNULL)
    except OSError as error:
        print(f"error: cannot start {command[0]}: {error}", file=sys.stderr)
        return None


def main() -> int:
    parent, folder, command = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    signal.signal(signal.SIGTERM, _stop)
    child = None
    try:
        # Told while it starts one, it would not know which to end.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        child = _start(command)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        if child is not None:
            print(f"pid {child.pid}", flush=True)
            _await_end(parent, child)
        if child is None or child.poll() is not None:
            # The parent reads the log when it sees the end of this pipe; the
            # folder is its own until it tells, or ends.
            os.close(sys.stdout.fileno())
            _await_end(parent, None)
    except (_Told, BrokenPipeError):
        pass
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if child is not None and child.poll() is None:
            _end(child)
        # Also after a request to end: the process that made the request may
        # be killed before it removes the folder.
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if child is None else 0


if __name__ == "__main__":
    sys.exit(main())
