"""By when compute needs a copy: learned from the copies before it.

[Note: slack] While a copy waits for bandwidth, the daemon is told by when it is
needed, and lends first to copies that would be late. A copy may take as long as
its caller computes between starting it and asking for it: with one chunk fetched
ahead, the compute of the chunk before; to the host, what is computed until the
memory that it holds is wanted back. That is measured, without the time in which
compute itself waits for copies, so that a link that is slow today puts nothing
off. Among copies alike, in direction and size, the least of late counts: a time
that is told too early costs less than a copy that comes too late. What is asked
for without having been fetched ahead is needed at once, and teaches nothing.

The clock of a simulated GPU is the host's. The host runs ahead of a real GPU, so
there a timed event is enqueued where a copy starts, where compute asks for it and
where compute has waited for it, and is read at a later one without waiting. Where
the speed of the link is not known nothing is learned or told, for there no copy
waits for bandwidth.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch

from sluice.memory import compute_device

UNKNOWN = -1.0  # as sluice_engine_know_slack takes it
RECENT = 64  # copies of a size, after which what was before those is forgotten
# Kept at most: copies that were not asked for yet, and sizes.
_MOST_STARTED, _MOST_SIZES = 128, 256
_CLOSE = 0.1  # of a time that was told: no need to tell another


class ComputeClock:
    """Counts the seconds in which compute did not wait for copies."""

    __slots__ = ("_device", "_last", "_seconds", "_unread")

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._seconds = 0.0  # up to `_last`
        self._last: compute_device.Moment | None = None
        self._unread: deque[tuple[compute_device.Moment,
                                  Callable[[float], None] | None]] = deque()

    def mark(self, read: Callable[[float], None] | None) -> None:
        """Marks this moment of compute.

        Args:
            read: called with the seconds so far once compute has reached the
                moment: at a later mark, on a simulated GPU at once. None ends
                a wait that began at the mark before.
        """
        unread = self._unread
        unread.append((compute_device.now(self._device), read))
        while unread:
            moment, read = unread[0]
            if not isinstance(moment, float) and not moment.query():
                return
            unread.popleft()
            if read is not None:
                self._seconds += self._since_last(moment)
                read(self._seconds)
            self._last = moment

    def forget(self) -> None:
        """Drops what was marked."""
        self._unread.clear()
        self._last = None

    def _since_last(self, moment: compute_device.Moment) -> float:
        if self._last is None:
            return 0.0
        if isinstance(moment, float):
            return moment - self._last
        return self._last.elapsed_time(moment) / 1e3


class Slack:
    """The slack of one direction's copies; see [Note: slack]. Times are of one
    clock.

    Attributes: `told`, what the engine knows of the copies that start now.
    """

    __slots__ = ("_least", "_started", "told")

    def __init__(self) -> None:
        self.told = UNKNOWN
        self._started: dict[int, tuple[int, float]] = {}  # by ticket
        # By size: the least of those lately, of the RECENT before, how many.
        self._least: dict[int, tuple[float, float, int]] = {}

    def of(self, nbytes: int) -> float:
        """Seconds that a copy of this size has, or UNKNOWN."""
        lately, before, _ = self._least.get(nbytes, (UNKNOWN, UNKNOWN, 0))
        return min(lately, before)

    def is_told(self, slack: float) -> bool:
        """Whether what was told stands for `slack`."""
        told = self.told
        return told == slack or (
            min(told, slack) >= 0 and abs(told - slack) <= _CLOSE * told)

    def started(self, ticket: int, nbytes: int, now: float) -> None:
        """A copy that will be asked for later."""
        while len(self._started) >= _MOST_STARTED:
            del self._started[next(iter(self._started))]
        self._started[ticket] = nbytes, now

    def asked(self, ticket: int, now: float) -> None:
        """Compute has come to it."""
        nbytes, began = self._started.pop(ticket, (0, 0.0))
        if not nbytes:
            return
        slack = max(0.0, now - began)
        if nbytes not in self._least and len(self._least) >= _MOST_SIZES:
            self._least.clear()
        lately, before, count = self._least.get(nbytes, (slack, slack, 0))
        if count == RECENT:
            lately, before, count = slack, lately, 0
        self._least[nbytes] = min(lately, slack), before, count + 1

    def forget_started(self) -> None:
        """Copies that have started will not be asked for any more."""
        self._started.clear()
