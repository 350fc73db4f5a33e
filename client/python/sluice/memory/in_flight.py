"""What copies in flight keep alive, per direction.

[Note: in flight] A copy reads or writes device memory until its ticket is
reached, so the arena holds the tensor until then. Every new copy asks for the
oldest ones whether they are reached, without waiting, and lets go of those that
are; copies of one direction are in order. Only when too much is held is the
oldest waited for. On a real GPU a wait returns before the ticket is reached;
what is computed later comes after it, which is all that torch's allocator
needs, since it hands memory to later compute only.

That a ticket is reached does not say that its copy succeeded, so it does not
stand for a wait: `settled` counts waits alone.
"""

from __future__ import annotations

import collections
from collections.abc import Callable

import torch

# Asked at each copy: two keep pace with one that is added, at constant cost.
ASKED_AT_ONCE = 2


class InFlight:
    """What one direction's copies use, oldest first; see [Note: in flight]."""

    __slots__ = ("held", "nbytes", "settled")

    def __init__(self) -> None:
        # (ticket, bytes, tensor)
        self.held: collections.deque[tuple[int, int, torch.Tensor]] = (
            collections.deque())
        self.nbytes = 0
        self.settled = 0  # every ticket up to it was waited for

    def settle(self, ticket: int) -> None:
        """`ticket` was waited for: drops what older copies used."""
        if ticket > self.settled:
            self.settled = ticket
        self._let_go(ticket)

    def let_go_of_reached(self, reached: Callable[[int], bool]) -> None:
        """Drops what the oldest copies used, where they are done."""
        for _ in range(ASKED_AT_ONCE):
            if not self.held or not reached(self.held[0][0]):
                return
            self._let_go(self.held[0][0])

    def _let_go(self, ticket: int) -> None:
        held = self.held
        while held and held[0][0] <= ticket:
            self.nbytes -= held.popleft()[1]
