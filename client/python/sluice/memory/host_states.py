"""Optimizer states in leased host memory, streamed through the device.

[Note: buckets] The states of a parameter (AdamW's m, v and master weights) are
fp32 and lie in host memory one after the other, each in the memory order of the
parameter's values. A bucket is at most BUCKET_BYTES of states: all states of
some parameters, or a part of each state of one parameter. While compute updates
bucket i in one buffer on the device, bucket i + 1 arrives in another, after
bucket i - 1 was copied from there to the host. Compute waits for the bucket
that it reads and, at the end of a pass, for the last copy to the host. So at
most two buckets are on the device, and none after a pass.
"""
from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch

from sluice.base.errors import Error, Status
from sluice.memory.copies import Copies
from sluice.native.abi import GPU_TO_HOST, HOST_TO_GPU
from sluice.native.leases import Region, forked
from sluice.native.session import Session

BUCKET_BYTES = 64 << 20
ELEMENT_BYTES = 4  # fp32
_ALIGNMENT = 32  # each state begins at a multiple of so many elements


class Piece(NamedTuple):
    """Elements `start` to `stop`, in memory order, of each of a parameter's
    `states` states. `last` is true for the parameter's last piece."""

    parameter: torch.Tensor
    start: int
    stop: int
    states: int
    last: bool


class Bucket(NamedTuple):
    """Pieces, and their states' host addresses: one address if all states are
    in one range, one address per state if the piece is part of a parameter."""

    pieces: list[Piece]
    addresses: list[int]
    nbytes: int


class HostStates:
    """States of any number of parameters; leases memory as they are added.

    Every method raises `Error`: FAILED_PRECONDITION in a forked child and,
    except `settle`, after the session's close; otherwise the error of a failed
    copy or lease. A new pass may follow an interrupted one. Thread safety: one
    thread at a time.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._copies = Copies(session, 2 * BUCKET_BYTES)
        self.device = self._copies.device
        self._buckets: list[Bucket] = []
        self._in_pass = False

    def add(self, parameters: Sequence[tuple[torch.Tensor, torch.Tensor, int]]
            ) -> list[list[torch.Tensor]]:
        """Leases memory for states and sets it to 0. Changes nothing if it
        raises. `parameters`: (parameter, its local values, number of its
        states). Returns the states of each parameter: CPU tensors over the
        leased memory, with the shape and strides of the local values. They keep
        the lease alive, also beyond this object. Call `settle` before using
        them."""
        nbytes = sum(bytes_of(local, count) for _, local, count in parameters)
        region = self._session.lease_host(nbytes) if nbytes else None
        address = region.address if region else 0
        _view(region, address, nbytes // ELEMENT_BYTES).zero_()
        found: list[list[torch.Tensor]] = []
        made: list[Bucket] = []
        for parameter, local, count in parameters:
            found.append([
                _view(region, address + i * bytes_of(local, 1), local.numel())
                .as_strided(local.shape, local.stride()) for i in range(count)])
            _place(made, parameter, local.numel(), count, address)
            address += bytes_of(local, count)
        self._buckets += made
        return found

    def stream(self, takes: Callable[[torch.Tensor], bool]
               ) -> Iterator[tuple[list[Piece], list[list[torch.Tensor]]]]:
        """Yields each bucket that has a parameter accepted by `takes`: its
        pieces, and the flat states of each piece on the device. When the caller
        asks for the next bucket, this bucket's states are copied back to the
        host after the compute so far on torch's current stream."""
        if not self._is_open():
            raise Error(Status.FAILED_PRECONDITION, "the session of these "
                        "states is closed: keep it open while they are updated")
        copies = self._copies
        if self._in_pass:
            copies.drain()
        self._in_pass = True
        due = [bucket for bucket in self._buckets
               if any(takes(piece.parameter) for piece in bucket.pieces)]
        most = max((bucket.nbytes for bucket in due), default=0)
        # Allocated by torch, from the memory that backward has freed.
        buffers = [torch.empty(most // ELEMENT_BYTES, dtype=torch.float32,
                               device=self.device) for _ in due[:2]]
        written = [0, 0]  # the last ticket of a copy out of each buffer
        arriving = self._copy(HOST_TO_GPU, due[0], buffers[0], 0) if due else 0
        for i, bucket in enumerate(due):
            this, other = i % 2, (i + 1) % 2
            arrived = arriving
            if i + 1 < len(due):
                arriving = self._copy(HOST_TO_GPU, due[i + 1], buffers[other],
                                      written[other])
            copies.wait(HOST_TO_GPU, arrived)
            yield bucket.pieces, _cut(bucket, buffers[this])
            written[this] = self._copy(GPU_TO_HOST, bucket, buffers[this], 0)
        copies.wait(GPU_TO_HOST, max(written))
        self._in_pass = False

    def settle(self) -> None:
        """Blocks the host until all copies are done."""
        if self._is_open():  # else the close has waited for them
            self._copies.drain()

    def _copy(self, direction: int, bucket: Bucket, buffer: torch.Tensor,
              behind: int) -> int:
        """Starts the copies of a bucket; returns the last one's ticket."""
        ticket = 0
        for address, part in zip(
                bucket.addresses,
                _values(bucket, buffer).chunk(len(bucket.addresses))):
            if part.nbytes:
                ticket = self._copies.start(direction, address, part,
                                            part.nbytes, behind)
        return ticket

    def _is_open(self) -> bool:
        handle = self._copies.engine.handle
        if not handle.ours():
            raise forked("the memory of these states")
        return bool(handle.value)


