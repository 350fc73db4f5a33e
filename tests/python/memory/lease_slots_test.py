"""Tests when slots ask the daemon for GPU memory. gradients/cuda_test covers
the use of slots on the fake GPU."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from sluice.base.errors import Error, Status
from sluice.memory import slots


class Daemon:
    """Stands for a session: leases up to `free` bytes and counts requests."""

    def __init__(self) -> None:
        self.free, self.status, self.asked = 0, Status.RESOURCE_EXHAUSTED, 0
        self._end = 1 << 20

    def lease_gpu(self, nbytes: int, wait_s: float) -> SimpleNamespace:
        self.asked += 1
        if nbytes > self.free:
            raise Error(self.status, "no")
        self._end += nbytes
        return SimpleNamespace(address=self._end - nbytes, nbytes=nbytes)


@pytest.fixture
def daemon():
    return Daemon()


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(slots, "monotonic", lambda: clock.now)
    return clock


@pytest.fixture
def asking(daemon, clock):
    asking = slots.Slots(daemon, torch.device("cuda", 0))
    yield asking
    asking._end.detach()  # no tensor lives in these leases


@pytest.mark.parametrize("why", [Status.RESOURCE_EXHAUSTED,
                                 Status.UNAVAILABLE])
def test_a_daemon_without_free_memory_is_asked_again_later(
        daemon, clock, asking, why):
    daemon.status = why
    assert asking._take(512) is None
    daemon.free = 64 << 20
    clock.now += slots.ASK_AGAIN_S
    assert asking._take(512) is not None
    assert asking.nbytes == slots.FIRST_LEASE_BYTES


def test_a_full_daemon_is_not_asked_at_every_fetch(daemon, clock, asking):
    for _ in range(100):
        assert asking._take(512) is None
    asked = daemon.asked
    clock.now += slots.ASK_AGAIN_S
    for _ in range(100):
        assert asking._take(512) is None
    assert daemon.asked == 2 * asked < 20
