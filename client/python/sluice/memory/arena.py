"""Arena of leased host memory, filled and read by a session's copies."""
from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from os import getpid
from typing import Any

import torch

from sluice.base.errors import Error, Status
from sluice.memory.compute_device import check_device
from sluice.memory.copies import IN_FLIGHT_BYTES, Copies
from sluice.memory.free_ranges import rounded
from sluice.memory.slabs import Books, HostTensor, Slabs, flat
from sluice.memory.slots import Slots
from sluice.native.abi import GPU_TO_HOST, HOST_TO_GPU
from sluice.native.leases import CopyStats
from sluice.native.session import Session

_CLOSED = object()  # `_live` of a closed arena, and of no tensor


def _whole(call: Callable) -> Callable:
    """Serializes the arena's calls, and repairs the arena before the call that
    follows an interrupted one ([Note: interrupted books] in slabs)."""
    @functools.wraps(call)
    def whole(self: HostArena, *args: Any) -> Any:
        with self._lock:
            if self._cut_short:
                self._put_right()
            self._cut_short = True
            try:
                found = call(self, *args)
            except Error:  # a refusal, which leaves the arena consistent
                self._cut_short = False
                raise
            self._cut_short = False
            return found
    return whole


class HostArena:
    """Host memory for tensors; grows by slabs and keeps them until `close`.

    Args:
        session: leases the memory and runs the copies; kept alive.
        in_flight_bytes: device memory that running copies may keep alive per
            direction; two copies may run even if they are larger.

    Attributes: `used_bytes` and `peak_bytes` count numel x itemsize of the
    tensors held, `leased_bytes` the leases' bytes, `copies` started copies.
    `device` is the tensors' device: the CPU if the session's GPU is simulated,
    else that GPU.

    Methods raise `Error`: FAILED_PRECONDITION after `close`, for a tensor that
    was dropped or belongs to another arena, and in a forked child;
    UNIMPLEMENTED for another device; the error of a failed copy or lease. A
    refused call changes no tensor that the arena holds. After an interrupt
    (Ctrl-C) in a call, later calls work on the tensors that the arena holds.

    On a GPU all copies are ordered against torch's current stream of the
    calling thread ([Note: streams] in compute_device). A wait orders later
    compute after the copy; only `drain`, `close`, a shrinking `fit` and the
    repair after an interrupt block the host.

    Thread safety: calls are serialized; one thread at a time per host tensor.
    """

    def __init__(self, session: Session, *,
                 in_flight_bytes: int = IN_FLIGHT_BYTES) -> None:
        self.session = session
        self._copies = Copies(session, in_flight_bytes)
        self.device = self._copies.device
        self._handle = self._copies.engine.handle
        self._pid = getpid()
        self._live = object()
        self._books = Books()
        self._slabs = Slabs(session, self._books)
        # Memory for fetched tensors; None: torch allocates them.
        self._slots = None if self.device.type == "cpu" else Slots(
            session, self.device)
        self._cut_short = False
        self._lock = threading.RLock()

    @property
    def used_bytes(self) -> int:
        with self._lock:
            if not self.closed and self._pid == getpid():
                if self._cut_short:
                    self._put_right()
                if self._books.has_lost():
                    self._cut_short = True
                    self._slabs.rebuild_books(self._copies.last_read())
                    self._cut_short = False
            return self._books.used_bytes

    @property
    def peak_bytes(self) -> int:
        return self._books.peak_bytes

    @property
    def leased_bytes(self) -> int:
        return self._slabs.nbytes

    @property
    def copies(self) -> int:
        return self._copies.count

    @_whole
    def put(self, tensor: torch.Tensor) -> HostTensor:
        """Copies `tensor` to the host; does not wait. Returns a host tensor
        that holds the bytes until `drop`, or until nothing refers to it.

        The copy runs after what was computed so far. The arena keeps `tensor`
        alive until the copy is done; until then it must not be written, because
        later compute is not ordered after the copy. Raises `Error`
        RESOURCE_EXHAUSTED, with the daemon's line, if no memory can be leased;
        UNAVAILABLE if the daemon is gone and the leased memory is full.
        """
        self._check_open()
        check_device(tensor.device, self.device)
        source = flat(tensor)
        nbytes = source.nbytes
        if not nbytes:
            return HostTensor(source.shape, source.dtype, 0, 0, self._live)
        if self._books.has_lost():
            self._slabs.rebuild_books(self._copies.last_read())
        size = rounded(nbytes)
        address, read = self._slabs.take(size)
        try:
            written = self._copies.start(GPU_TO_HOST, address, source, nbytes,
                                         read)
        except Exception:
            self._books.free.give(address, size, read)
            raise
        host = HostTensor(source.shape, source.dtype, nbytes, address,
                          self._live)
        host._written = written
        self._books.keep(host)
        return host

    @_whole
    def prefetch(self, host: HostTensor, device: torch.device | str) -> None:
        """Starts the copy of `host` into a fresh tensor on `device`, which the
        next `get` returns, unless that copy was started before."""
        self._prefetch(host, device)

    @_whole
    def get(self, host: HostTensor, device: torch.device | str) -> torch.Tensor:
        """Returns `host` as a fresh tensor on `device`, which the caller owns;
        later compute is ordered after the copy. `host` stays held."""
        return self._get(host, device)

    @_whole
    def add(self, host: HostTensor, tensor: torch.Tensor) -> None:
        """host += tensor, computed on the tensor's device in `host`'s dtype.
        Raises `Error` INVALID_ARGUMENT if the shapes differ."""
        self._check(host)
        if tensor.shape != host.shape:
            raise Error(Status.INVALID_ARGUMENT,
                        f"add: a tensor of shape {list(tensor.shape)} to one "
                        f"of {list(host.shape)}: shapes must be equal")
        total = self._get(host, tensor.device)
        total += tensor.detach()
        if host.nbytes:
            # No copy out of `host` is running: `_get` waited for the last.
            host._written = self._copies.start(GPU_TO_HOST, host._address,
                                               total, host.nbytes, 0)

    @_whole
    def settle(self, host: HostTensor) -> None:
        """Waits for the copy into `host`, and releases the copied tensor."""
        self._check(host)
        self._copies.wait(GPU_TO_HOST, host._written)

    @_whole
    def drop(self, host: HostTensor) -> None:
        """Frees the bytes of `host`; dropping twice is an error."""
        self._check(host)
        host._ahead = None
        if host.nbytes:
            self._books.drop(host)
        host._live = None

    @_whole
    def reserve(self, nbytes: int) -> None:
        self._check_open()
        self._slabs.reserve(nbytes)

    @_whole
    def fit(self, nbytes: int) -> None:
        """Grows or shrinks the leases to `nbytes`. Raises `Error`
        FAILED_PRECONDITION if they would shrink while a tensor is held. To
        shrink, `fit` gives all slabs back before it leases `nbytes`: otherwise
        two ranks could wait for each other's memory. If the daemon is gone, the
        slabs stay. If the new lease fails, a later `put` leases a slab."""
        self._check_open()
        if self._books.has_lost():
            self._slabs.rebuild_books(self._copies.last_read())
        self._slabs.fit(nbytes)

    def copied(self) -> CopyStats:
        return self._copies.engine.stats()

    def reset_peak(self) -> None:
        self._books.peak_bytes = self.used_bytes

    @_whole
    def drain(self) -> None:
        """Waits for all copies and releases their tensors."""
        self._check_open()
        self._copies.drain()

    def close(self, why: str | None = None) -> None:
        """Waits for copies in flight and ends the leases; idempotent. `why` is
        the error text of later calls."""
        if self._pid != getpid():
            return
        if why is not None:
            self._copies.engine.ended = why
        self._live = _CLOSED
        self._copies.engine.stop()
        self._copies.forget()
        self._slabs.free()
        if self._slots is not None:
            self._slots.free()
        books, self._books = self._books, Books()
        self._books.peak_bytes = books.peak_bytes

    @property
    def closed(self) -> bool:
        return self._live is _CLOSED or not self._handle.value

    def __enter__(self) -> HostArena:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _prefetch(self, host: HostTensor, device: torch.device | str,
                  at_once: bool = False) -> None:
        self._check(host)
        check_device(device, self.device)
        if host._ahead is not None:
            return
        tensor = (torch.empty(host.shape, dtype=host.dtype) if self._slots
                  is None else self._slots.empty(host.shape, host.dtype))
        if host.nbytes:
            host._read = self._copies.start(HOST_TO_GPU, host._address, tensor,
                                            host.nbytes, host._written, at_once)
        host._ahead, host._stream = tensor, self._copies.stream

    def _get(self, host: HostTensor,
             device: torch.device | str) -> torch.Tensor:
        self._prefetch(host, device, at_once=True)
        tensor, host._ahead = host._ahead, None
        if host.nbytes:
            self._copies.wait(HOST_TO_GPU, host._read)
            # The copy out of `host` ran after the copy into it: both are done.
            self._copies.settled(host._written)
            if host._stream != self._copies.stream and not (
                    self._slots is not None and self._slots.has(tensor)):
                # Torch reuses memory in the order of the stream on which it was
                # allocated. Slots need no record ([Note: slots] in slots), and
                # torch may refuse to record memory of another allocator.
                tensor.record_stream(torch.cuda.current_stream(self.device))
        return tensor

    def _put_right(self) -> None:
        """Repairs the arena after an interrupted call: waits for all copies,
        and frees all bytes that no living tensor has."""
        self._check_open()
        self._copies.drain()
        self._slabs.rebuild_books(0)
        if self._slots is not None:
            self._slots.rebuild()
        self._cut_short = False

    def _check_open(self) -> None:
        # The handle is 0 after the session's close; a child has another pid.
        if self._pid != getpid() or not self._handle.value:
            raise self._copies.engine.error(Status.INVALID_ARGUMENT)

    def _check(self, host: HostTensor) -> None:
        if host._live is not self._live or self._pid != getpid() or (
                not self._handle.value):
            self._check_open()
            raise Error(Status.FAILED_PRECONDITION,
                        f"{host}: it was dropped before" if host._live is None
                        else f"{host} is of another arena")


class ProcessMemory(HostArena):
    """An arena in the process's own memory, for trials: they may run on another
    device than the session's, and their few rows need no lease."""

    def __init__(self, device: torch.device):
        self.device = device

    def put(self, tensor: torch.Tensor) -> Any:
        return tensor.detach().clone(memory_format=torch.contiguous_format)

    def get(self, host: Any, device: Any) -> torch.Tensor:
        return host.clone()

    def add(self, host: Any, tensor: torch.Tensor) -> None:
        host += tensor.detach()

    def prefetch(self, host: Any, device: Any) -> None:
        pass

    def settle(self, host: Any) -> None:
        pass

    def drop(self, host: Any) -> None:
        pass
