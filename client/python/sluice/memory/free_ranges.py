"""Best-fit allocator of free address ranges.

[Note: interrupted books] Ctrl-C may come between any two lines of code. A range
that one table of `FreeRanges` has and another lacks could be handed out twice,
and two tensors would share its bytes. So a flag marks the tables inconsistent
while they change. If a change was interrupted, the object refuses later calls,
and its owner (slabs, slots) replaces it by a new object, made by `around`.
"""
from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence

from sluice.base.errors import Error, Status

ALIGNMENT = 64  # bytes: a cache line, and more than any dtype needs


def rounded(nbytes: int) -> int:
    return (nbytes + ALIGNMENT - 1) & -ALIGNMENT


class FreeRanges:
    """Free ranges of the slabs; allocates best fit and merges neighbours at
    once, so that a slab without tensors is one range. A range has a mark, the
    last ticket of a copy that may still read it; a merged range has the larger
    mark. Sizes are bytes, multiples of ALIGNMENT. `take` and `give` are O(log
    ranges) but for shifting `_by_size`. Thread safety: one thread at a time."""

    def __init__(self) -> None:
        self._by_start: dict[int, tuple[int, int]] = {}  # -> (size, mark)
        self._start_of_end: dict[int, int] = {}
        self._by_size: list[tuple[int, int]] = []  # (size, start), sorted
        # Adjacent slabs are still separate mappings: no range may span both.
        self._slab_starts: set[int] = set()
        self._whole = True  # see [Note: interrupted books]

    @classmethod
    def around(cls, slabs: Iterable[tuple[int, int]],
               taken: Sequence[tuple[int, int]], mark: int) -> FreeRanges:
        """Returns the free ranges of `slabs` without `taken`, (start, size) in
        the order of addresses; every range gets `mark`."""
        made = cls()
        for start, size in slabs:
            made._slab_starts.add(start)
            end, at = start + size, start
            first, last = (bisect.bisect_left(taken, (bound, 0))
                           for bound in (start, end))
            for address, length in [*taken[first:last], (end, 0)]:
                if address > at:
                    made._insert(at, address - at, mark)
                at = address + length
        return made

    def add_slab(self, start: int, size: int) -> None:
        self._open()
        self._slab_starts.add(start)
        self._insert(start, size, 0)
        self._whole = True

    def take(self, size: int) -> tuple[int, int] | None:
        """Takes `size` bytes; returns (address, mark), or None if none fits."""
        self._open()
        at = bisect.bisect_left(self._by_size, (size, 0))
        if at == len(self._by_size):
            self._whole = True
            return None
        found, start = self._by_size[at]
        mark = self._remove(at)
        if found > size:
            self._insert(start + size, found - size, mark)
        self._whole = True
        return start, mark

    def give(self, start: int, size: int, mark: int) -> None:
        self._open()
        end = start + size
        if end in self._by_start and end not in self._slab_starts:
            length, other = self._by_start[end]
            self._remove(bisect.bisect_left(self._by_size, (length, end)))
            size, mark = size + length, max(mark, other)
        before = self._start_of_end.get(start)
        if before is not None and start not in self._slab_starts:
            length, other = self._by_start[before]
            self._remove(bisect.bisect_left(self._by_size, (length, before)))
            start, size, mark = before, size + length, max(mark, other)
        self._insert(start, size, mark)
        self._whole = True

    def ranges(self) -> list[tuple[int, int]]:
        """Returns (start, size) of every free range, by address."""
        return sorted((start, size) for size, start in self._by_size)

    def _open(self) -> None:
        if not self._whole:
            raise Error(Status.FAILED_PRECONDITION, "an interrupt came while "
                        "host memory was taken or given back, and which of it "
                        "is free is not known any more: call unstream(), and "
                        "stream the model again")
        self._whole = False

    def _insert(self, start: int, size: int, mark: int) -> None:
        self._by_start[start] = size, mark
        self._start_of_end[start + size] = start
        bisect.insort(self._by_size, (size, start))

    def _remove(self, at: int) -> int:
        size, start = self._by_size.pop(at)
        del self._start_of_end[start + size]
        return self._by_start.pop(start)[1]
