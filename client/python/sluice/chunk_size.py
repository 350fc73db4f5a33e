"""`chunk="auto"`: a chunk size found by measuring.

[Note: chunk size] Of a sequence of u chunks each layer runs u (u + 1) / 2
blocks of attention, a chunk of queries against a chunk of keys, forward and
backward; they are what a small chunk makes many of. A block costs the host
the same whatever its size (Python, launches, copies that are enqueued), and
the device by the square of it. So blocks are walked, by the code that a step
walks them with: tiny ones, which cost the host alone, and larger and larger
ones, from which the device's time is modelled. A size is allowed where the
host's time per block is at most half of the device's; of those allowed, and
nearly as fast as the fastest, the smallest is chosen, for a step's memory on
the device grows with the chunk. What a chunk costs outside attention is by its
rows alone, whichever way they are cut, and its host time is smaller beside it.
"""
from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import NamedTuple

import torch

from sluice import computing
from sluice.arena import HostArena
from sluice.attention import Attend, Question, Site
from sluice.blocks import Scores
from sluice.board import Board
from sluice.intervals import Intervals

SIZES = tuple(1 << k for k in range(7, 17))  # rows: 128 to 65,536
HOST_SHARE = 0.5  # of a block's time on the device, at most
NEAR = 1.05  # of the least time of a step
TINY_ROWS, TINY_CHUNKS = 8, 8
CHUNKS = 4  # of a walk
BUDGET_S = 0.2  # no walk that would take longer is begun
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


def choose(host: float, walked: Mapping[int, float], waits: bool
           ) -> ChunkChoice:
    """See [Note: chunk size].

    Args:
        host: seconds per block of the host.
        walked: of sizes, the seconds of a walk over CHUNKS chunks; at least
            one. What is not there is modelled by the largest.
        waits: the host computes itself, so both times add up.
    """
    blocks, squares = CHUNKS * (CHUNKS + 1) / 2, CHUNKS ** 2 / 2

    # The device's time of the largest walk: at least what the host left over.
    # (Where both work at a time it is more; what is too large for a model of
    # the device cannot make a chunk too small.)
    largest = max(walked)
    pair = max(walked[largest] - host * blocks, 1e-12) / (
        squares * largest * largest)

    def step(rows: int) -> float:
        """Seconds of each pair of rows, with the blocks that a step has."""
        if rows in walked:
            return walked[rows] / (squares * rows * rows)
        of_host, of_device = host * blocks, pair * squares * rows * rows
        whole = of_host + of_device if waits else max(of_host, of_device)
        return whole / (squares * rows * rows)

    allowed = [rows for rows in SIZES
               if host <= HOST_SHARE * pair * rows * rows]
    # Where even the largest is too cheap for the device, nothing is better.
    allowed = allowed or [SIZES[-1]]
    least = min(step(rows) for rows in allowed)
    rows = next(rows for rows in allowed if step(rows) <= NEAR * least)
    return ChunkChoice(rows, host, pair * rows * rows)


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
    walked: dict[int, float] = {}
    for rows in SIZES:
        walked[rows] = fastest(rows, CHUNKS).whole
        if 4 * walked[rows] > BUDGET_S:
            break
    return choose(host, walked, waits)


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
        computing.await_compute(device)
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
        computing.await_compute(device)
        return _Walk(issued, clock() - start)
    finally:
        site.release()
