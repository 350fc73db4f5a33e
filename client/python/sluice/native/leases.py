"""Handles of the library, leased memory regions, and a session's copy engine.

[Note: ends] Each owner of a handle ends it by `weakref.finalize`, which the
interpreter also runs at its exit. Copy engines must end before their session,
and no copy may be in flight when a region is unmapped, but the garbage
collector runs the finalizers of a cycle in any order. So a session's handle
lists those of its engines (`before`) and ends them first, and freeing a region
waits for their copies. A forked child has no threads of the library and no
leased memory: there finalizers do nothing.
"""
from __future__ import annotations

import ctypes
import dataclasses
import functools
import os
import weakref
from collections.abc import Callable
from typing import Any

from sluice.base.errors import Error, Status
from sluice.native import abi


class Handle:
    """A handle and the function that ends it; see [Note: ends]."""

    __slots__ = ("value", "before", "_end", "_owner")

    def __init__(self, value: int | None, end: Callable[[int], None]) -> None:
        # 0 after `end`: the library refuses 0. ctypes reads NULL as None.
        self.value = value or 0
        self.before: list[Handle] = []  # to end before this one
        self._end = end
        self._owner = os.getpid()

    def end_after(self, other: Handle) -> None:
        self.before = [h for h in self.before if h.value] + [other]

    def end(self) -> None:
        value, self.value = self.value, 0
        if value and self.ours():
            for handle in self.before:
                handle.end()
            self._end(value)

    def ours(self) -> bool:
        """Returns False in a forked child of the process that made this."""
        return os.getpid() == self._owner


def forked(what: str) -> Error:
    return Error(Status.FAILED_PRECONDITION,
                 f"{what} belongs to the process that opened it, a forked "
                 "child has none of its memory or threads: open a Session in "
                 "the child, or start it by spawn")


@dataclasses.dataclass(frozen=True)
class CopyStats:
    """Totals of one engine since its start."""

    host_to_gpu_bytes: int
    gpu_to_host_bytes: int
    grant_wait_seconds: float  # time that copies waited for bandwidth
    stall_seconds: float  # time that compute waited for copies


class Region:
    """A lease, mapped as one address range; freed with the object. It may
    outlive the session's close: the range stays readable, but the daemon counts
    it as returned.

    Attributes:
        address: address of the first byte; not mapped in a forked child.
        nbytes: size asked for, rounded up to the granularity.
    """

    def __init__(self, session: Any, kind: int, nbytes: int,
                 wait_s: float = 0.0) -> None:
        library = session._library
        leased = ctypes.c_void_p()
        library.check(library.region_lease_within(
            session._value(), kind, nbytes, wait_s, ctypes.byref(leased)))
        self.session = session
        self.address: int = library.region_data(leased)
        self.nbytes: int = library.region_size(leased)
        self.handle = Handle(leased.value, functools.partial(
            _free_region, library, session._handle))
        # Not run at exit, because the end of the process unmaps the region.
        self._end = weakref.finalize(self, self.handle.end)
        self._end.atexit = False

    def free(self) -> None:
        """Waits for the engines' copies, then unmaps the region; idempotent."""
        self._end()


def _free_region(library: abi.Library, session: Handle, region: int) -> None:
    for engine in session.before:
        if engine.value:
            library.engine_drain(engine.value)  # `wait` reports failures
    library.region_free(region)


class Engine:
    """Copies in both directions for a session, ordered by tickets: positive
    numbers, reached per direction in the order of issue. Callers make the
    frequent calls directly on the library, with buffers of their own. Thread
    safety: one thread at a time, the one that computes."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self.library = session._library
        started = ctypes.c_void_p()
        self.library.check(self.library.engine_start(session._value(),
                                                     ctypes.byref(started)))
        self.handle = Handle(started.value, self.library.engine_stop)
        self._end = weakref.finalize(self, self.handle.end)
        session._handle.end_after(self.handle)
        self.ended = ("the arena of this memory is closed: nothing can be "
                      "copied any more")  # error text after `stop`
        self.stopped = False  # whether `stop`, not the session's end, ended it

    def error(self, status: int) -> Error:
        """Returns the error for a call on this engine that failed."""
        if not self.handle.ours():
            return forked("the copy engine")
        if not self.handle.value:
            return Error(Status.FAILED_PRECONDITION, (
                "the session of this memory is closed: let backward() run "
                "before Session.close(); to go on, unstream() and stream the "
                "model in a session that is open"
            ) if self.session.closed and not self.stopped else self.ended)
        return self.library.error(status)

    def drain(self) -> None:
        """Waits until all copies are done; raises the first failure."""
        if not self.handle.ours():
            raise forked("the copy engine")
        status = self.library.engine_drain(self.handle.value)
        if status:
            raise self.error(status)

    def stats(self) -> CopyStats:
        if not self.handle.ours():
            raise forked("the copy engine")
        told = abi.CopyStats()
        status = self.library.engine_stats(self.handle.value,
                                           ctypes.byref(told))
        if status:
            raise self.error(status)
        return CopyStats(told.host_to_gpu_bytes, told.gpu_to_host_bytes,
                         told.grant_wait_seconds, told.stall_seconds)

    def stop(self) -> None:
        """Waits for copies in flight, then ends the engine; idempotent."""
        self.stopped |= self.handle.value != 0
        self._end()
