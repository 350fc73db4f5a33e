"""What copies in flight keep alive, per direction.

[Note: in flight] A copy reads or writes device memory until its ticket is
reached, so the arena holds the tensor until then. C ABI 1 can wait for a
ticket but not ask whether it is reached, and copies of one direction are in
order: a wait for one ticket settles all older ones of its direction. So what
is held is dropped after a wait that was needed anyway, and otherwise, when it
becomes too much, after a wait for the oldest. On a real GPU a wait returns
before the ticket is reached; what is computed later comes after it, which is
all that torch's allocator needs, since it hands memory to later compute only.
"""

from __future__ import annotations

import collections

import torch

__all__ = ["InFlight"]


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
        held = self.held
        while held and held[0][0] <= ticket:
            self.nbytes -= held.popleft()[1]
