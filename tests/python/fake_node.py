"""A node whose driver is cuda, on the strict fake driver (tests/fake_cuda): the
real sluiced, and Python processes with torch's CUDA device. It proves nothing
about a GPU."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys

from support import ROOT, TESTS, environment

FAKES = os.environ["SLUICE_FAKE_CUDA_DIR"]

CONFIG = ROOT / "tests" / "fake_cuda" / "node.toml"


class FakeNode:
    """Made in `folder`; ended by `close`. Torch's own allocator is there beside
    the leases (`malloc`), and streams are late (`jitter_us`), so that little is
    ordered by luck."""

    def __init__(self, folder: pathlib.Path, bin_dir: str):
        self._node = folder / "node"
        self._node.mkdir()
        runtime = folder / "run"
        runtime.mkdir(mode=0o700)
        self.socket = str(runtime / "session.sock")
        self._daemon = subprocess.Popen(
            [os.path.join(bin_dir, "sluiced"), "--config", CONFIG,
             "--runtime-dir", runtime], env=self._environment(), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        line = self._daemon.stdout.readline()
        assert "sluiced: ready" in line, line + self._daemon.stderr.read()

    def run(self, program: str, *arguments: str
            ) -> subprocess.CompletedProcess[str]:
        """Of tests/python, in a process of its own."""
        return subprocess.run(
            [sys.executable, TESTS / program, self.socket,
             *arguments], text=True, capture_output=True, timeout=900,
            env=self._environment(
                LD_PRELOAD=os.path.join(FAKES, "libcudart.so.13")))

    def take_findings(self) -> str:
        """What any process has found since the last time, a line each."""
        file = self._node / "findings"
        found = file.read_text() if file.exists() else ""
        file.unlink(missing_ok=True)
        return found

    def close(self) -> None:
        self._daemon.send_signal(signal.SIGTERM)
        out, err = self._daemon.communicate(timeout=30)
        assert self._daemon.returncode == 0, out + err

    def _environment(self, **more: str) -> dict[str, str]:
        return environment(
            LD_LIBRARY_PATH=f"{FAKES}/over_real:{FAKES}", OMP_NUM_THREADS="1",
            SLUICE_FAKE_CUDA="gpus=2,memory_mib=256,malloc=1,jitter_us=500,"
            f"host_numa=0,node={self._node}", **more)
