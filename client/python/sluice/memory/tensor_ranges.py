"""Maps tensors to ranges of the slabs' bytes and tracks the free ranges.

[Note: interrupted books] Ctrl-C may come between any two lines. So only two
records count, each written in one step: the arena's slabs, and the addresses
of living tensors (`_held`). Free ranges and sums follow from them, and
`rebuild` computes them again after an interrupted change.

A tensor that nothing refers to loses its bytes: an interrupt may come after
`put` has returned and before its caller has stored the result.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable

from sluice.memory.free_ranges import FreeRanges, rounded
from sluice.memory.host_tensor import HostTensor


class Books:
    """Living tensors and free ranges of one arena; sizes are bytes.

    Attributes: `used_bytes` and `peak_bytes` count numel x itemsize of the
    living tensors, exactly.

    Thread safety: one thread.
    """

    def __init__(self) -> None:
        self.used_bytes = self.peak_bytes = 0
        self.free = FreeRanges()
        # By address: the tensor and its bytes.
        self._held: dict[int, tuple[weakref.ref[HostTensor], int]] = {}
        # References to tensors that were collected without `drop`. (`drop`
        # deletes the reference, so that it never gets here.)
        self._dead: deque[weakref.ref[HostTensor]] = deque()

    def keep(self, host: HostTensor) -> None:
        """Records `host`, in bytes that were taken from `free`."""
        self._held[host._address] = (weakref.ref(host, self._dead.append),
                                     host.nbytes)
        self.used_bytes += host.nbytes
        if self.used_bytes > self.peak_bytes:
            self.peak_bytes = self.used_bytes

    def drop(self, host: HostTensor) -> None:
        """Removes `host` and frees its bytes, which a copy may still read."""
        host._live = None
        del self._held[host._address]
        self.used_bytes -= host.nbytes
        self.free.give(host._address, rounded(host.nbytes), host._read)

    def has_lost(self) -> bool:
        """Returns whether tensors died without `drop`: `rebuild` is due."""
        return bool(self._dead)

    def rebuild(self, slabs: Iterable[tuple[int, int]], mark: int) -> None:
        """Recomputes free ranges and sums from the slabs and living tensors.

        Args:
            slabs: (start, size) of each slab.
            mark: last ticket of a copy that may read any free range.
        """
        self._dead.clear()  # first: tensors that die below must stay noted
        held, taken = {}, []
        for address, (reference, nbytes) in self._held.items():
            host = reference()
            if host is not None and host._live is not None:
                held[address] = reference, nbytes
                taken.append((address, rounded(nbytes)))
        self.free = FreeRanges.around(slabs, sorted(taken), mark)
        self.used_bytes = sum(nbytes for _, nbytes in held.values())
        self._held = held
