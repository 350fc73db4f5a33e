"""Slabs, the leases in which an arena's tensors lie, and the tensors in them.

[Note: interrupted books] Ctrl-C may come between any two lines of code. So only
two records count, each written in one step: the arena's slabs, and the
addresses of living tensors (`_held`). Free ranges and sums follow from these
two, and `rebuild` computes them again after an interrupted change.

The bytes of a tensor that nothing refers to are freed, because an interrupt may
come after `put` has returned and before its caller has stored the result.
"""
from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable

import torch

from sluice.base.errors import Error, Status
from sluice.memory.free_ranges import FreeRanges, rounded
from sluice.native.leases import Region
from sluice.native.session import Session

FIRST_SLAB_BYTES = 4 << 20
LARGEST_SLAB_BYTES = 1 << 30


class HostTensor:
    """A tensor's bytes in an arena, contiguous, held until `HostArena.drop` or
    until nothing refers to this object. Only the arena reads or writes them."""

    __slots__ = ("shape", "dtype", "nbytes", "_live", "_address", "_written",
                 "_read", "_ahead", "_stream", "__weakref__")

    def __init__(self, shape: torch.Size, dtype: torch.dtype, nbytes: int,
                 address: int, live: object) -> None:
        self.shape = shape
        self.dtype = dtype
        self.nbytes = nbytes
        self._live = live  # the arena's mark; None after `drop`
        self._address = address
        self._written = 0  # ticket of the last copy into it
        self._read = 0  # ticket of the last copy out of it
        self._ahead: torch.Tensor | None = None  # the prefetched tensor
        self._stream: int | None = None  # torch's stream of the prefetch

    def __repr__(self) -> str:
        state = "" if self._live else ", dropped"
        return f"<HostTensor {list(self.shape)} {self.dtype}{state}>"


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the values, detached and contiguous; a copy only if needed."""
    if tensor.requires_grad:
        tensor = tensor.detach()  # holding it must not hold its graph
    if tensor.is_conj() or tensor.is_neg():  # the bytes are not the values
        tensor = tensor.resolve_conj().resolve_neg()
    return tensor.contiguous()


class Books:
    """Living tensors and free ranges of one arena; `used_bytes`, `peak_bytes`
    count tensors' bytes. Thread safety: one thread at a time."""

    def __init__(self) -> None:
        self.used_bytes = self.peak_bytes = 0
        self.free = FreeRanges()
        # By address: the tensor and its bytes.
        self._held: dict[int, tuple[weakref.ref[HostTensor], int]] = {}
        # References to tensors that died without `drop`.
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
        """Recomputes free ranges and sums from slabs (start, size) and living
        tensors. `mark`: last ticket of a copy that may read any free range."""
        self._dead.clear()  # before the loop: tensors that die in it stay noted
        held, taken = {}, []
        for address, (reference, nbytes) in self._held.items():
            host = reference()
            if host is not None and host._live is not None:
                held[address] = reference, nbytes
                taken.append((address, rounded(nbytes)))
        self.free = FreeRanges.around(slabs, sorted(taken), mark)
        self.used_bytes = sum(nbytes for _, nbytes in held.values())
        self._held = held


class Slabs:
    """The slabs of one arena, leased until `fit` or `free`. Leasing raises the
    daemon's `Error`. Sizes are bytes. Thread safety: one thread at a time."""

    def __init__(self, session: Session, books: Books) -> None:
        self._session, self._books = session, books
        self._slabs: list[Region] = []

    @property
    def nbytes(self) -> int:
        return sum(slab.nbytes for slab in self._slabs)

    def take(self, size: int) -> tuple[int, int]:
        """Takes `size` free bytes; returns (address, mark). If no range fits,
        leases a slab as large as all others together, or a smaller one."""
        found = self._books.free.take(size)
        if found is not None:
            return found
        want = max(size, min(max(self.nbytes, FIRST_SLAB_BYTES),
                             LARGEST_SLAB_BYTES))
        while True:
            try:
                self._lease(want, None if want == size else 0)
                found = self._books.free.take(size)
                assert found is not None
                return found
            except Error as error:
                if error.status != Status.RESOURCE_EXHAUSTED or want == size:
                    raise
                want = max(size, want // 4)

    def reserve(self, nbytes: int) -> None:
        if nbytes > self.nbytes:
            self._lease(nbytes - self.nbytes)

    def fit(self, nbytes: int) -> None:
        unit = self._session.limits().granularity_bytes
        missing = nbytes - self.nbytes
        if missing > -unit:
            if missing > 0:
                self._lease(missing)
            return
        if self._books.used_bytes:
            raise Error(Status.FAILED_PRECONDITION,
                        f"fit: {self._books.used_bytes} bytes are held: give "
                        "them back before")
        self._session.check_connected()
        while self._slabs:
            self._slabs.pop().free()
        self.rebuild_books(0)
        if nbytes:
            self._lease(nbytes)

    def rebuild_books(self, mark: int) -> None:
        self._books.rebuild([(slab.address, slab.nbytes)
                             for slab in self._slabs], mark)

    def free(self) -> None:
        """Gives all slabs back; the books are invalid afterwards."""
        for slab in self._slabs:
            slab.free()
        self._slabs.clear()

    def _lease(self, nbytes: int, wait_s: float | None = None) -> None:
        slab = self._session.lease_host(nbytes, wait_s=wait_s)
        self._slabs.append(slab)
        self._books.free.add_slab(slab.address, slab.nbytes)
