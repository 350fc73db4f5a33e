"""A separate sluiced for one test, on simulated GPUs."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import tempfile

from sluice.native.daemon import (
    START_TIMEOUT_S,
    available_bytes,
    await_ready,
    config_text,
    find_programs,
    log_path,
)


class PrivateDaemon:
    """Runs sluiced in a folder of its own until `close`. If the test's process
    is killed before `close`, sluiced ends 10 minutes after its last session.
    Sizes default to fractions of the machine's free memory.

    Attributes:
        socket: path for `Session(socket=...)`.
        pid: process id of sluiced.
    """

    def __init__(self, *, gpus: int = 1, gpu_bytes: int | None = None,
                 host_bytes: int | None = None,
                 link_bytes_per_second: float = 0.0,
                 start_timeout_s: float = START_TIMEOUT_S) -> None:
        free = available_bytes()
        # Not in $TMPDIR, because a socket's path must be short.
        self._folder = tempfile.mkdtemp(prefix="sluice-", dir="/tmp")
        self.socket = os.path.join(self._folder, "session.sock")
        config = pathlib.Path(self._folder, "config.toml")
        config.write_text(config_text(
            "sim", gpus, gpu_bytes or free // 4 // gpus,
            host_bytes or free // 2, link_bytes_per_second))
        with open(log_path(self._folder), "wb") as log:
            self._sluiced = subprocess.Popen(
                [find_programs().need("sluiced"), "--config", config,
                 "--runtime-dir", self._folder, "--end-after-idle", "600"],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
                start_new_session=True)
        self.pid = self._sluiced.pid
        try:
            await_ready(self._sluiced, self._folder, start_timeout_s)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends sluiced; may be called twice."""
        self._sluiced.terminate()
        self._sluiced.wait(30)
        self._sluiced.stdout.close()
        shutil.rmtree(self._folder, ignore_errors=True)
