"""Fixtures: private daemons, and sessions and arenas on them."""

from __future__ import annotations

import contextlib
import gc

import pytest
import torch
from private_daemon import PrivateDaemon
from support import DEEP

import sluice
from sluice.memory.arena import HostArena

torch.set_num_threads(1)
# Loading modules creates no garbage, so collections would only cost time.
gc.disable()

GPU_BYTES = 64 << 20
HOST_BYTES = 256 << 20
SEED = torch.initial_seed()  # the seed of a new process


def pytest_collection_modifyitems(config, items):
    """Deselects cases marked `deep` unless SLUICE_DEEP=1 (./dev test --deep).
    Other cases execute the same branches."""
    if DEEP:
        return
    deep = [item for item in items if item.get_closest_marker("deep")]
    items[:] = [item for item in items if item not in deep]
    config.hook.pytest_deselected(items=deep)


def pytest_collection_finish():
    """Excludes half a million objects of the loaded modules from gc.collect(),
    which runs several times per test."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True, scope="session")
def no_daemon_of_the_users():
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.delenv("SLUICE_SOCKET", raising=False)
        # A user daemon that a test starts ends with the daemon's last session.
        monkeypatch.setenv("SLUICE_DAEMON_IDLE_S", "0")
        yield


@pytest.fixture(autouse=True, scope="module")
def random_state_of_a_new_process():
    """Makes a file's random numbers independent of the files before it."""
    torch.manual_seed(SEED)


@contextlib.contextmanager
def private_daemon():
    daemon = PrivateDaemon(gpus=2, gpu_bytes=GPU_BYTES, host_bytes=HOST_BYTES)
    yield daemon
    daemon.close()


@pytest.fixture
def daemon():
    """A daemon of one test. The test may kill the daemon."""
    with private_daemon() as daemon:
        yield daemon


@pytest.fixture(scope="module")
def daemon_of_the_file():
    """A daemon that all tests of a file share, because starting a daemon takes
    0.4 s. Sessions leave nothing in it."""
    with private_daemon() as daemon:
        yield daemon


@pytest.fixture
def session(request):
    daemon = request.getfixturevalue(
        "daemon" if "daemon" in request.fixturenames else "daemon_of_the_file")
    with sluice.Session(daemon.socket) as session:
        yield session


@pytest.fixture
def arena(session):
    with HostArena(session) as arena:
        yield arena
