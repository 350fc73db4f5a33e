"""Tensors in leased host memory: every byte, every count, every refusal."""

from __future__ import annotations

import os
import random
import signal
import time
import weakref

import pytest
import sluice
import torch
from conftest import HOST_BYTES
from sluice.arena import HostArena
from sluice.daemon import PrivateDaemon
from sluice.errors import Status
from sluice.host_tensor import HostTensor
from sluice.ranges import ALIGNMENT, FreeRanges
from support import await_true, run

MIB = 1 << 20
DTYPES = [torch.bool, torch.int64, torch.int8, torch.bfloat16, torch.float16,
          torch.float32, torch.float64, torch.complex64]


def values(shape, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    ints = torch.randint(-100, 100, shape, generator=generator)
    return (ints > 0) if dtype is torch.bool else ints.to(dtype)


def free_ranges(arena):
    return arena._books.free.ranges()


# --- bytes -----------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("view", [
    lambda t: t,
    lambda t: t.transpose(0, 2),
    lambda t: t[1:4, ::2, 3],
    lambda t: t[0, 0, 0],
    lambda t: t[:, :1].expand(5, 7, 11),
    lambda t: t[:0],
    lambda t: t.flip(0),
], ids=["whole", "transposed", "strided", "scalar", "expanded", "empty",
        "flipped"])
def test_every_dtype_and_stride_comes_back(arena, dtype, view):
    tensor = view(values((5, 7, 11), dtype))
    host = arena.put(tensor)
    assert (host.shape, host.dtype) == (tensor.shape, dtype)
    assert host.nbytes == tensor.numel() * dtype.itemsize == arena.used_bytes
    again = arena.get(host, "cpu")
    assert again.dtype is dtype and again.is_contiguous()
    assert torch.equal(again, tensor)
    arena.drop(host)
    assert arena.used_bytes == 0


def test_lazily_conjugated_and_negated_views_come_back(arena):
    tensor = values((4, 6), torch.complex64) * (1 + 2j)
    for view in (tensor.conj(), tensor.conj().imag, tensor.conj()[1:, ::2]):
        assert torch.equal(arena.get(arena.put(view), "cpu"), view)


def test_a_tensor_with_a_graph_is_held_without_it(arena):
    weight = torch.ones(8, 8, requires_grad=True)
    result = weight * 2
    host = arena.put(result)
    assert not arena.get(host, "cpu").requires_grad
    held = [tensor for _, _, tensor in arena._copies.in_flight[1].held]
    assert all(tensor.grad_fn is None for tensor in held)
    arena.add(host, result)  # no graph here either
    assert torch.equal(arena.get(host, "cpu"), torch.full((8, 8), 4.0))


def test_what_get_gives_is_the_callers_own(arena):
    tensor = values((16,), torch.float32)
    host = arena.put(tensor)
    first = arena.get(host, "cpu")
    first.zero_()
    assert torch.equal(arena.get(host, torch.device("cpu")), tensor)


def test_prefetching_twice_copies_once(arena):
    host = arena.put(values((16,), torch.float32))
    arena.prefetch(host, "cpu")
    arena.prefetch(host, torch.device("cpu"))
    assert arena.copies == 2
    arena.get(host, "cpu")
    assert arena.copies == 2


def test_a_put_tensor_may_be_let_go_at_once(arena):
    hosts = []
    for i in range(300):
        hosts.append(arena.put(torch.full((1000,), float(i))))
        torch.full((1000,), -1.0)  # takes the freed memory, if it was freed
    for i, host in enumerate(hosts):
        assert torch.equal(arena.get(host, "cpu"), torch.full((1000,), i * 1.))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16,
                                   torch.int64], ids=str)
def test_sums_are_added_in_the_hosts_dtype(arena, dtype):
    start, more = values((33, 3), dtype, 1), values((33, 3), dtype, 2)
    host = arena.put(start)
    arena.add(host, more)
    arena.prefetch(host, "cpu")
    arena.add(host, more.t().contiguous().t())
    assert torch.equal(arena.get(host, "cpu"), start + more + more)
    assert arena.used_bytes == host.nbytes


def test_a_sum_of_bf16_into_fp32_keeps_fp32(arena):
    host = arena.put(torch.full((4,), 1.0))
    arena.add(host, torch.full((4,), 2.0**-10, dtype=torch.bfloat16))
    assert torch.equal(arena.get(host, "cpu"), torch.full((4,), 1 + 2.0**-10))


