"""A node with driver = "cuda" on the strict fake driver (tests/fake_cuda): the
real sluiced, and Python processes with torch's CUDA device. This proves
nothing about a real GPU."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys

import pytest
from support import ROOT, TESTS, Loaded, environment

FAKES = os.environ["SLUICE_FAKE_CUDA_DIR"]

CONFIG = ROOT / "tests" / "fake_cuda" / "node.toml"
# The environment of a Python process that uses torch's CUDA device on this
# node.
VARIABLES = dict(
    LD_LIBRARY_PATH=f"{FAKES}/over_real:{FAKES}", OMP_NUM_THREADS="1",
    LD_PRELOAD=os.path.join(FAKES, "libcudart.so.13"))
# transformers loads these modules when cuda_step makes a model.
MODELS = [f"transformers.models.{kind}.modeling_{kind}" for kind in
          ("qwen3", "llama", "mistral", "gemma2", "deepseek_v3", "gpt_oss")]


@pytest.fixture(scope="module")
def loaded():
    """A process that has loaded torch with NVIDIA's libraries (2 GB) once for
    all programs of a test. Environment variables tell each of its forks which
    node to use."""
    made = Loaded("on_fakes", "cuda_group", *MODELS, **VARIABLES)
    yield made
    made.close()


@pytest.fixture
def node(tmp_path, loaded, request):
    made = FakeNode(tmp_path, os.environ["SLUICE_BIN_DIR"], loaded,
                    getattr(request, "param", ""))
    yield made
    made.close()


class FakeNode:
    """Runs a node in `folder` until `close`. The fake driver serves torch's
    own allocator besides the leases (`malloc`). It delays streams
    (`jitter_us`), so that operations are rarely ordered by luck. `more` is
    added to the daemon's configuration."""

    def __init__(self, folder: pathlib.Path, bin_dir: str, loaded: Loaded,
                 more: str = ""):
        self._loaded = loaded
        self._node = folder / "node"
        self._node.mkdir()
        self._fakes = ("gpus=2,memory_mib=256,malloc=1,host_numa=0,"
                       f"node={self._node},jitter_us=")
        self.jitter_us = 500
        runtime = folder / "run"
        runtime.mkdir(mode=0o700)
        config = folder / "node.toml"
        config.write_text(CONFIG.read_text() + more)
        self.socket = str(runtime / "session.sock")
        self._daemon = subprocess.Popen(
            [os.path.join(bin_dir, "sluiced"), "--config", config,
             "--runtime-dir", runtime], text=True, env=environment(
                 LD_LIBRARY_PATH=VARIABLES["LD_LIBRARY_PATH"],
                 SLUICE_FAKE_CUDA=self._variable()),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        line = self._daemon.stdout.readline()
        assert "sluiced: ready" in line, line + self._daemon.stderr.read()

    def run(self, program: str, *arguments: str, **variables: str
            ) -> subprocess.CompletedProcess[str]:
        """Runs a program of tests/python in a fork of `loaded`."""
        return self._loaded.run(TESTS / program, self.socket, *arguments,
                                SLUICE_FAKE_CUDA=self._variable(), **variables)

    def start(self, program: str) -> subprocess.CompletedProcess[str]:
        """Runs a program of tests/python in a new process, which loads
        everything itself."""
        return subprocess.run(
            [sys.executable, TESTS / program, self.socket], text=True,
            capture_output=True, timeout=200,
            env=environment(**VARIABLES, SLUICE_FAKE_CUDA=self._variable()))

    def _variable(self) -> str:
        return f"{self._fakes}{self.jitter_us}"

    def take_findings(self) -> str:
        """Returns what the fake driver found wrong in any process since the
        last call: a line per broken rule or race."""
        file = self._node / "findings"
        found = file.read_text() if file.exists() else ""
        file.unlink(missing_ok=True)
        return found

    def close(self) -> None:
        self._daemon.send_signal(signal.SIGTERM)
        out, err = self._daemon.communicate(timeout=30)
        assert self._daemon.returncode == 0, out + err
