"""Tests the order and lifetime of copies, calls that an arena refuses, and the
ways an arena ends."""

from __future__ import annotations

import os
import signal
import time
import weakref

import pytest
import torch
from arena_test import MIB, values
from conftest import HOST_BYTES
from private_daemon import PrivateDaemon
from support import await_true, run_loaded

import sluice
from sluice.base.errors import Status
from sluice.memory.arena import HostArena
from sluice.memory.copies import IN_FLIGHT_COPIES
from sluice.memory.slabs import HostTensor

# --- copies in flight ------------------------------------------------------


@pytest.fixture
def slow_arena():
    """An arena on a link that takes 200 ms for 1 MiB each way, which is longer
    than a busy machine delays a test."""
    daemon = PrivateDaemon(gpu_bytes=64 * MIB, host_bytes=HOST_BYTES,
                           link_bytes_per_second=5e6)
    with sluice.Session(daemon.socket) as session:
        with HostArena(session, in_flight_bytes=64 * MIB) as arena:
            yield arena
    daemon.close()


def test_a_put_does_not_wait_and_holds_its_tensor(slow_arena):
    tensors = [torch.full((MIB // 4,), float(i)) for i in range(4)]
    hosts = [slow_arena.put(tensor) for tensor in tensors]
    held = [t for _, _, t in slow_arena._copies.in_flight[1].held]
    assert [t.data_ptr() for t in held] == [t.data_ptr() for t in tensors]
    slow_arena.drain()
    assert not slow_arena._copies.in_flight[1].held
    for host, tensor in zip(hosts, tensors):
        assert torch.equal(slow_arena.get(host, "cpu"), tensor)


# In the next three tests an earlier copy delays the copy that must finish
# first. If the required order were not kept, the copy in the other direction
# would be done 200 ms earlier.


def test_dropped_bytes_are_not_filled_before_the_last_read_is_done(slow_arena):
    old, new = torch.full((MIB // 4,), 1.0), torch.full((MIB // 4,), 2.0)
    ahead, first = slow_arena.put(old), slow_arena.put(old)
    slow_arena.drain()
    slow_arena.prefetch(ahead, "cpu")
    slow_arena.prefetch(first, "cpu")
    on_its_way = first._ahead
    slow_arena.drop(first)
    second = slow_arena.put(new)
    assert second._address == first._address
    slow_arena.drain()
    assert torch.equal(on_its_way, old)
    assert torch.equal(slow_arena.get(second, "cpu"), new)


def test_a_fetch_comes_after_the_copy_that_fills_the_bytes(slow_arena):
    ahead = slow_arena.put(torch.full((MIB // 4,), 1.0))
    host = slow_arena.put(torch.full((MIB // 4,), 2.0))
    assert slow_arena.get(host, "cpu").eq(2).all()
    assert slow_arena.get(ahead, "cpu").eq(1).all()


def test_a_sum_comes_after_the_put_and_before_the_next_fetch(slow_arena):
    ahead = slow_arena.put(torch.full((MIB // 4,), 1.0))
    host = slow_arena.put(torch.full((MIB // 4,), 2.0))
    slow_arena.add(host, torch.full((MIB // 4,), 3.0))
    more = slow_arena.put(torch.full((MIB // 4,), 4.0))
    slow_arena.add(host, slow_arena.get(more, "cpu"))
    assert slow_arena.get(host, "cpu").eq(9).all()
    assert slow_arena.get(ahead, "cpu").eq(1).all()


def test_a_finished_copys_tensor_is_released_without_a_wait(slow_arena):
    big = torch.empty(2 * MIB)
    gone = weakref.ref(big)
    slow_arena.put(big)
    del big
    slow_arena.put(torch.empty(4))
    assert gone() is not None  # the copy takes 1.6 s

    def is_let_go_of():
        # Pauses, so that puts do not wait for each other.
        time.sleep(0.1)
        slow_arena.put(torch.empty(4))
        return gone() is None

    await_true("the tensor of a finished copy is released", is_let_go_of)
    assert len(slow_arena._copies.in_flight[1].held) < IN_FLIGHT_COPIES // 2
    assert slow_arena._copies.engine.stats().stall_seconds == 0


def test_a_reached_ticket_does_not_replace_a_wait(slow_arena):
    host = slow_arena.put(torch.empty(4))
    await_true("the host tensor is written",
               lambda: slow_arena._copies.is_reached(host._written))
    assert slow_arena._copies.in_flight[1].settled == 0


def test_bytes_kept_alive_by_copies_are_bounded(session):
    with HostArena(session, in_flight_bytes=4 * MIB) as arena:
        for _ in range(50):
            arena.put(torch.empty(MIB // 4))
            assert arena._copies.in_flight[1].nbytes <= 4 * MIB
        for _ in range(50):  # larger than the bound: two may be in flight
            arena.drop(arena.put(torch.empty(2 * MIB)))
            assert len(arena._copies.in_flight[1].held) <= 2
        for _ in range(500):
            arena.drop(arena.put(torch.empty(4)))
            assert len(arena._copies.in_flight[1].held) <= 64


def test_a_drain_releases_the_tensor_of_an_interrupted_copy(arena, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    tensor = torch.ones(100)
    gone = weakref.ref(tensor)
    with monkeypatch.context() as patched:
        patched.setattr(arena._copies._library, "engine_copy", interrupt)
        with pytest.raises(KeyboardInterrupt):
            arena.put(tensor)
    del tensor
    arena.drain()
    assert gone() is None


def test_a_fetch_settles_the_copies_to_the_host_before_it(arena):
    hosts = [arena.put(torch.empty(100)) for _ in range(20)]
    arena.get(hosts[9], "cpu")
    assert all(ticket > hosts[9]._written
               for ticket, _, _ in arena._copies.in_flight[1].held)
    assert not arena._copies.in_flight[0].held


# --- refusals --------------------------------------------------------------


def refused(status, match, call, *arguments):
    with pytest.raises(sluice.Error, match=match) as raised:
        call(*arguments)
    assert raised.value.status is status
    assert "\n" not in raised.value.line


def test_a_lease_over_the_pool_leaves_everything_valid(arena):
    tensors = [values((MIB,), torch.float32, i) for i in range(10)]
    hosts = [arena.put(tensor) for tensor in tensors]
    used, leased = arena.used_bytes, arena.leased_bytes
    refused(Status.RESOURCE_EXHAUSTED, "asked 300 MiB, free", arena.put,
            torch.empty(300 * MIB, dtype=torch.int8))
    assert not arena._cut_short
    assert (arena.used_bytes, arena.leased_bytes) == (used, leased)
    for host, tensor in zip(hosts, tensors):
        assert torch.equal(arena.get(host, "cpu"), tensor)


def test_the_last_bytes_of_the_pool_can_be_used(arena):
    hosts = []
    with pytest.raises(sluice.Error):
        while True:
            hosts.append(arena.put(torch.empty(MIB, dtype=torch.int8)))
    assert len(hosts) == HOST_BYTES // MIB == arena.leased_bytes // MIB


def test_use_of_a_dropped_tensor_is_an_error(arena, session):
    host = arena.put(torch.ones(4))
    arena.drop(host)
    for call in (arena.drop, lambda h: arena.get(h, "cpu"),
                 lambda h: arena.prefetch(h, "cpu"),
                 lambda h: arena.add(h, torch.ones(4))):
        refused(Status.FAILED_PRECONDITION, "dropped before", call, host)
    with HostArena(session) as other:
        theirs = other.put(torch.ones(4))
        refused(Status.FAILED_PRECONDITION, "another arena", arena.drop,
                theirs)
    assert arena.used_bytes == 0


def test_another_shape_cannot_be_added(arena):
    host = arena.put(torch.ones(4, 1))
    refused(Status.INVALID_ARGUMENT, r"shape \[4\] to one of \[4, 1\]",
            arena.add, host, torch.ones(4))


def test_a_tensor_that_is_not_on_the_cpu_is_refused(arena):
    refused(Status.UNIMPLEMENTED, "a tensor on meta", arena.put,
            torch.empty(4, device="meta"))
    host = arena.put(torch.ones(4))
    refused(Status.UNIMPLEMENTED, "a tensor on meta", arena.get, host, "meta")
    assert arena.get(host, "cpu").sum() == 4


@pytest.mark.parametrize("close", [
    lambda arena: arena.close(), lambda arena: arena.session.close()],
    ids=["arena", "session"])
def test_after_a_close_every_call_is_an_error(arena, close):
    host, empty = arena.put(torch.ones(4)), arena.put(torch.ones(0))
    assert not arena.closed
    close(arena)
    assert arena.closed
    for call in (arena.put, lambda t: arena.get(host, "cpu"),
                 lambda t: arena.prefetch(host, "cpu"),
                 lambda t: arena.add(host, t), lambda t: arena.drain(),
                 lambda t: arena.reserve(4), lambda t: arena.fit(4)):
        refused(Status.FAILED_PRECONDITION, "closed", call, torch.ones(4))
    refused(Status.FAILED_PRECONDITION, "closed", arena.put, torch.ones(0))
    refused(Status.FAILED_PRECONDITION, "closed", arena.get, empty, "cpu")
    arena.close()


def test_later_calls_raise_the_reason_given_to_close(arena):
    host = arena.put(torch.ones(4))
    arena.close("this arena is of an earlier step")
    refused(Status.FAILED_PRECONDITION, "of an earlier step", arena.get, host,
            "cpu")
    arena.close()
    refused(Status.FAILED_PRECONDITION, "of an earlier step", arena.get, host,
            "cpu")


def test_an_arena_outlives_its_killed_daemon(daemon, arena):
    tensor = values((1000, 100), torch.float32)
    host = arena.put(tensor)
    os.kill(daemon.pid, signal.SIGKILL)
    await_true("the session notices the daemon's death",
               lambda: not lease_works(arena.session))
    assert torch.equal(arena.get(host, "cpu"), tensor)
    more = arena.put(tensor + 1)  # the slab has room
    arena.add(more, tensor)
    assert torch.equal(arena.get(more, "cpu"), tensor + 1 + tensor)
    refused(Status.UNAVAILABLE, "daemon", arena.put, torch.empty(8 * MIB))
    assert torch.equal(arena.get(host, "cpu"), tensor)


def lease_works(session):
    try:
        session.lease_host(1).free()
        return True
    except sluice.Error:
        return False


def test_a_forked_child_gets_a_clear_error(arena):
    host = arena.put(torch.ones(4))
    child = os.fork()
    if child == 0:
        try:
            for call in (lambda: arena.get(host, "cpu"),
                         lambda: arena.put(torch.ones(4)),
                         lambda: arena.add(host, torch.ones(4)),
                         lambda: arena.drop(host), arena.drain):
                refused(Status.FAILED_PRECONDITION, "forked child", call)
            arena.close()
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert arena.get(host, "cpu").sum() == 4


@pytest.mark.parametrize("last", [
    "", "del arena", "session.close()", "arena.close()",
    "arena.me = arena; host.arena = arena; del arena, session, host",
    "import gc; arena.me = arena; del arena, session; gc.collect()",
    "if os.fork() == 0: sys.exit(0)\n    os.wait()"])
def test_no_end_with_copies_in_flight_crashes_or_hangs(last):
    ran = run_loaded("""
    import os, sluice, sys, torch
    from sluice.memory.arena import HostArena
    class Arena(HostArena): pass
    session = sluice.Session()
    arena = Arena(session)
    hosts = [arena.put(torch.ones(1 << 20)) for _ in range(20)]
    for host in hosts: arena.prefetch(host, "cpu")
    class Host: pass
    host = Host()
    """ + last)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_repr_of_a_host_tensor_has_shape_and_state(arena):
    host = arena.put(torch.ones(2, 3))
    assert isinstance(host, HostTensor)
    assert repr(host) == "<HostTensor [2, 3] torch.float32>"
    arena.drop(host)
    assert repr(host) == "<HostTensor [2, 3] torch.float32, dropped>"
