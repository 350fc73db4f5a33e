"""Slots: leased GPU memory for the tensors that are fetched from the host.

[Note: slots] Tensors that are fetched from the host lie in memory leased from
the daemon, so that fetching needs no memory of torch's allocator. Each slot is
a torch tensor with a storage of its own over leased bytes, made by DLPack.
Torch does not free it: a slot is free when its storage has no owner, which is
checked when the next slot is taken. Work on the slot that is enqueued by then
runs before the copy that fills it next, because a copy comes after all compute
so far, on whichever stream ([Note: streams] in compute_device).

If the daemon has no more GPU memory or is gone, or DLPack lacks the dtype,
torch allocates the tensor. The daemon is asked again after a second.
"""
from __future__ import annotations

import collections
import ctypes
import math
import weakref
from collections.abc import Sequence
from time import monotonic
from typing import NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import dlpack

from sluice.base.errors import Error, Status
from sluice.memory import compute_device
from sluice.memory.free_ranges import FreeRanges
from sluice.native.leases import Region
from sluice.native.session import Session

ALIGNMENT = 512  # bytes, as torch's own allocator has it
FIRST_LEASE_BYTES = 4 << 20
LARGEST_LEASE_BYTES = 256 << 20
# Seconds without requests to the daemon after it has refused one.
ASK_AGAIN_S = 1.0

_INT, _UINT, _FLOAT, _BFLOAT, _COMPLEX, _BOOL = 0, 1, 2, 4, 5, 6
_CODES = {
    torch.bool: _BOOL, torch.uint8: _UINT, torch.int8: _INT,
    torch.int16: _INT, torch.int32: _INT, torch.int64: _INT,
    torch.float16: _FLOAT, torch.bfloat16: _BFLOAT, torch.float32: _FLOAT,
    torch.float64: _FLOAT, torch.complex64: _COMPLEX,
    torch.complex128: _COMPLEX}
_CUDA = 2  # kDLCUDA


class _Tensor(ctypes.Structure):
    """DLManagedTensor with its DLTensor inlined; without a deleter."""

    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64),
        ("manager_ctx", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class _Slot(NamedTuple):
    nbytes: int
    storage: StorageWeakRef
    described: _Tensor


class _Left(NamedTuple):
    """A lease of an ended arena, and the slots in it."""

    lease: Region
    device: torch.device
    slots: list[_Slot]


_left: list[_Left] = []
# Descriptions of tensors that are gone. Torch reads a description once more
# after its storage has lost its last owner, perhaps on another thread or after
# the interpreter's end. So none is freed, and the latest _LEFT are not reused.
_spent: collections.deque[_Tensor] = collections.deque()
_LEFT = 64


class Slots:
    """The slots of one arena. Leases grow as slabs do and stay until `free`.
    Thread safety: one thread at a time, the one that computes."""

    def __init__(self, session: Session, device: torch.device) -> None:
        self._session, self.device = session, device
        self._leases: list[Region] = []
        self._free = FreeRanges()
        self._held: dict[int, _Slot] = {}  # by address
        self._ask_at = 0.0  # time from which the daemon may be asked again
        # The leases outlive this object while tensors live in them.
        self._end = weakref.finalize(self, _leave, self._leases, self._held,
                                     device)
        self._end.atexit = False  # the end of the process unmaps them
        _free_left()

    @property
    def nbytes(self) -> int:
        return sum(lease.nbytes for lease in self._leases)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Returns an uninitialized tensor, which the caller owns. The caller
        orders the tensor's use on another stream by waits before and after the
        use, because DLPack tensors have no `record_stream`."""
        wanted = math.prod(shape) * dtype.itemsize
        size = (wanted + ALIGNMENT - 1) & -ALIGNMENT
        address = self._take(size) if wanted and dtype in _CODES else None
        if address is None:
            return torch.empty(shape, dtype=dtype, device=self.device)
        sizes = (ctypes.c_int64 * len(shape))(*shape)
        described = _describe(
            data=address, device_type=_CUDA, device_id=self.device.index,
            ndim=len(shape), code=_CODES[dtype], bits=8 * dtype.itemsize,
            lanes=1, shape=sizes)
        tensor = dlpack.from_dlpack(_new_capsule(
            ctypes.addressof(described), b"dltensor", None))
        self._held[address] = _Slot(
            size, StorageWeakRef(tensor.untyped_storage()), described)
        return tensor

    def has(self, tensor: torch.Tensor) -> bool:
        return tensor.data_ptr() in self._held

    def rebuild(self) -> None:
        for address in self._expired():
            _spent.append(self._held.pop(address).described)
        self._free = FreeRanges.around(
            [(lease.address, lease.nbytes) for lease in self._leases],
            sorted((address, slot.nbytes)
                   for address, slot in self._held.items()), 0)

    def free(self) -> None:
        """Gives the leases back once the compute so far is done. A lease with a
        living tensor stays until another arena begins or ends after the tensor
        is freed, or until the process ends. No copy may be running."""
        _leave(self._leases, self._held, self.device)
        self._free = FreeRanges()
        _free_left()

    def _take(self, size: int) -> int | None:
        self._look()
        found = self._free.take(size)
        if found is None and monotonic() >= self._ask_at:
            self._lease(size)
            found = self._free.take(size)
        return None if found is None else found[0]

    def _lease(self, size: int) -> None:
        """Adds a lease as large as all others together (FIRST_ to
        LARGEST_LEASE_BYTES), at least `size`. If the daemon refuses or is gone,
        tries smaller ones down to `size`, and then leases nothing."""
        want = max(size, min(max(self.nbytes, FIRST_LEASE_BYTES),
                             LARGEST_LEASE_BYTES))
        while True:
            try:
                lease = self._session.lease_gpu(want, wait_s=0)
                break
            except Error as error:
                if error.status not in (Status.RESOURCE_EXHAUSTED,
                                        Status.UNAVAILABLE):
                    raise
                if want == size:
                    self._ask_at = monotonic() + ASK_AGAIN_S
                    return
                want = max(size, want // 4)
        self._leases.append(lease)
        self._free.add_slab(lease.address, lease.nbytes)

    def _look(self) -> None:
        """Frees the slots of storages without an owner."""
        for address in self._expired():
            slot = self._held.pop(address)
            _spent.append(slot.described)
            self._free.give(address, slot.nbytes, 0)

    def _expired(self) -> list[int]:
        return [address for address, slot in self._held.items()
                if slot.storage.expired()]


def _describe(**fields: object) -> _Tensor:
    if len(_spent) > _LEFT:
        described = _spent.popleft()
        for name, value in fields.items():
            setattr(described, name, value)
        return described
    described = _Tensor(**fields)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(described))
    return described


def _leave(leases: list[Region], held: dict[int, _Slot],
           device: torch.device) -> None:
    while leases:
        lease = leases.pop()
        end = lease.address + lease.nbytes
        _left.append(_Left(lease, device, [
            slot for address, slot in held.items()
            if lease.address <= address < end]))
    held.clear()


def _free_left() -> None:
    for left in _left[:]:
        if all(slot.storage.expired() for slot in left.slots):
            try:
                compute_device.await_compute(left.device)
            except RuntimeError:  # the device is lost: freed with the process
                continue
            left.lease.free()
            _left.remove(left)
