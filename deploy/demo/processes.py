"""Child processes that end with the demo, however it ends."""

import ctypes
import os
import signal
import socket
import subprocess
import time

PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def _end_with_parent():
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class Processes:
    """Starts processes, each in its own group, and stops these only; kills what
    still runs after GRACE_S."""

    GRACE_S = 8

    def __init__(self):
        self._running = []

    def start(self, command, **options):
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, start_new_session=True,
            preexec_fn=_end_with_parent, **options)
        self._running.append(process)
        return process

    def stop(self, process):
        """Ends the process's group and waits for it."""
        self._signal(process, signal.SIGTERM)
        try:
            process.wait(self.GRACE_S)
        except subprocess.TimeoutExpired:
            pass
        self._signal(process, signal.SIGKILL)
        process.wait()
        if process in self._running:
            self._running.remove(process)

    def stop_all(self):
        for process in reversed(list(self._running)):
            self.stop(process)

    @staticmethod
    def _signal(process, number):
        # Signals the group even if its first process has ended: ranks outlive a
        # killed launcher, and while they live the group's id is not reused.
        try:
            os.killpg(process.pid, number)
        except (ProcessLookupError, PermissionError):
            pass


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until(ready, process, what, timeout_s=30):
    """Waits for ready(). Raises an error if the process ends or time is
    over."""
    end = time.monotonic() + timeout_s
    while not ready():
        if process.poll() is not None:
            raise RuntimeError(f"{what} ended with status "
                               f"{process.returncode} before it was ready")
        if time.monotonic() > end:
            raise RuntimeError(f"{what} was not ready after {timeout_s} s")
        time.sleep(0.05)
