"""Starts copies between host memory and tensors, and keeps tensors alive.

[Note: reuse] A copy to the device may still read a host range that was dropped.
So the range is marked with that copy's ticket, and the next copy that fills the
range starts after it. Copies to the host run in order.

[Note: in flight] A copy uses device memory until its ticket is reached, so its
tensor is held until then. The start of a copy checks, without waiting, whether
the oldest tickets are reached, and releases their tensors; copies of one
direction run in order. If copies keep too much memory alive, `Copies` waits for
the oldest. On a real GPU a wait returns before the ticket is reached, but later
compute is ordered after it. That is enough for torch's allocator, which gives
memory to later compute only. A ticket is also reached if its copy has failed,
and only a wait reports that. So `settled` counts only tickets that were waited
for.
"""
from __future__ import annotations

import collections
import ctypes
import functools
import weakref
from collections.abc import Callable

import torch

from sluice.memory import compute_device
from sluice.memory.copy_deadlines import ComputeClock, Slack
from sluice.native.abi import GPU_TO_HOST, HOST_TO_GPU
from sluice.native.leases import Engine
from sluice.native.session import Session

# Limits, per direction, of what running copies keep alive. Two copies of any
# size may run, so that large ones overlap.
IN_FLIGHT_COPIES = 64
IN_FLIGHT_BYTES = 2 << 20
# Tickets checked per new copy, more than one so that the checks catch up.
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
        """Notes that `ticket` was waited for; releases tensors up to it."""
        if ticket > self.settled:
            self.settled = ticket
        self._let_go(ticket)

    def let_go_of_reached(self, reached: Callable[[int], bool]) -> None:
        for _ in range(ASKED_AT_ONCE):
            if not self.held or not reached(self.held[0][0]):
                return
            self._let_go(self.held[0][0])

    def _let_go(self, ticket: int) -> None:
        held = self.held
        while held and held[0][0] <= ticket:
            self.nbytes -= held.popleft()[1]


