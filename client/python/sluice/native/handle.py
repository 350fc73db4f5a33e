"""Owns handles of the library and ends them in the right order.

[Note: ends] Each owner of a handle ends it by `weakref.finalize`, which the
interpreter also runs at its exit. Copy engines must end before their session,
and no copy may be in flight when a region is unmapped, but the garbage
collector runs the finalizers of a cycle in any order. So a session's handle
lists those of its engines (`before`) and ends them first, and freeing a region
waits for their copies. A forked child has no threads of the library and no
leased memory: there finalizers do nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from sluice.base.errors import Error, Status


class Handle:
    """A handle of the library and the function that ends it; see [Note: ends].

    Attributes:
        value: the handle; 0 (NULL, which the library refuses) after its end.
        before: handles to end before this one.
    """

    __slots__ = ("value", "before", "_end", "_owner")

    def __init__(self, value: int | None, end: Callable[[int], None]) -> None:
        self.value = value or 0  # ctypes reads NULL as None
        self.before: list[Handle] = []
        self._end = end
        self._owner = os.getpid()

    def end_after(self, other: Handle) -> None:
        self.before = [h for h in self.before if h.value] + [other]

    def end(self) -> None:
        """Ends the handle; idempotent."""
        value, self.value = self.value, 0
        if value and self.ours():
            for handle in self.before:
                handle.end()
            self._end(value)

    def ours(self) -> bool:
        """Returns whether this process made the handle: False in a forked
        child."""
        return os.getpid() == self._owner


def forked(what: str) -> Error:
    return Error(Status.FAILED_PRECONDITION,
                 f"{what} belongs to the process that opened it, a forked "
                 "child has none of its memory or threads: open a Session in "
                 "the child, or start it by spawn")
