"""Reports a stream's progress on stderr. The threads that run the model only
note the position. Another thread reads it once a second and prints lines: every
few seconds in a long step, and, on every rank, if nothing has moved for longer
than a limit, as when another rank is gone."""
from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

import torch.distributed as dist
from torch import nn

from sluice.ranks.board import failed_rank, start_looking

LONG_S = 20.0  # seconds of a step before its first line
EVERY_S = 10.0  # seconds between two lines of a step
LOOK_S = 1.0  # seconds between two reads of the position

Direction = Literal["forward", "backward"]


class Place(NamedTuple):
    step: weakref.ref  # dead if the step has ended or failed
    direction: Direction
    layer: int
    chunk: int
    chunks: int
    began: float  # start of the step, in seconds of the clock
    moved: float  # time of the move to this place


class Progress:
    """The progress of one stream. The threads that run the model, one at a
    time, call `move`, `done` and `idle`; another thread calls `look`. All
    replace or read `_place` as a whole, so that no lock is needed."""

    def __init__(self, layers: Iterable[nn.Module], stalled_s: float,
                 clock: Callable[[], float] = time.monotonic,
                 say: Callable[[str], None] | None = None):
        self._index = {layer: i for i, layer in enumerate(layers)}
        self._stalled_s, self._clock = stalled_s, clock
        self._say = say or _to_stderr
        self._place: Place | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        # Used only by the thread that calls `look`.
        self._said = float("-inf")  # time of its last progress line
        self._stuck: Place | None = None  # last reported as stalled
        self._again = 0.0  # seconds of stall until `_stuck` is reported again

    def move(self, step: Any, direction: Direction, layer: nn.Module,
             chunk: int) -> None:
        last, now = self._place, self._clock()
        same = last is not None and last.step() is step
        self._place = Place(last.step if same else weakref.ref(step), direction,
                            self._index.get(layer, 0), chunk, len(step.chunks),
                            last.began if same else now, now)
        if self._thread is None:
            self._thread = start_looking(self, LOOK_S, self._ended,
                                         "sluice progress")

    def done(self, layer: nn.Module) -> None:
        """Notes the end of a layer's backward; layer 0's ends the step."""
        if self._index.get(layer) == 0:
            self.idle()

    def idle(self) -> None:
        """Notes that the user's own code runs from now on."""
        self._place = None

    def close(self) -> None:
        self.idle()
        self._ended.set()

    def look(self) -> None:
        place = self._place
        if place is None or place.step() is None:
            return
        now, (rank, world) = self._clock(), _rank()
        still = now - place.moved
        where = (f"{place.direction}, layer {place.layer + 1} of "
                 f"{len(self._index)}, chunk {place.chunk + 1} of "
                 f"{place.chunks}")
        if still >= self._stalled_s:
            if self._stuck is not place or still >= self._again:
                self._stuck, self._again = place, 2 * still
                # The other rank may have failed long before this one began to
                # wait for it, but not before the step.
                why = failed_rank(time.time() - (now - place.began))
                self._say(f"sluice: rank {rank} of {world}: nothing has moved "
                          f"for {still:.0f} s: {where}"
                          + (f"; {why}" if why else ""))
        elif rank == 0 and now - place.began >= LONG_S and (
                now - self._said >= EVERY_S):
            self._said = now
            self._say(f"sluice: {where}, {now - place.began:.0f} s")


def _rank() -> tuple[int, int]:
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