def test_nothing_can_be_added_to_nothing(arena):
    host = arena.put(torch.empty(0, 3))
    arena.add(host, torch.empty(0, 3))
    assert arena.get(host, "cpu").shape == (0, 3)
    assert arena.copies == arena.used_bytes == arena.leased_bytes == 0


# --- counts ----------------------------------------------------------------


def test_used_and_peak_are_exact_to_the_byte(arena):
    a = arena.put(torch.empty(3, dtype=torch.int8))
    b = arena.put(torch.empty(1000, dtype=torch.bfloat16))
    assert arena.used_bytes == arena.peak_bytes == 2003
    arena.drop(a)
    assert (arena.used_bytes, arena.peak_bytes) == (2000, 2003)
    arena.reset_peak()
    assert arena.peak_bytes == 2000
    arena.drop(b)
    assert (arena.used_bytes, arena.peak_bytes) == (0, 2000)


def test_it_leases_nothing_before_it_needs_to(daemon, session):
    arena = HostArena(session)
    assert arena.leased_bytes == 0
    arena.put(torch.empty(1))
    assert arena.leased_bytes == 4 * MIB
    arena.close()
    arena.close()
    assert arena.closed and arena.leased_bytes == arena.used_bytes == 0
    with sluice.Session(daemon.socket, job="later") as later:
        limits = later.limits()
        assert limits.host_free_bytes == limits.host_total_bytes


def test_another_length_finds_whole_slabs(arena):
    for elements in (1000, 777, 4096, 65536, 333, 100000):
        hosts = [arena.put(torch.empty(elements)) for _ in range(60)]
        random.Random(elements).shuffle(hosts)
        for host in hosts:
            arena.drop(host)
        assert len(free_ranges(arena)) == len(arena._slabs)
        assert sum(size for _, size in free_ranges(arena)) == (
            arena.leased_bytes)
    assert arena.leased_bytes <= 2 * 60 * 65536 * 4 + 60 * 100000 * 4


def test_ten_thousand_random_calls_agree_with_a_dict(arena):
    rng, model, key = random.Random(11), {}, 0
    peak = 0
    for _ in range(10_000):
        kind = rng.choice("ppgaD" if len(model) < 200 else "pgaDDD")
        if kind == "p" or not model:
            tensor = values((rng.randrange(0, 5), rng.randrange(1, 900)),
                            rng.choice(DTYPES[:7]), key)
            if rng.random() < 0.3:
                tensor = tensor.t()
            model[key] = (arena.put(tensor), tensor.clone())
            key += 1
        else:
            name = rng.choice(list(model))
            host, tensor = model[name]
            if kind == "g":
                if rng.random() < 0.5:
                    arena.prefetch(host, "cpu")
                if rng.random() < 0.7:
                    assert torch.equal(arena.get(host, "cpu"), tensor)
            elif kind == "a" and tensor.dtype is not torch.bool:
                arena.add(host, tensor)
                model[name] = (host, tensor + tensor)
            elif kind == "D":
                arena.drop(model.pop(name)[0])
        used = sum(t.numel() * t.itemsize for _, t in model.values())
        peak = max(peak, used)
        assert (arena.used_bytes, arena.peak_bytes) == (used, peak)
    for host, tensor in model.values():
        assert torch.equal(arena.get(host, "cpu"), tensor)
    places = sorted((host._address, host.nbytes)
                    for host, _ in model.values() if host.nbytes)
    assert all(a + n <= b for (a, n), (b, _) in zip(places, places[1:]))


