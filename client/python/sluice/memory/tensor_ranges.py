"""Which bytes of the slabs each tensor has: those that live, and free ranges.

[Note: interrupted books] Ctrl-C may come between any two lines. So what is
true stands in two places alone, each written in one step: the arena's slabs,
and which tensors live where (`_held`). Free ranges and sums follow from
that, and `rebuild` makes them anew where a change of them was cut short.

A tensor that nothing refers to any more has no bytes: an interrupt may come
when `put` is over and its caller has not kept yet what it got.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable

from sluice.memory.free_ranges import FreeRanges, rounded
from sluice.memory.host_tensor import HostTensor


class Books:
    """Books of one arena; sizes are bytes. Thread safety: one thread.

    Attributes: `used_bytes` and `peak_bytes` count numel x itemsize of the
    tensors that live, exactly.
    """

    def __init__(self) -> None:
        self.used_bytes = self.peak_bytes = 0
        self.free = FreeRanges()
        # By address: the tensor, and its bytes.
        self._held: dict[int, tuple[weakref.ref[HostTensor], int]] = {}
        # References of tensors that nothing holds; a reference of one that was
        # dropped is gone before, and never comes here.
        self._dead: deque[weakref.ref[HostTensor]] = deque()

    def keep(self, host: HostTensor) -> None:
        """`host` lives in bytes that were taken from `free`."""
        self._held[host._address] = (weakref.ref(host, self._dead.append),
                                     host.nbytes)
        self.used_bytes += host.nbytes
        if self.used_bytes > self.peak_bytes:
            self.peak_bytes = self.used_bytes

    def drop(self, host: HostTensor) -> None:
        """`host` lives no longer; a copy may read its bytes still."""
        host._live = None
        del self._held[host._address]
        self.used_bytes -= host.nbytes
        self.free.give(host._address, rounded(host.nbytes), host._read)

    def has_lost(self) -> bool:
        """Whether tensors went without a `drop`, so that `rebuild` is due."""
        return bool(self._dead)

    def rebuild(self, slabs: Iterable[tuple[int, int]], mark: int) -> None:
        """All of it, from the slabs and the tensors that live.

        Args:
            slabs: start and size of each.
            mark: of the free ranges: the last ticket of a copy that may read
                any of them.
        """
        self._dead.clear()  # first: tensors that die meanwhile are found again
        held, taken = {}, []
        for address, (reference, nbytes) in self._held.items():
            host = reference()
            if host is not None and host._live is not None:
                held[address] = reference, nbytes
                taken.append((address, rounded(nbytes)))
        self.free = FreeRanges.around(slabs, sorted(taken), mark)
        self.used_bytes = sum(nbytes for _, nbytes in held.values())
        self._held = held
