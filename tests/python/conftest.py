"""Fixtures: a private daemon and what is opened on it, ended after use."""

from __future__ import annotations

import pytest
import torch

import sluice
from sluice.arena import HostArena
from sluice.daemon import PrivateDaemon

torch.set_num_threads(1)

GPU_BYTES = 64 << 20
HOST_BYTES = 256 << 20


@pytest.fixture(autouse=True, scope="session")
def no_daemon_of_the_users():
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.delenv("SLUICE_SOCKET", raising=False)
        yield


@pytest.fixture
def daemon():
    daemon = PrivateDaemon(gpus=2, gpu_bytes=GPU_BYTES, host_bytes=HOST_BYTES)
    yield daemon
    daemon.close()


@pytest.fixture
def session(daemon):
    with sluice.Session(daemon.socket) as session:
        yield session


@pytest.fixture
def arena(session):
    with HostArena(session) as arena:
        yield arena
