"""After Ctrl-C between any two lines of a step, all host bytes are freed and
the stream still works."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import pathlib
import sys

import torch
from conftest import HOST_BYTES
from models import assert_same, batch, run, tiny, unstreamed

import sluice
from sluice.memory.arena import HostArena
from sluice.node import layer

FOLDER = os.fspath(pathlib.Path(sluice.__file__).parent) + os.sep
OWN = {"memory/arena.py", "memory/copies.py", "memory/free_ranges.py",
       "memory/slabs.py"}


@contextlib.contextmanager
def tracing(seen):
    """Calls `seen(file, line)` before each line of the package is run."""
    def trace(frame, event, _):
        path = frame.f_code.co_filename
        if not path.startswith(FOLDER):
            return None
        if event == "line":
            seen(path[len(FOLDER):], frame.f_lineno)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def lines_of(action):
    """Returns how often the action runs each line of the package."""
    counts = {}

    def count(*line):
        counts[line] = counts.get(line, 0) + 1

    with tracing(count):
        action()
    return counts


def interrupted(action, line, time):
    """Raises Ctrl-C before `line` runs for the `time`-th time; returns whether
    that happened."""
    left = [time]

    def stop(*here):
        if here == line:
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt

    try:
        with tracing(stop):
            action()
    except KeyboardInterrupt:
        return True
    return False


def times(count):
    """Returns which runs of a line to interrupt: the first and one in the
    middle, of `count` runs."""
    return sorted({1, count // 2 + 1})


def test_an_interrupt_in_any_line_of_the_arena_leaves_it_whole(arena):
    fill = [torch.full((1000 * n,), float(n)) for n in range(1, 5)]

    def use():
        hosts = [arena.put(tensor) for tensor in fill]
        arena.prefetch(hosts[1], "cpu")
        arena.add(hosts[0], fill[0])
        arena.drop(hosts.pop(2))
        hosts.append(arena.put(fill[2]))
        arena.settle(hosts[-1])
        found = [arena.get(host, "cpu") for host in hosts]
        for host in hosts:
            arena.drop(host)
        arena.drain()
        return found

    hit = 0
    for line, count in lines_of(use).items():
        for time in times(count):
            kept = arena.put(fill[3])
            hit += interrupted(use, line, time)
            gc.collect(1)
            assert arena.used_bytes == kept.nbytes, line
            expected = [fill[0] * 2, fill[1], fill[3], fill[2]]
            assert all(map(torch.equal, use(), expected)), line
            assert torch.equal(arena.get(kept, "cpu"), fill[3]), line
            arena.drop(kept)
            assert sum(size for _, size in arena._books.free.ranges()) == (
                arena.leased_bytes), line
    assert hit > 150  # lines that lease memory run only in the first use


def test_reading_used_bytes_repairs_an_interrupted_drop(arena):
    """No other tensor dies here, so only reading used_bytes can repair the
    arena's counts."""
    kept = arena.put(torch.ones(8))
    dropped = functools.partial(arena.drop, arena.put(torch.ones(1000)))
    for line in lines_of(dropped):
        host = arena.put(torch.ones(1000))
        interrupted(functools.partial(arena.drop, host), line, 1)
        assert arena.used_bytes == kept.nbytes + (
            0 if host._live is None else host.nbytes), line


def test_an_interrupt_in_the_first_lease_loses_no_memory(session):
    def use():
        with HostArena(session) as arena:
            arena.drop(arena.put(torch.ones(8)))

    for line in lines_of(use):
        if line[0] in OWN:
            interrupted(use, line, 1)
    gc.collect()
    with HostArena(session) as arena:
        arena.put(torch.empty(HOST_BYTES, dtype=torch.int8))  # leases it all


def interrupt_steps(session, files, apart):
    """Interrupts a step before every `apart`-th of its lines in `files`."""
    model = tiny(num_hidden_layers=1)
    inputs = {**batch(rows=1, length=40), "use_cache": False}
    expected = unstreamed(model, inputs)
    stream = sluice.stream(model, session=session, chunk=16, quiet=True,
                           check="off")

    def step():
        return run(model, inputs)

    step()
    lines = [line for line in lines_of(step) if line[0] in files]
    assert len(lines) > 150
    for line in lines[::apart]:
        assert interrupted(step, line, 1), line
        # The interrupt may have come before the step could reset this.
        layer._running.call = None
        gc.collect(1)
        assert stream.stats().host_bytes == 0, line
    assert_same(step(), expected)
    assert stream.stats().host_bytes == 0
    stream.unstream()


def test_an_interrupt_of_a_copy_in_a_step_leaves_no_bytes(session):
    interrupt_steps(session, OWN, 3)


def test_an_interrupt_of_a_layer_leaves_no_bytes(session):
    interrupt_steps(session, {"node/layer.py", "node/chunked_module.py",
                              "attention/over_chunks.py",
                              "node/hidden_rows.py", "node/rows.py"}, 4)
