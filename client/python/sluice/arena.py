"""Host memory leased from the daemon, filled and read by its copy engine.

[Note: reuse] A dropped range may still be read by a copy to the device. It
carries that copy's ticket, and the copy that fills it next starts after it.
Writes need no ticket: copies to the host are in order.
"""

from __future__ import annotations

import ctypes
import weakref
from os import getpid

import torch

from sluice._native import GPU_TO_HOST, HOST_TO_GPU
from sluice.errors import Error, Status
from sluice.host_tensor import HostTensor, check_device, flat, is_on
from sluice.in_flight import InFlight
from sluice.ranges import FreeRanges, rounded
from sluice.session import CopyStats, Engine, Region, Session

__all__ = ["HostArena", "HostTensor"]

FIRST_SLAB_BYTES = 4 << 20
LARGEST_SLAB_BYTES = 1 << 30
# What running copies may keep alive, per direction. Two copies of any size may
# run, so that large ones overlap.
IN_FLIGHT_COPIES = 64
IN_FLIGHT_BYTES = 2 << 20
_CLOSED = object()  # what no tensor is marked with


class HostArena:
    """Host memory for tensors; grows by slabs and keeps them until `close`.

    Args:
        session: whose memory is leased and whose GPU copies; kept alive.
        in_flight_bytes: device memory that running copies may keep alive, per
            direction, or two copies where those are larger.

    Attributes: `used_bytes` and `peak_bytes` count numel x itemsize of what is
    held, exactly; `leased_bytes` what the daemon has leased for it. `copies`
    counts copies that were started.

    Every method raises `Error`: FAILED_PRECONDITION after `close`, for a
    tensor that was dropped or is another arena's, and in a forked child;
    otherwise what a failed copy or lease says. After a refused call
    everything held stays as it was.

    Devices: the tensors' own. Today the CPU, which is the simulated GPU's.
    Thread safety: one thread at a time, the one that computes.
    """

    def __init__(self, session: Session, *,
                 in_flight_bytes: int = IN_FLIGHT_BYTES) -> None:
        self.session = session
        self.used_bytes = 0
        self.peak_bytes = 0
        self.leased_bytes = 0
        self.copies = 0
        # Ended before the tensors below are let go; see [Note: ends].
        self._engine = Engine(session)
        self._library = self._engine.library
        self._handle = self._engine.handle
        weakref.finalize(self, self._handle.end)
        self._pid = getpid()
        self._live = object()
        self._free = FreeRanges()
        self._slabs: list[Region] = []
        self._most_bytes = in_flight_bytes
        self._in_flight = (InFlight(), InFlight())  # by direction
        # Scratch of one copy: the tickets it comes after, the first of which
        # is always the compute so far, and its own.
        self._after = (ctypes.c_uint64 * 2)()
        self._after_ref = ctypes.byref(self._after)
        self._ticket = ctypes.c_uint64()
        self._ticket_ref = ctypes.byref(self._ticket)
        self._reached = ctypes.c_int()
        self._reached_ref = ctypes.byref(self._reached)

    # --- tensors ------------------------------------------------------------

    def put(self, tensor: torch.Tensor) -> HostTensor:
        """Copies `tensor` to the host; does not wait.

        The copy comes after what was computed so far. `tensor` is kept alive
        until it is done, and must not be written before: what torch computes
        on the tensor later is not ordered after the copy.

        Raises:
            Error: RESOURCE_EXHAUSTED with the daemon's line where no memory
                can be leased; UNAVAILABLE where the daemon is gone and what
                was leased is full.
        """
        self._check_open()
        source = flat(tensor)
        nbytes = source.nbytes
        if not nbytes:
            return HostTensor(source.shape, source.dtype, 0, 0, self._live)
        size = rounded(nbytes)
        address, read = self._free.take(size) or self._take_from_slab(size)
        try:
            written = self._copy(GPU_TO_HOST, address, source, nbytes, read)
        except BaseException:
            self._free.give(address, size, read)
            raise
        host = HostTensor(source.shape, source.dtype, nbytes, address,
                          self._live)
        host._written = written
        self.used_bytes += nbytes
        if self.used_bytes > self.peak_bytes:
            self.peak_bytes = self.used_bytes
        return host

    def prefetch(self, host: HostTensor, device: torch.device | str) -> None:
        """Starts the copy of `host` into a fresh tensor on `device`; does
        nothing where that was done and not yet asked for."""
        self._check(host)
        if host._ahead is not None and is_on(host._ahead, device):
            return
        tensor = torch.empty(host.shape, dtype=host.dtype, device=device)
        check_device(tensor)
        if host.nbytes:
            host._read = self._copy(HOST_TO_GPU, host._address, tensor,
                                    host.nbytes, host._written)
        host._ahead = tensor

    def get(self, host: HostTensor,
            device: torch.device | str) -> torch.Tensor:
        """`host` as a fresh tensor on `device`, the caller's own; what is
        computed on it comes after the copy. `host` stays."""
        self.prefetch(host, device)
        tensor, host._ahead = host._ahead, None
        if host.nbytes:
            self._wait(HOST_TO_GPU, host._read)
            # It came after the copy that filled the host's bytes.
            self._in_flight[GPU_TO_HOST].settle(host._written)
        return tensor

    def add(self, host: HostTensor, tensor: torch.Tensor) -> None:
        """host += tensor, computed on the tensor's device in `host`'s dtype.

        Args:
            tensor: of `host`'s shape.

        Raises:
            Error: INVALID_ARGUMENT for another shape.
        """
        self._check(host)
        if tensor.shape != host.shape:
            raise Error(Status.INVALID_ARGUMENT,
                        f"add: a tensor of shape {list(tensor.shape)} to one "
                        f"of {list(host.shape)}: shapes must be equal")
        total = self.get(host, tensor.device)
        total += tensor.detach()
        if host.nbytes:
            # After every read of it: `get` waited for the last one.
            host._written = self._copy(GPU_TO_HOST, host._address, total,
                                       host.nbytes, 0)

    def settle(self, host: HostTensor) -> None:
        """Waits for the copy into `host`, and holds its source no longer."""
        self._check(host)
        self._wait(GPU_TO_HOST, host._written)

    def drop(self, host: HostTensor) -> None:
        """Gives the bytes back; dropping twice is an error."""
        self._check(host)
        host._live = host._ahead = None
        if host.nbytes:
            self.used_bytes -= host.nbytes
            self._free.give(host._address, rounded(host.nbytes), host._read)

    # --- the arena ----------------------------------------------------------

    def copied(self) -> CopyStats:
        """Sums of this arena's copies."""
        return self._engine.stats()

    def reset_peak(self) -> None:
        self.peak_bytes = self.used_bytes

    def drain(self) -> None:
        """Waits for all copies; then none keeps a tensor alive."""
        self._check_open()
        self._engine.drain()
        for direction in self._in_flight:
            if direction.held:
                direction.settle(direction.held[-1][0])

    def close(self) -> None:
        """Waits for copies in flight and ends the lease. Twice is fine."""
        if self._pid != getpid():
            return
        self._live = _CLOSED
        self._engine.stop()
        for slab in self._slabs:
            slab.free()
        self._slabs.clear()
        self._free = FreeRanges()
        for direction in self._in_flight:
            direction.held.clear()
        self.used_bytes = self.leased_bytes = 0

    @property
    def closed(self) -> bool:
        return self._live is _CLOSED or not self._handle.value

    def __enter__(self) -> HostArena:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _check_open(self) -> None:
        # In a forked child and after the session's close too.
        if self._pid != getpid() or not self._handle.value:
            raise self._engine.error(Status.INVALID_ARGUMENT)

    def _check(self, host: HostTensor) -> None:
        if host._live is not self._live or self._pid != getpid() or (
                not self._handle.value):
            self._check_open()
            raise Error(Status.FAILED_PRECONDITION,
                        f"{host}: it was dropped before" if host._live is None
                        else f"{host} is of another arena")

    def _copy(self, direction: int, address: int, tensor: torch.Tensor,
              nbytes: int, behind: int) -> int:
        """Starts one copy between the arena and `tensor`.

        Args:
            behind: a ticket of the other direction that comes first.

        Returns: the copy's ticket.
        """
        library, engine = self._library, self._handle.value
        status = library.engine_mark_compute(engine, self._after_ref)
        count = 1
        if behind > self._in_flight[1 - direction].settled:
            self._after[1] = behind
            count = 2
        to, source = address, tensor.data_ptr()
        if direction == HOST_TO_GPU:
            to, source = source, to
        status = status or library.engine_copy(
            engine, direction, to, source, nbytes, self._after_ref, count,
            self._ticket_ref)
        if status:
            raise self._engine.error(status)
        self.copies += 1
        ticket = self._ticket.value
        flight = self._in_flight[direction]
        flight.let_go_of_reached(self._is_reached)
        flight.held.append((ticket, nbytes, tensor))
        flight.nbytes += nbytes
        if flight.nbytes > self._most_bytes or (
                len(flight.held) > IN_FLIGHT_COPIES):
            self._thin(direction)
        return ticket

    def _is_reached(self, ticket: int) -> bool:
        """Never waits; true of a copy that failed too."""
        status = self._library.engine_reached(self._handle.value, ticket,
                                              self._reached_ref)
        if status:
            raise self._engine.error(status)
        return bool(self._reached.value)

    def _wait(self, direction: int, ticket: int) -> None:
        flight = self._in_flight[direction]
        if ticket > flight.settled:
            status = self._library.engine_wait(self._handle.value, ticket)
            if status:
                raise self._engine.error(status)
        flight.settle(ticket)

    def _thin(self, direction: int) -> None:
        """Waits until not too much is in flight; two copies may stay."""
        flight = self._in_flight[direction]
        held = flight.held
        while len(held) > 2 and (flight.nbytes > self._most_bytes
                                 or len(held) > IN_FLIGHT_COPIES):
            # Many small copies: a quarter of them, for one wait.
            many = len(held) > IN_FLIGHT_COPIES
            self._wait(direction,
                       held[IN_FLIGHT_COPIES // 4 if many else 0][0])

    def _take_from_slab(self, size: int) -> tuple[int, int]:
        """`size` bytes of a slab that is leased for it: as much again as
        there is, less where the daemon has less."""
        want = max(size, min(max(self.leased_bytes, FIRST_SLAB_BYTES),
                             LARGEST_SLAB_BYTES))
        while True:
            try:
                slab = self.session.lease_host(want)
                break
            except Error as error:
                if error.status != Status.RESOURCE_EXHAUSTED or want == size:
                    raise
                want = max(size, want // 4)
        self._slabs.append(slab)
        self.leased_bytes += slab.nbytes
        self._free.add_slab(slab.address, slab.nbytes)
        return self._free.take(size)
