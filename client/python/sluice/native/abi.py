"""ctypes bindings of libsluice.so, C ABI 6: functions, structs, errors. No
other module knows the C interface (client/sluice.h). A handle is a plain
integer that the caller owns. Functions that end an object ignore 0 and None;
all others refuse them with INVALID_ARGUMENT."""
from __future__ import annotations

import ctypes
import functools
from ctypes import (
    POINTER,
    c_char_p,
    c_double,
    c_int,
    c_int32,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import TYPE_CHECKING, Any

from sluice.base.errors import Error, Status, loader_fault

ABI_VERSION = 6
GPU, HOST = 0, 1  # sluice_memory_kind
HOST_TO_GPU, GPU_TO_HOST = 0, 1  # sluice_direction
PEER_DIED = 0  # sluice_event
# sluice_block_trait
BLOCK_PART, BLOCK_WINDOW, BLOCK_INTERVALS, BLOCK_SOFTCAP = 1, 2, 4, 8
EventHandler = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_char_p)


class _Versioned(ctypes.Structure):
    """A struct that begins with its own size, which the constructor sets."""

    _fields_ = [("size", c_size_t)]

    def __init__(self, **fields: object) -> None:
        super().__init__(size=ctypes.sizeof(type(self)), **fields)


class SessionOptions(_Versioned):
    _fields_ = [
        ("socket", c_char_p), ("job", c_char_p), ("rank", c_uint32),
        ("world_size", c_uint32), ("local_ranks", c_uint32),
        ("gpu", c_uint32),
        ("guaranteed_bytes_per_second", c_double),  # ignored
        # Not 0: this rank asks for changed plans and answers them.
        ("takes_changes", c_uint32), ("reserved", c_uint32),
        ("gpu_uuid", c_char_p),
    ]


class Limits(_Versioned):
    _fields_ = [
        ("gpu_total", c_uint64), ("gpu_free", c_uint64),
        ("host_total", c_uint64), ("host_free", c_uint64),
        ("granularity", c_uint64), ("h2d_bytes_per_second", c_double),
        ("d2h_bytes_per_second", c_double),
        ("guaranteed_bytes_per_second", c_double),
        ("device", c_int32), ("reserved", c_uint32),  # device -1: simulated
    ]


class StepReport(_Versioned):
    _fields_ = [
        ("step", c_uint64), ("seconds", c_double),
        ("host_to_gpu_bytes", c_uint64), ("gpu_to_host_bytes", c_uint64),
        ("stall_seconds", c_double), ("grant_wait_seconds", c_double),
        ("gpu_peak_bytes", c_uint64), ("host_peak_bytes", c_uint64),
        ("tokens", c_uint64), ("loss", c_double),
        ("plan_mismatches", c_uint64),
    ]


class CopyStats(_Versioned):
    _fields_ = [
        ("host_to_gpu_bytes", c_uint64), ("gpu_to_host_bytes", c_uint64),
        ("grant_wait_seconds", c_double), ("stall_seconds", c_double),
    ]


class AttentionBlock(_Versioned):
    _fields_ = [
        ("kernel", c_char_p), ("keys", c_uint64),
        ("capability", c_int32),  # -1: the CPU computes
        ("element_bytes", c_uint32), ("head_dim", c_uint32),
        ("value_dim", c_uint32), ("traits", c_uint32),
        ("flash", c_uint32),  # 3, 4: FlashAttention-3 or -4; 0: torch's own
    ]


class ChunkTrial(ctypes.Structure):
    _fields_ = [("rows", c_uint64), ("seconds", c_double),
                ("host_seconds", c_double)]