class Copies:
    """Copies of one engine. `start`, `wait` and `drain` may raise the error of
    an earlier copy that failed. `count` is the number of started copies,
    `in_flight` has an entry per direction, `device` is the tensors' device, and
    `stream` is torch's stream that computes, None before the first copy and if
    the GPU is simulated. Thread safety: only the thread that computes."""

    def __init__(self, session: Session, most_bytes: int) -> None:
        self.count = 0
        self.device = compute_device.device_of(session)
        self.stream: int | None = None
        self._follows = self.device.type != "cpu"
        # Ended before the tensors below are freed: [Note: ends] in leases.
        self.engine = Engine(session)
        self._library = self.engine.library
        self._handle = self.engine.handle
        weakref.finalize(self, self._handle.end)
        self.in_flight = (InFlight(), InFlight())
        self._most_bytes = most_bytes
        self._clock = ComputeClock(self.device)
        # Slack is learned only where copies wait for bandwidth.
        limits = session.limits()
        self._learns = max(limits.h2d_bytes_per_second,
                           limits.d2h_bytes_per_second) > 0
        self._slack = (Slack(), Slack())
        # Buffers for starting one copy: its tensor, the tickets that it waits
        # for (first the compute so far), and its own ticket.
        self._starting: torch.Tensor | None = None
        self._after = (ctypes.c_uint64 * 2)()
        self._after_ref = ctypes.byref(self._after)
        self._ticket = ctypes.c_uint64()
        self._ticket_ref = ctypes.byref(self._ticket)
        self._reached = ctypes.c_int()
        self._reached_ref = ctypes.byref(self._reached)

    def start(self, direction: int, address: int, tensor: torch.Tensor,
              nbytes: int, behind: int, at_once: bool = False) -> int:
        """Starts one copy between the host's `address` and `tensor`; returns
        its ticket. The copy runs after ticket `behind` of the other direction.
        `at_once`: the caller waits for it next."""
        library, engine = self._library, self._handle.value
        if self._follows:
            self._follow()
        # Hold the tensor first: an interrupt may come between these lines.
        self._starting = tensor
        status = library.engine_mark_compute(engine, self._after_ref)
        count = 1
        if behind > self.in_flight[1 - direction].settled:
            self._after[1] = behind
            count = 2
        if self._learns and not status:
            status = self._tell_slack(direction, nbytes, at_once)
        to, source = address, tensor.data_ptr()
        if direction == HOST_TO_GPU:
            to, source = source, to
        status = status or library.engine_copy(
            engine, direction, to, source, nbytes, self._after_ref, count,
            self._ticket_ref)
        if status:
            self._starting = None
            raise self.engine.error(status)
        self.count += 1
        ticket = self._ticket.value
        flight = self.in_flight[direction]
        flight.let_go_of_reached(self.is_reached)
        flight.held.append((ticket, nbytes, tensor))
        flight.nbytes += nbytes
        self._starting = None
        if self._learns and not at_once:
            self._clock.mark(functools.partial(
                self._slack[direction].started, ticket, nbytes))
        if flight.nbytes > self._most_bytes or (
                len(flight.held) > IN_FLIGHT_COPIES):
            self._thin(direction)
        return ticket

    def is_reached(self, ticket: int) -> bool:
        """Returns whether the copy has ended or failed. Never waits."""
        status = self._library.engine_reached(self._handle.value, ticket,
                                              self._reached_ref)
        if status:
            raise self.engine.error(status)
        return bool(self._reached.value)

    def wait(self, direction: int, ticket: int) -> None:
        if self._follows:
            self._follow()
        if self._learns:
            self._clock.mark(functools.partial(self._slack[direction].asked,
                                               ticket))
        flight = self.in_flight[direction]
        if ticket > flight.settled:
            status = self._library.engine_wait(self._handle.value, ticket)
            if self._learns:
                self._clock.mark(None)
            if status:
                raise self.engine.error(status)
        flight.settle(ticket)

    def last_read(self) -> int:
        """Returns the last ticket of a running copy to the device, or 0."""
        held = self.in_flight[HOST_TO_GPU].held
        return held[-1][0] if held else 0

    def settled(self, written: int) -> None:
        """Notes that the copy with the ticket `written` is done."""
        self.in_flight[GPU_TO_HOST].settle(written)

    def drain(self) -> None:
        """Waits for all copies, also after an interrupt in `start`."""
        self.engine.drain()
        for direction in self.in_flight:
            if direction.held:
                direction.settle(direction.held[-1][0])
        self.forget()

    def forget(self) -> None:
        """Releases all tensors; no copy may be running."""
        self._starting = None
        for direction in self.in_flight:
            direction.held.clear()
            direction.nbytes = 0
        self._clock.forget()
        for slack in self._slack:
            slack.forget_started()

    def _tell_slack(self, direction: int, nbytes: int, at_once: bool) -> int:
        """Tells the engine the next copy's slack; returns the status."""
        known = self._slack[direction]
        slack = 0.0 if at_once else known.of(nbytes)
        if known.is_told(slack):
            return 0
        status = self._library.engine_know_slack(self._handle.value, direction,
                                                 slack)
        known.told = slack
        return status

    def _follow(self) -> None:
        """Follows torch's current stream ([Note: streams], compute_device)."""
        stream = compute_device.current_stream(self.device)
        if stream != self.stream:
            self._go_to(stream)

    def _go_to(self, stream: int) -> None:
        library, engine = self._library, self._handle.value
        before, status = 0, 0
        if self.stream is not None:
            # Torch reuses the copied tensors in the order of the old stream.
            for flight in self.in_flight:
                if flight.held and not status:
                    last = flight.held[-1][0]
                    status = library.engine_wait(engine, last)
                    flight.settle(last)
            status = status or library.engine_mark_compute(
                engine, self._ticket_ref)
            before = self._ticket.value
        status = (status or library.engine_use_stream(engine, stream)
                  or library.engine_wait(engine, before))
        if status:
            raise self.engine.error(status)
        self.stream = stream

    def _thin(self, direction: int) -> None:
        """Waits until copies in flight keep the limits, or only two remain."""
        flight = self.in_flight[direction]
        held = flight.held
        while len(held) > 2 and (flight.nbytes > self._most_bytes
                                 or len(held) > IN_FLIGHT_COPIES):
            # With many small copies, one wait retires a quarter of them.
            many = len(held) > IN_FLIGHT_COPIES
            self.wait(direction, held[IN_FLIGHT_COPIES // 4 if many else 0][0])
