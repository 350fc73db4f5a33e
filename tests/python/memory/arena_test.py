"""Tests tensors in leased host memory: contents, and counts to the byte."""

from __future__ import annotations

import gc
import random
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import sluice
from sluice.memory.arena import HostArena
from sluice.memory.free_ranges import ALIGNMENT, FreeRanges

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
    arena.add(host, result)  # the host tensor does not join the graph
    assert torch.equal(arena.get(host, "cpu"), torch.full((8, 8), 4.0))


def test_get_returns_a_copy_owned_by_the_caller(arena):
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


def test_a_put_tensor_may_be_freed_at_once(arena):
    hosts = []
    for i in range(300):
        hosts.append(arena.put(torch.full((1000,), float(i))))
        torch.full((1000,), -1.0)  # reuses the memory if it was freed
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


def test_adding_to_an_empty_tensor_copies_nothing(arena):
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


def test_nothing_is_leased_before_the_first_put(daemon, session):
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


def test_freed_slabs_serve_another_length(arena):
    for elements in (1000, 777, 4096, 65536, 333, 100000):
        hosts = [arena.put(torch.empty(elements)) for _ in range(60)]
        random.Random(elements).shuffle(hosts)
        for host in hosts:
            arena.drop(host)
        assert len(free_ranges(arena)) == len(arena._slabs._slabs)
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


def test_threads_that_call_at_once_keep_their_bytes(arena):
    """Two threads that updated the arena's free ranges at the same time could
    free bytes that are in use."""
    def work(seed: int) -> None:
        draw = random.Random(seed)
        held = []
        for i in range(400):
            value = seed * 1000 + i
            held.append((value, arena.put(torch.full((draw.randint(
                1, 5000),), value))))
            if len(held) > 5:
                value, host = held.pop(draw.randrange(len(held)))
                assert bool((arena.get(host, "cpu") == value).all())
                # Otherwise the memory is freed with its last reference.
                if draw.random() < 0.5:
                    arena.drop(host)
            assert arena.used_bytes >= 0

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            for done in [threads.submit(work, seed) for seed in range(4)]:
                done.result()
    finally:
        sys.setswitchinterval(interval)
    gc.collect()
    assert arena.used_bytes == 0
    assert not arena._books._held  # lost tensors leave no entry


def test_free_ranges_agree_with_a_set_of_bytes():
    # Two adjacent slabs: no range may lie across their border.
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
        assert sum(n for _, n in runs) == len(units)
        # Adjacent ranges are merged, except across the border.
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
