"""A sluiced of a test's own, on simulated GPUs."""

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
    """Serves until `close`, in a folder of its own; 10 minutes after the last
    session where the process was killed. Sizes are shares of what the machine
    has free unless they are given.

    Attributes:
        socket: path for `Session(socket=...)`.
        pid: of sluiced.
    """

    def __init__(self, *, gpus: int = 1, gpu_bytes: int | None = None,
                 host_bytes: int | None = None,
                 link_bytes_per_second: float = 0.0,
                 start_timeout_s: float = START_TIMEOUT_S) -> None:
        free = available_bytes()
        # A socket's path is short, whatever $TMPDIR is.
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
        """Twice is fine."""
        self._sluiced.terminate()
        self._sluiced.wait(30)
        self._sluiced.stdout.close()
        shutil.rmtree(self._folder, ignore_errors=True)
