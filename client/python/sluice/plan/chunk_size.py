"""Measures a chunk size for `chunk="auto"` (client/python/DESIGN.md, "The size
of a chunk").

[Note: chunk size] For u chunks each layer runs u (u + 1) / 2 blocks of
attention, forward and backward. A block costs the host the same time at any
size; its device time grows with the square of the size. So blocks are measured
with the code of a step: tiny ones, which cost host time only, then larger and
larger ones. The cost outside attention depends on the number of rows, not on
how they are cut.
"""
from __future__ import annotations

import ctypes
import itertools
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import NamedTuple

import torch

from sluice.attention.blocks import Scores
from sluice.attention.intervals import Intervals
from sluice.attention.over_chunks import Attend, Question, Site
from sluice.memory import compute_device
from sluice.memory.arena import HostArena
from sluice.native import abi, daemon
from sluice.ranks.board import Board

SIZES = tuple(1 << k for k in range(7, 17))  # rows: 128 to 65,536
NEAR = 0.05  # fraction by which a smaller chunk may be slower than the fastest
TINY_ROWS, TINY_CHUNKS = 8, 8
CHUNKS = 4  # chunks of a walk, which runs attention of one sequence (_walk)
# The next walk begins if its expected device time is at most this, or at most
# 8 times the host's time for a walk.
BUDGET_S = 0.2
REPEATS = 2  # walks per size; the faster one counts


_chosen = itertools.count()  # numbers the choices of this process


class Heads(NamedTuple):
    queries: int
    keys: int
    width: int  # of q and k
    value_width: int
    batch: int = 1  # sequences

    @property
    def work(self) -> int:
        """Work of one row against one key, up to a constant factor."""
        return self.queries * (self.width + self.value_width)


@dataclass(frozen=True)
class ChunkChoice:
    """A chunk size and its reason: seconds of one block, forward and backward,
    of `rows` queries and as many keys."""

    rows: int
    host_seconds: float
    device_seconds: float

    def __str__(self) -> str:
        return (f"chosen by measuring: a block of attention takes "
                f"{1e3 * self.host_seconds:.2g} ms of the host and "
                f"{1e3 * self.device_seconds:.2g} ms of the device; pass "
                f"chunk={self.rows} to repeat this run")


def choose(host: float, walk: Callable[[int], float]) -> ChunkChoice:
    """Measures the chunk sizes that sluice_chunk_choice (client/sluice.h) asks
    for, and returns its choice. `host`: host seconds per block. `walk` returns
    the seconds of a walk over CHUNKS chunks of so many rows."""
    library = daemon.load_library()
    of_host = host * CHUNKS * (CHUNKS + 1) / 2
    of_device: dict[int, float] = {}
    last, size, rows = 0.0, ctypes.c_uint64(), ctypes.c_uint64()
    while True:
        # A walk computes rows ** 2 pairs, times a constant. Trials compare
        # seconds per pair.
        trials = [abi.ChunkTrial(n, (of_host + seconds) / n ** 2,
                                 of_host / n ** 2)
                  for n, seconds in of_device.items()]
        library.check(library.chunk_choice(
            SIZES[0], SIZES[-1], NEAR, (abi.ChunkTrial * len(trials))(
                *trials), len(trials), size, rows))
        if not size.value or 4 * last > max(BUDGET_S, 8 * of_host):
            break
        last = of_device[size.value] = max(walk(size.value) - of_host, 0.0)
    return ChunkChoice(rows.value, host,
                       of_device[rows.value] / (CHUNKS ** 2 / 2))


def agreed(choice: ChunkChoice, board: Board | None) -> ChunkChoice:
    """Returns the choice of the first rank of the job to call this; waits for
    no other rank. All ranks must make their streams in the same order."""
    number = next(_chosen)
    return choice if board is None else ChunkChoice(**board.update(
        f"chunk/{number}", lambda told: told or asdict(choice)))


def measured(arena: HostArena, kinds: Iterable[Heads], device: torch.device,
             dtype: torch.dtype) -> ChunkChoice:
    """Chooses a chunk size by walks, which take host memory of `arena` and free
    it. Measures the kind of attention with the least work per row, which needs
    the largest chunk to hide the host's time."""
    heads = min(kinds, key=lambda kind: kind.work)

    # On a CPU this thread computes, so its CPU time counts, which other
    # processes do not change. On a GPU autograd's thread issues the backward
    # while this one waits, so wall time counts.
    on_cpu = device.type == "cpu"
    clock = time.thread_time if on_cpu else time.perf_counter

    def fastest(rows: int, chunks: int, repeats: int = REPEATS) -> _Walk:
        walks = [_walk(arena, heads, device, dtype, rows, chunks, clock)
                 for _ in range(repeats)]
        return _Walk(*map(min, zip(*walks)))

    fastest(TINY_ROWS, TINY_CHUNKS, 1)  # warm up
    host = fastest(TINY_ROWS, TINY_CHUNKS).issued / (
        TINY_CHUNKS * (TINY_CHUNKS + 1) / 2)
    return choose(host, lambda rows: fastest(rows, CHUNKS).whole)


class _Walk(NamedTuple):
    """Seconds until the host had enqueued a walk, and until it was computed."""

    issued: float
    whole: float


def _walk(arena: HostArena, heads: Heads, device: torch.device,
          dtype: torch.dtype, rows: int, chunks: int,
          clock: Callable[[], float]) -> _Walk:
    def random(count: int, width: int) -> torch.Tensor:
        return torch.randn(heads.batch, count, rows, width, device=device,
                           dtype=dtype)

    q, k = random(heads.queries, heads.width), random(heads.keys, heads.width)
    v = random(heads.keys, heads.value_width)
    do = random(heads.queries, heads.value_width)
    length = rows * chunks
    mask, scores = Intervals.causal(length, device), Scores(heads.width ** -.5)
    site = Site(arena, [range(a, a + rows) for a in range(0, length, rows)])
    try:
        arena.drain()
        compute_device.await_compute(device)
        start = clock()
        with torch.no_grad():
            for m in range(chunks):
                Attend.apply(Question(site, m, False, mask, scores), q, k, v,
                             None)
        for m in reversed(range(chunks)):
            own = [t.detach().requires_grad_() for t in (q, k, v)]
            with torch.enable_grad():
                o = Attend.apply(Question(site, m, True, mask, scores), *own,
                                 None)
            torch.autograd.backward(o, do)
        issued = clock() - start
        compute_device.await_compute(device)
        return _Walk(issued, clock() - start)
    finally:
        site.release()