# Function -> (result, arguments). c_int: a sluice_status, or the ABI version.
_SIGNATURES = {
    "sluice_last_error": (c_char_p, []),
    "sluice_abi_version": (c_int, []),
    "sluice_session_open": (
        c_int, [POINTER(SessionOptions), POINTER(c_void_p)]),
    "sluice_session_close": (None, [c_void_p]),
    "sluice_session_limits": (c_int, [c_void_p, POINTER(Limits)]),
    "sluice_session_on_event": (c_int, [c_void_p, c_void_p, c_void_p]),
    "sluice_session_report": (c_int, [c_void_p, POINTER(StepReport)]),
    "sluice_session_plan": (
        c_int, [c_void_p, c_char_p, c_double, POINTER(c_void_p)]),
    "sluice_session_answer_change": (
        c_int, [c_void_p, c_uint64, c_int, c_char_p]),
    "sluice_string_free": (None, [c_void_p]),
    "sluice_region_lease_within": (
        c_int, [c_void_p, c_int, c_uint64, c_double, POINTER(c_void_p)]),
    "sluice_region_free": (None, [c_void_p]),
    "sluice_region_data": (c_void_p, [c_void_p]),
    "sluice_region_size": (c_uint64, [c_void_p]),
    "sluice_engine_start": (c_int, [c_void_p, POINTER(c_void_p)]),
    "sluice_engine_stop": (None, [c_void_p]),
    "sluice_engine_wait": (c_int, [c_void_p, c_uint64]),
    "sluice_engine_drain": (c_int, [c_void_p]),
    "sluice_engine_stats": (c_int, [c_void_p, POINTER(CopyStats)]),
    "sluice_attention_kernel": (
        c_int, [POINTER(AttentionBlock), POINTER(c_char_p)]),
    "sluice_chunk_choice": (
        c_int, [c_uint64, c_uint64, c_double, POINTER(ChunkTrial), c_size_t,
                POINTER(c_uint64), POINTER(c_uint64)]),
}
# Functions that never wait and are called for every copy or step. PyDLL keeps
# the interpreter's lock: if other Python threads are busy, releasing it could
# cost a switch interval (5 ms), a thousand times the call. Pointers are
# c_void_p, so that `byref` of a buffer passes unchecked.
_BRIEF_SIGNATURES = {
    "sluice_engine_copy": (
        c_int, [c_void_p, c_int, c_void_p, c_void_p, c_uint64, c_void_p,
                c_size_t, c_void_p]),
    "sluice_engine_use_stream": (c_int, [c_void_p, c_void_p]),
    "sluice_engine_know_slack": (c_int, [c_void_p, c_int, c_double]),
    "sluice_engine_mark_compute": (c_int, [c_void_p, c_void_p]),
    "sluice_engine_reached": (c_int, [c_void_p, c_uint64, c_void_p]),
    "sluice_session_changed_plan": (c_int, [c_void_p, c_void_p, c_void_p]),
}


def _check_version(path: str, version: int) -> None:
    """Raises `Error` for an older library, which lacks functions."""
    if version < ABI_VERSION:
        raise Error(Status.FAILED_PRECONDITION,
                    f"{path} has C ABI {version}, this package needs "
                    f"{ABI_VERSION}: install both from one release")


class Library:
    """The functions of a libsluice.so; their thread safety is in sluice.h."""

    def __init__(self, path: str) -> None:
        try:
            waiting, brief = ctypes.CDLL(path), ctypes.PyDLL(path)
            _check_version(path, waiting.sluice_abi_version())
            for library, table in ((waiting, _SIGNATURES),
                                   (brief, _BRIEF_SIGNATURES)):
                for name, (result, arguments) in table.items():
                    function = getattr(library, name)
                    function.restype, function.argtypes = result, arguments
                    setattr(self, name.removeprefix("sluice_"), function)
        except (OSError, AttributeError) as error:
            why = loader_fault(str(error)) or (
                f"{error}: set SLUICE_BIN_DIR to the folder of a built sluiced")
            raise Error(Status.NOT_FOUND, f"cannot load {path}: {why}"
                        ) from None

    if TYPE_CHECKING:  # __init__ sets an attribute for each function
        def __getattr__(self, name: str) -> Any: ...

    def error(self, status: int) -> Error:
        """Returns the error of the calling thread's last failed call."""
        return Error(status, self.last_error().decode("utf-8", "replace"))

    def check(self, status: int) -> None:
        if status:
            raise self.error(status)


@functools.cache
def load(path: str) -> Library:
    """Loads a library, once per path. Raises `Error`: NOT_FOUND if it cannot be
    loaded; FAILED_PRECONDITION if it is older than this package."""
    return Library(path)
