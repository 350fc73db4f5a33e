"""Predicts from earlier copies when compute will need the next one.

[Note: slack] The daemon lends bandwidth first to waiting copies that would be
late. The slack of a copy is the compute time between its start and the moment
when its caller asks for it: for a chunk that is prefetched, the compute of the
chunk before; for a copy to the host, the compute until the memory that the
copy holds is needed. Time in which compute waits for copies does not count, so
that a slow link does not lengthen the slack. For copies of one direction and
size the least of the recent slacks counts: a deadline that is too early costs
less than a late copy.
A copy that starts only when it is needed has no slack, and is not learned from.

The clock of a simulated GPU is the host's. The host runs ahead of a real GPU,
so there timed events are enqueued where a copy starts, where compute asks for
it, and where compute has waited for it; a later mark reads them without
waiting. If the link's speed is unknown, no copy waits for bandwidth, and no
slack is learned.
"""
from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch

from sluice.memory import compute_device

UNKNOWN = -1.0  # as sluice_engine_know_slack takes it
RECENT = 64  # copies in a window; the least of the last two windows counts
# Maximum numbers of entries: copies not asked for yet, and sizes.
_MOST_STARTED, _MOST_SIZES = 128, 256
_CLOSE = 0.1  # relative change up to which the engine keeps the old slack


class ComputeClock:
    """A clock that stands still while compute waits for copies."""

    __slots__ = ("_device", "_last", "_seconds", "_unread")

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._seconds = 0.0  # the clock's time at `_last`
        self._last: compute_device.Moment | None = None
        self._unread: deque[tuple[compute_device.Moment,
                                  Callable[[float], None] | None]] = deque()

    def mark(self, read: Callable[[float], None] | None) -> None:
        """Marks this moment of compute; `read` gets the clock's seconds once
        compute has reached it: at a later mark, or at once on a simulated GPU.
        `read` is None if the time since the previous mark was a wait for a
        copy, which the clock does not count."""
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
        """Drops all marks; the time up to the next mark is not counted."""
        self._unread.clear()
        self._last = None

    def _since_last(self, moment: compute_device.Moment) -> float:
        if self._last is None:
            return 0.0
        if isinstance(moment, float):
            return moment - self._last
        return self._last.elapsed_time(moment) / 1e3


class Slack:
    """The slack of one direction's copies ([Note: slack]), in seconds of one
    `ComputeClock`. `told` is the slack that the engine got last."""

    __slots__ = ("_least", "_started", "told")

    def __init__(self) -> None:
        self.told = UNKNOWN
        self._started: dict[int, tuple[int, float]] = {}  # by ticket
        # Size -> (least slack of this window and the previous, copies in this).
        self._least: dict[int, tuple[float, float, int]] = {}

    def of(self, nbytes: int) -> float:
        """Returns the slack of a copy of this size in seconds, or UNKNOWN."""
        lately, before, _ = self._least.get(nbytes, (UNKNOWN, UNKNOWN, 0))
        return min(lately, before)

    def is_told(self, slack: float) -> bool:
        """Returns whether the engine may keep `told` in place of `slack`."""
        told = self.told
        return told == slack or (
            min(told, slack) >= 0 and abs(told - slack) <= _CLOSE * told)

    def started(self, ticket: int, nbytes: int, now: float) -> None:
        """Notes the start of a copy that will be asked for later."""
        while len(self._started) >= _MOST_STARTED:
            del self._started[next(iter(self._started))]
        self._started[ticket] = nbytes, now

    def asked(self, ticket: int, now: float) -> None:
        """Learns the slack of a copy that compute asks for now."""
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
        self._started.clear()