def bytes_of(local: torch.Tensor, count: int) -> int:
    """Returns the host bytes of `count` states of a parameter."""
    return count * _aligned(local.numel()) * ELEMENT_BYTES


def _aligned(elements: int) -> int:
    return (elements + _ALIGNMENT - 1) & -_ALIGNMENT


def _view(region: Region | None, address: int, elements: int) -> torch.Tensor:
    """Returns a flat tensor over leased memory that keeps the lease alive."""
    if region is None or not elements:
        return torch.empty(0, dtype=torch.float32)
    memory = (ctypes.c_float * elements).from_address(address)
    memory.region = region  # type: ignore[attr-defined]
    return torch.frombuffer(memory, dtype=torch.float32)


def _values(bucket: Bucket, buffer: torch.Tensor) -> torch.Tensor:
    return buffer[:bucket.nbytes // ELEMENT_BYTES]


def _cut(bucket: Bucket, buffer: torch.Tensor) -> list[list[torch.Tensor]]:
    lengths = [(piece.stop - piece.start, piece.states)
               for piece in bucket.pieces]
    states = iter(_values(bucket, buffer).split([
        _aligned(length) for length, count in lengths for _ in range(count)]))
    return [[next(states)[:length] for _ in range(count)]
            for length, count in lengths]


def _place(buckets: list[Bucket], parameter: torch.Tensor, numel: int,
           count: int, address: int) -> None:
    """Adds a parameter's states to the last bucket or a new one; if all of them
    exceed BUCKET_BYTES together, they get several buckets of their own."""
    state = _aligned(numel) * ELEMENT_BYTES
    if count * state <= BUCKET_BYTES:
        last = buckets[-1] if buckets else None
        if last is None or len(last.addresses) > 1 or (
                last.nbytes + count * state > BUCKET_BYTES):
            last = Bucket([], [address], 0)
            buckets.append(last)
        last.pieces.append(Piece(parameter, 0, numel, count, True))
        buckets[-1] = last._replace(nbytes=last.nbytes + count * state)
        return
    step = BUCKET_BYTES // (count * ELEMENT_BYTES) & -_ALIGNMENT
    for start in range(0, numel, step):
        stop = min(start + step, numel)
        buckets.append(Bucket(
            [Piece(parameter, start, stop, count, stop == numel)],
            [address + i * state + start * ELEMENT_BYTES for i in range(count)],
            count * _aligned(stop - start) * ELEMENT_BYTES))
