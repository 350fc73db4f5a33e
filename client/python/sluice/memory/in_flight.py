"""Tensors that the copies in flight of one direction keep alive.

[Note: in flight] A copy reads or writes device memory until its ticket is
reached, so the arena holds the tensor until then. Every new copy checks,
without waiting, whether the oldest ones are reached, and releases their
tensors; copies of one direction run in order. Only if they keep too much
memory alive does `Copies` wait for the oldest copy. On a real GPU a wait
returns before the ticket is reached, but later compute is ordered after it.
That is enough for torch's allocator, which gives memory to later compute only.

A ticket is also reached if its copy has failed, and only a wait reports that.
So `settled` counts only tickets that were waited for.
"""

from __future__ import annotations

import collections
from collections.abc import Callable

import torch

# Tickets checked per new copy: two keep pace with one new copy, at a constant
# cost.
ASKED_AT_ONCE = 2


class InFlight:
    """Tensors of one direction's copies, oldest first; [Note: in flight]."""

    __slots__ = ("held", "nbytes", "settled")

    def __init__(self) -> None:
        # (ticket, bytes, tensor)
        self.held: collections.deque[tuple[int, int, torch.Tensor]] = (
            collections.deque())
        self.nbytes = 0
        self.settled = 0  # all tickets up to this one were waited for

    def settle(self, ticket: int) -> None:
        """Notes that `ticket` was waited for, and releases the tensors of all
        copies up to it."""
        if ticket > self.settled:
            self.settled = ticket
        self._let_go(ticket)

    def let_go_of_reached(self, reached: Callable[[int], bool]) -> None:
        """Releases the tensors of the oldest copies if they are done."""
        for _ in range(ASKED_AT_ONCE):
            if not self.held or not reached(self.held[0][0]):
                return
            self._let_go(self.held[0][0])

    def _let_go(self, ticket: int) -> None:
        held = self.held
        while held and held[0][0] <= ticket:
            self.nbytes -= held.popleft()[1]
