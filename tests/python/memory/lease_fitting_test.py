"""An arena's leases are resized to a plan's host bytes."""

from __future__ import annotations

import os
import signal

import pytest
import torch
from conftest import HOST_BYTES
from support import await_true

import sluice
from sluice.base.errors import Status
from sluice.memory.arena import HostArena

MIB = 1 << 20


def is_cut_off(session):
    try:
        return session.check_connected()
    except sluice.Error as error:
        return error.status == Status.UNAVAILABLE


def test_leases_are_resized_to_the_plans_bytes(session, daemon):
    """Excess memory is returned in one piece; memory in use stays leased."""
    with HostArena(session) as arena:
        held = [arena.put(torch.ones(2 * MIB)) for _ in range(3)]  # 8 MiB each
        before = arena.leased_bytes
        arena.reserve(before + MIB)
        assert arena.leased_bytes == before + MIB
        with pytest.raises(sluice.Error, match="25165824 bytes are held"):
            arena.fit(5 * MIB)
        for host in held:
            arena.drop(host)
        arena.fit(6 * MIB)
        [(_, free)] = arena._books.free.ranges()
        assert free == arena.leased_bytes == 6 * MIB
        arena.fit(6 * MIB - 1)  # rounded up to the same lease
        assert arena.leased_bytes == 6 * MIB
        # Another arena leases all other memory, so a larger fit is refused.
        with HostArena(session) as other:
            other.reserve(HOST_BYTES - 6 * MIB)
            with pytest.raises(sluice.Error, match="RESOURCE_EXHAUSTED"):
                arena.fit(7 * MIB)
            arena.fit(5 * MIB)
        os.kill(daemon.pid, signal.SIGKILL)
        await_true("the session has seen it", lambda: is_cut_off(session))
        # A lease that reuses idle extents may be a little larger.
        leased = arena.leased_bytes
        for size in (4 * MIB, 9 * MIB):
            with pytest.raises(sluice.Error, match="UNAVAILABLE"):
                arena.fit(size)
        assert 5 * MIB <= arena.leased_bytes == leased < 9 * MIB
        arena.drop(arena.put(torch.ones(MIB)))
