"""`chunk="auto"`: a chunk size found by measuring.

[Note: chunk size] Of a sequence of u chunks each layer runs u (u + 1) / 2
blocks of attention, a chunk of queries against a chunk of keys, forward and
backward; they are what a small chunk makes many of. A block costs the host
the same whatever its size (Python, launches, copies that are enqueued), and
the device by the square of it. So blocks are walked, by the code that a step
walks them with: tiny ones, which cost the host alone, and larger and larger
ones. A size is allowed where the host takes at most a third of a block's time;
of those allowed, and nearly as fast as the fastest, the smallest is chosen, for
a step's memory on the device grows with the chunk. What a chunk costs outside
attention is by its rows alone, whichever way they are cut, and its host time is
smaller beside it.
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
NEAR = 0.05  # a smaller chunk may make a step slower by this part
TINY_ROWS, TINY_CHUNKS = 8, 8
CHUNKS = 4  # of a walk
BUDGET_S = 0.2  # no walk that would take the device longer is begun
REPEATS = 2  # the faster one counts


_chosen = itertools.count()  # of this process


class Heads(NamedTuple):
    """What a call of attention has on one rank."""

    queries: int
    keys: int
    width: int  # of q and k
    value_width: int
    batch: int = 1  # sequences

    @property
    def work(self) -> int:
        """The work of one row against one key, up to a factor."""
        return self.queries * (self.width + self.value_width)


@dataclass(frozen=True)
class ChunkChoice:
    """A size of chunks, and why: seconds are of one block, forward and
    backward, of `rows` queries and as many keys."""

    rows: int
    host_seconds: float
    device_seconds: float

    def __str__(self) -> str:
        return (f"chosen by measuring: a block of attention takes the host "
                f"{1e3 * self.host_seconds:.2g} ms, the device "
                f"{1e3 * self.device_seconds:.2g} ms; chunk={self.rows} "
                "makes the same run again")


def choose(host: float, walk: Callable[[int], float]) -> ChunkChoice:
    """Walks chunk sizes in the order that sluice_chunk_choice (client/sluice.h)
    names, and takes what it takes; see [Note: chunk size].

    Args:
        host: seconds per block of the host.
        walk: seconds of a walk over CHUNKS chunks of so many rows.
    """
    library = daemon.load_library()
    of_host = host * CHUNKS * (CHUNKS + 1) / 2
    of_device: dict[int, float] = {}
    last, size, rows = 0.0, ctypes.c_uint64(), ctypes.c_uint64()
    while True:
        # A walk is of rows ** 2 pairs, up to a factor.
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
    """What the first rank of the job has chosen, on all of them: they make
    their streams in one order, and none waits for another."""
    number = next(_chosen)
    return choice if board is None else ChunkChoice(**board.update(
        f"chunk/{number}", lambda told: told or asdict(choice)))


def measured(arena: HostArena, kinds: Iterable[Heads], device: torch.device,
             dtype: torch.dtype) -> ChunkChoice:
    """By walks with host memory of `arena`, which is given back; of several
    kinds of attention by the one with the cheapest blocks."""
    heads = min(kinds, key=lambda kind: kind.work)

    # Where the host computes, its own time is the device's too; it is what no
    # other process takes away. On a GPU backward is issued by a thread of
    # autograd's, while this one waits for it.
    waits = device.type == "cpu"
    clock = time.thread_time if waits else time.perf_counter

    def fastest(rows: int, chunks: int, repeats: int = REPEATS) -> _Walk:
        walks = [_walk(arena, heads, device, dtype, rows, chunks, clock)
                 for _ in range(repeats)]
        return _Walk(*map(min, zip(*walks)))

    fastest(TINY_ROWS, TINY_CHUNKS, 1)  # whatever is made once
    host = fastest(TINY_ROWS, TINY_CHUNKS).issued / (
        TINY_CHUNKS * (TINY_CHUNKS + 1) / 2)
    return choose(host, lambda rows: fastest(rows, CHUNKS).whole)


class _Walk(NamedTuple):
    """Seconds until the host had issued it, and until it was over."""

    issued: float
    whole: float


def _walk(arena: HostArena, heads: Heads, device: torch.device,
          dtype: torch.dtype, rows: int, chunks: int,
          clock: Callable[[], float]) -> _Walk:
    """By `clock`, of a causal sequence's attention, forward and backward."""
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
