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

The clock is the host's. A host that runs ahead of a GPU passes there long before
compute does, so on a real GPU nothing is learned or told. Nor is it where the
speed of the link is not known, for there no copy waits for bandwidth.
"""

from __future__ import annotations

from time import perf_counter

UNKNOWN = -1.0  # as sluice_engine_know_slack takes it
RECENT = 64  # copies of a size, after which what was before those is forgotten
# Kept at most: copies that were not asked for yet, and sizes.
_MOST_STARTED, _MOST_SIZES = 128, 256
_CLOSE = 0.1  # of a time that was told: no need to tell another


class ComputeClock:
    """Seconds in which compute did not wait for copies."""

    __slots__ = ("waited",)

    def __init__(self) -> None:
        self.waited = 0.0  # seconds, of compute for copies

    def now(self) -> float:
        return perf_counter() - self.waited


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
