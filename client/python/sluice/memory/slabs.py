"""Slabs: the leases in which an arena's tensors lie."""

from __future__ import annotations

from sluice.base.errors import Error, Status
from sluice.memory.tensor_ranges import Books
from sluice.native.leases import Region
from sluice.native.session import Session

FIRST_SLAB_BYTES = 4 << 20
LARGEST_SLAB_BYTES = 1 << 30


class Slabs:
    """The slabs of one arena; `books` maps tensors to their bytes.

    Slabs stay leased until `fit` or `free`. Every method that leases raises
    `Error` with the daemon's line if the daemon refuses. Sizes are bytes.
    Thread safety: one thread.
    """

    def __init__(self, session: Session, books: Books) -> None:
        self._session, self._books = session, books
        self._slabs: list[Region] = []

    def __len__(self) -> int:
        return len(self._slabs)

    @property
    def nbytes(self) -> int:
        return sum(slab.nbytes for slab in self._slabs)

    def take(self, size: int) -> tuple[int, int]:
        """Takes `size` free bytes; returns (address, mark). If no slab has so
        many, leases a new one, as large as all others together, or smaller if
        the daemon has less."""
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
        """Grows or shrinks the leases to `nbytes`; see `HostArena.fit`."""
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