def test_free_ranges_agree_with_a_set_of_bytes():
    # Two slabs that touch: no range may lie across their border.
    rng, free, units = random.Random(5), FreeRanges(), set(range(200))
    for start in (0, 100):
        free.add_slab(start * ALIGNMENT, 100 * ALIGNMENT)
    taken = []
    for _ in range(5000):
        if taken and rng.random() < 0.5:
            start, size, mark = taken.pop(rng.randrange(len(taken)))
            free.give(start * ALIGNMENT, size * ALIGNMENT, mark)
            units |= set(range(start, start + size))
        else:
            size = rng.randrange(1, 30)
            found = free.take(size * ALIGNMENT)
            if found is not None:
                start = found[0] // ALIGNMENT
                mine = set(range(start, start + size))
                assert mine <= units and start // 100 == (
                    start + size - 1) // 100
                units -= mine
                taken.append((start, size, rng.randrange(1000)))
        runs = [(s // ALIGNMENT, n // ALIGNMENT) for s, n in free.ranges()]
        assert {u for s, n in runs for u in range(s, s + n)} == units
        assert free.free_bytes == len(units) * ALIGNMENT
        # Neighbours are one range, but at the border.
        assert all(s + n < t or t == 100
                   for (s, n), (t, _) in zip(runs, runs[1:]))


def test_a_range_keeps_the_latest_mark_of_its_parts():
    free = FreeRanges()
    free.add_slab(0, 1024)
    parts = [free.take(256)[0] for _ in range(4)]
    for part, mark in zip(parts, (3, 9, 4, 1)):
        free.give(part, 256, mark)
    assert free.ranges() == [(0, 1024)]
    assert free.take(64)[1] == 9


# --- copies in flight ------------------------------------------------------


@pytest.fixture
def slow_arena():
    """Its link takes 20 ms for 1 MiB each way."""
    daemon = PrivateDaemon(gpu_bytes=64 * MIB, host_bytes=HOST_BYTES,
                           link_bytes_per_second=50e6)
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


# In both, another copy of the same direction holds the one back that must come
# first, so that the other direction would overtake it by 20 ms.


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


def test_what_a_done_copy_used_is_let_go_of_without_a_wait(slow_arena):
    big = torch.empty(MIB // 4)
    gone = weakref.ref(big)
    slow_arena.put(big)
    del big
    slow_arena.put(torch.empty(4))
    assert gone() is not None  # 20 ms are not over
    time.sleep(0.5)
    slow_arena.put(torch.empty(4))
    assert gone() is None
    assert slow_arena._copies.engine.stats().stall_seconds == 0


def test_a_reached_ticket_does_not_stand_for_a_wait(slow_arena):
    host = slow_arena.put(torch.empty(4))
    time.sleep(0.2)
    assert slow_arena._copies.is_reached(host._written)
    assert slow_arena._copies.in_flight[1].settled == 0


def test_what_copies_keep_alive_is_bounded(session):
    with HostArena(session, in_flight_bytes=4 * MIB) as arena:
        for _ in range(50):
            arena.put(torch.empty(MIB // 4))
            assert arena._copies.in_flight[1].nbytes <= 4 * MIB
        for _ in range(50):  # larger than the bound: two may run
            arena.drop(arena.put(torch.empty(2 * MIB)))
            assert len(arena._copies.in_flight[1].held) <= 2
        for _ in range(500):
            arena.drop(arena.put(torch.empty(4)))
            assert len(arena._copies.in_flight[1].held) <= 64


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
    assert (arena.used_bytes, arena.leased_bytes) == (used, leased)
    for host, tensor in zip(hosts, tensors):
        assert torch.equal(arena.get(host, "cpu"), tensor)


def test_the_last_bytes_of_the_pool_can_be_used(arena):
    hosts = []
    with pytest.raises(sluice.Error):
        while True:
            hosts.append(arena.put(torch.empty(MIB, dtype=torch.int8)))
    assert len(hosts) == HOST_BYTES // MIB == arena.leased_bytes // MIB


def test_dropping_twice_and_use_after_it_are_errors(arena, session):
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
                 lambda t: arena.add(host, t), lambda t: arena.drain()):
        refused(Status.FAILED_PRECONDITION, "closed", call, torch.ones(4))
    refused(Status.FAILED_PRECONDITION, "closed", arena.put, torch.ones(0))
    refused(Status.FAILED_PRECONDITION, "closed", arena.get, empty, "cpu")
    arena.close()


def test_a_killed_daemon_leaves_the_arena_at_work(daemon, arena):
    tensor = values((1000, 100), torch.float32)
    host = arena.put(tensor)
    os.kill(daemon.pid, signal.SIGKILL)
    await_true("the session notices", lambda: not lease_works(arena.session))
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
    ran = run("""
    import os, sluice, sys, torch
    from sluice.arena import HostArena
    class Arena(HostArena): pass
    session = sluice.Session()
    arena = Arena(session)
    hosts = [arena.put(torch.ones(1 << 20)) for _ in range(20)]
    for host in hosts: arena.prefetch(host, "cpu")
    class Host: pass
    host = Host()
    """ + last)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_host_tensor_says_what_it_is(arena):
    host = arena.put(torch.ones(2, 3))
    assert isinstance(host, HostTensor)
    assert repr(host) == "<HostTensor [2, 3] torch.float32>"
    arena.drop(host)
    assert repr(host) == "<HostTensor [2, 3] torch.float32, dropped>"
