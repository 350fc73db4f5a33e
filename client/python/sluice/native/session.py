"""Session with the node's daemon: limits, leases, reports and plans."""
from __future__ import annotations

import ctypes
import dataclasses
import itertools
import json
import math
import os
import sys
import threading
import weakref
from collections.abc import Mapping
from typing import Any

from sluice.base.arguments import (
    FLAG,
    NONE,
    PATH,
    Kind,
    a,
    invalid,
    number,
    takes,
    whole,
)
from sluice.base.errors import Error, Status
from sluice.native import abi, launcher, user_daemon
from sluice.native.daemon import load_library
from sluice.native.leases import CopyStats, Handle, Region, forked
from sluice.native.waiting import Calls, waits_for

__all__ = ["Limits", "Session"]

_NO_PLAN = 2**64 - 1  # a number that no plan has
_MOST_RANKS = 1 << 20
_LONGEST_LABEL = 60  # characters, before a number is appended
_LABEL = Kind(lambda v: isinstance(v, str) and 0 < len(v) <= 64
              and v.isprintable(), "1 to 64 printable characters")
_COUNT = whole(0, "a whole number, 0 or more")
_BYTES = whole(1, "bytes, a whole number from 1")
_WAIT = number("seconds, 0 or more", least=0, most=1e6)

_labels: set[str] = set()  # labels from _take_label, of open sessions
_labels_lock = threading.Lock()


def _take_label(told: launcher.Place) -> str:
    """Reserves the job's label or, if it is in use, that label with the lowest
    free number. So ranks that open equally many sessions get equal labels."""
    label = (told.job or f"python-{os.getpid()}")[-_LONGEST_LABEL:]
    with _labels_lock:
        found = next(name for name in itertools.chain(
            [label], (f"{label}.{i}" for i in itertools.count(2)))
            if name not in _labels)
        _labels.add(found)
    return found


def _end(handle: Handle, label: str | None) -> None:
    handle.end()
    if label is not None:
        _labels.discard(label)


def _uuid(device: Any) -> bytes | None:
    """Returns a GPU's UUID as the driver writes it; None for the CPU."""
    torch = sys.modules.get("torch")  # a session does not need torch
    if torch is None or torch.device(device).type == "cpu":
        return None
    told = torch.cuda.get_device_properties(device)
    kind = "MIG" if " MIG " in told.name else "GPU"
    return f"{kind}-{told.uuid}".encode()


@dataclasses.dataclass(frozen=True)
class Limits:
    """Memory and speeds of the session's GPU and of its NUMA node.

    Free bytes are those at the opening of the session. Speeds are those of the
    GPU's link under contention; 0: unknown.
    """

    gpu_total_bytes: int
    gpu_free_bytes: int
    host_total_bytes: int
    host_free_bytes: int
    granularity_bytes: int  # lease sizes are rounded up to a multiple of it
    h2d_bytes_per_second: float
    d2h_bytes_per_second: float
    guaranteed_bytes_per_second: float  # always 0, kept for older callers
    device: int | None = None  # index of the CUDA device; None: simulated


class Session:
    """A rank's connection to the daemon, which leases memory to it.

    Args:
        socket: path of the daemon's socket. None: $SLUICE_SOCKET, else the
            node's own daemon, else the user's, started if none runs.
        job: label of the job, at most 64 characters, the same in all of its
            ranks. None: "python" with the launcher's job id, else with the
            process id; further open sessions of this process get a number
            appended.
        rank, world: this rank's number, and the number of ranks in the job.
            None: as set by torchrun, Slurm or MPI, else 0 of 1.
        gpu: index of the GPU on the node, as the daemon counts. None: the
            rank's number on its node.
        local_world: ranks of the job on this node. None: as launched, or all.
        device: the GPU as torch names it, instead of `gpu`: a CUDA
            torch.device or its name; matched by UUID. A CPU is ignored.
        lease_wait_s: seconds that a lease may wait for memory instead of being
            refused at once, at most the daemon's `longest_wait_s`; first come,
            first served. Leases that can be retried smaller do not wait.

    Attributes:
        socket: path of the socket; other processes and sessions may open it.
        job, rank, gpu, lease_wait_s: as given or found.
        daemon: always None; kept for older callers.

    Raises:
        Invalid: an argument is not valid.
        Error: NOT_FOUND or UNAVAILABLE: no daemon at the socket, no
            libsluice.so, or the daemon does not serve `device`;
            ALREADY_EXISTS: this rank is attached already.

    A context manager. Thread safety: safe.
    """

    @takes("Session", socket=PATH | NONE, job=_LABEL | NONE,
           rank=whole(0, "a rank, 0 or more", _MOST_RANKS - 1) | NONE,
           world=whole(1, f"ranks, 1 to {_MOST_RANKS}", _MOST_RANKS) | NONE,
           gpu=whole(0, "GPUs of a node count from 0", _MOST_RANKS) | NONE,
           local_world=whole(1, "ranks on this node, 1 or more, or None",
                             _MOST_RANKS) | NONE,
           lease_wait_s=_WAIT)
    def __init__(self, socket: str | os.PathLike[str] | None = None,
                 job: str | None = None, rank: int | None = None,
                 world: int | None = None, gpu: int | None = None, *,
                 local_world: int | None = None,
                 device: Any = None, lease_wait_s: float = 0.0) -> None:
        told = launcher.place() if rank is None and world is None else (
            launcher.Place(rank or 0, world or 1))
        self.rank, self._world = told.rank, told.world
        if self.rank >= self._world:
            raise invalid(f"Session: rank {self.rank} of world {self._world}: "
                          "ranks go from 0 to world - 1")
        local_world = local_world or told.local_world or self._world
        if local_world > self._world:
            raise invalid(f"Session: local_world = {local_world}: at most the "
                          f"world of {self._world}")
        self._library = load_library()
        self.gpu = told.local_rank if gpu is None else gpu
        self.daemon = None
        self.lease_wait_s = lease_wait_s
        named = os.fspath(socket) if socket else os.environ.get("SLUICE_SOCKET")
        uuid = None if device is None else _uuid(device)
        self.job = job or _take_label(told)
        label = None if job else self.job  # freed when the session ends
        options = abi.SessionOptions(
            job=self.job.encode(), rank=self.rank, world_size=self._world,
            local_ranks=local_world, gpu=self.gpu, takes_changes=1,
            gpu_uuid=uuid)
        try:
            opened = self._opened(options, named)
        except BaseException:
            _labels.discard(label or "")
            raise
        self._calls = Calls(self._library.session_close)
        self._handle = Handle(opened, self._calls.close)
        self._watches: weakref.WeakSet[Any] = weakref.WeakSet()
        self._end = weakref.finalize(self, _end, self._handle, label)

    def _opened(self, options: abi.SessionOptions, named: str | None
                ) -> int | None:
        """Opens a session at `named`, else with the node's or user's daemon."""
        opened = ctypes.c_void_p()
        for last in (False, True):
            self.socket = named or user_daemon.socket_of_the_node()
            options.socket = os.fsencode(self.socket)
            try:
                self._library.check(self._library.session_open(
                    ctypes.byref(options), ctypes.byref(opened)))
                break
            except Error:
                # The user's daemon may have just ended: try again, once.
                if last or named or user_daemon.listens(self.socket):
                    raise
        return opened.value

    def limits(self) -> Limits:
        """Returns what the daemon reported when the session opened."""
        told = abi.Limits(device=-1)
        self._library.check(self._library.session_limits(
            self._value(), ctypes.byref(told)))
        return Limits(told.gpu_total, told.gpu_free, told.host_total,
                      told.host_free, told.granularity,
                      told.h2d_bytes_per_second, told.d2h_bytes_per_second,
                      told.guaranteed_bytes_per_second,
                      told.device if told.device >= 0 else None)

    @takes("report", step=_COUNT, tokens=_COUNT, gpu_peak_bytes=_COUNT,
           host_peak_bytes=_COUNT, copies=a(CopyStats, "a CopyStats") | NONE,
           seconds=number("seconds, 0 or more", least=0, most=1e18),
           loss=a((int, float), "a number"))
    def report(self, step: int, seconds: float, tokens: int, *,
               loss: float = math.nan, copies: CopyStats | None = None,
               gpu_peak_bytes: int = 0, host_peak_bytes: int = 0) -> None:
        """Reports one step's figures for operators. Does not wait for the
        daemon.

        Args:
            copies: figures of this step alone, not the engine's totals.

        Raises:
            Error: UNAVAILABLE: the daemon is gone; INVALID_ARGUMENT: a figure
                is impossible, and the whole report is ignored.
        """
        figures = dict(step=step, seconds=seconds, tokens=tokens,
                       gpu_peak_bytes=gpu_peak_bytes,
                       host_peak_bytes=host_peak_bytes,
                       **(dataclasses.asdict(copies) if copies else {}))
        report = abi.StepReport(loss=loss, **figures)
        self._library.check(self._library.session_report(
            self._value(), ctypes.byref(report)))

    @takes("plan", profile=a(Mapping, "a profile of one step, a mapping as "
                             "proto/plan has it"),
           timeout_s=number("seconds, more than 0", above=0, most=1e9),
           quiet=FLAG)
    def plan(self, profile: Mapping[str, Any], timeout_s: float = 60.0, *,
             quiet: bool = False) -> dict[str, Any]:
        """Submits this rank's profile of one step (proto/plan, as JSON), waits
        until the job's other ranks on this node have submitted theirs and the
        daemon has planned, and returns the plan. A plan with a non-empty
        "infeasible" is an answer, not an error. After two seconds a line on
        stderr names what the call waits for, unless `quiet`; Ctrl-C ends the
        wait.

        Raises:
            Error: INVALID_ARGUMENT: not a valid profile; DEADLINE_EXCEEDED;
                UNAVAILABLE: the daemon is gone.
        """
        try:
            told = json.dumps(profile, allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise invalid(f"plan: a profile that is no JSON: {error}"
                          ) from error

        def call() -> dict[str, Any]:
            text = ctypes.c_void_p()
            self._library.check(self._library.session_plan(
                value, told, timeout_s, ctypes.byref(text)))
            try:
                return json.loads(ctypes.string_at(text.value or 0))
            finally:
                self._library.string_free(text)

        def say() -> None:
            if not quiet:
                who = waits_for(self.socket, self.job, self._world)
                print(f"sluice: rank {self.rank} of job {self.job} waits for "
                      f"a plan, at most {timeout_s:g} s" + (
                          f": {who}" if who else ""), file=sys.stderr)

        value = self._value()
        return self._calls.interruptible(call, say)

    def changed_plan(self) -> tuple[int, dict[str, Any]] | None:
        """Returns (number, plan) of the newest changed plan that is not
        answered yet, or None. The daemon changes plans when jobs come or go.
        Use only the fractions of a changed plan. Does not wait. A plan that
        has arrived can still be read after the daemon was killed."""
        text, number = ctypes.c_void_p(), ctypes.c_uint64()
        self._library.check(self._library.session_changed_plan(
            self._value(), ctypes.byref(text), ctypes.byref(number)))
        if not text.value:
            return None
        try:
            return number.value, json.loads(ctypes.string_at(text.value or 0))
        finally:
            self._library.string_free(text)

    @takes("answer_change", number=whole(0, "a plan's number", _NO_PLAN),
           taken=FLAG, note=a(str, "a line of text"))
    def answer_change(self, number: int, taken: bool, note: str = "") -> None:
        """Tells the daemon whether this rank adopts a changed plan. Before
        saying yes, the caller gives back the host memory that the new plan no
        longer includes. If a rank that called `plan` never answers, jobs that
        join wait for a minute. `note`: one line for operators. Does not wait
        for the daemon.

        Raises:
            Error: UNAVAILABLE: the daemon is gone.
        """
        self._library.check(self._library.session_answer_change(
            self._value(), number, int(taken), note.encode()))

    def _watched_by(self, watch: Any) -> None:
        """Calls `watch.peer_died`, on a thread of the library, for each process
        of the job that dies on this node, while something refers to `watch`."""
        self._watches.add(watch)
        if self._calls.on_event is None:
            watches = self._watches  # not `self`, so that it can be collected

            def tell(_: int | None, kind: int, detail: bytes) -> None:
                for each in [*watches] if kind == abi.PEER_DIED else ():
                    each.peer_died(detail.decode("utf-8", "replace"))

            self._calls.on_event = abi.EventHandler(tell)
            self._library.check(self._library.session_on_event(
                self._value(), self._calls.on_event, None))

    def check_connected(self) -> None:
        """Raises `Error` UNAVAILABLE if the daemon is known to be gone."""
        self.answer_change(_NO_PLAN, False)  # the daemon ignores this number

    @takes("lease_host", nbytes=_BYTES, wait_s=_WAIT | NONE)
    def lease_host(self, nbytes: int, *, wait_s: float | None = None) -> Region:
        """Leases pinned host memory on the GPU's NUMA node; see `Region`.
        `wait_s` overrides the session's `lease_wait_s`.

        Raises:
            Error: RESOURCE_EXHAUSTED, with the daemon's line: the budget or the
                pool is exceeded; DEADLINE_EXCEEDED, with that line: it is still
                exceeded after the wait; UNAVAILABLE: the daemon is gone.
        """
        return self._region(abi.HOST, nbytes, wait_s)

    @takes("lease_gpu", nbytes=_BYTES, wait_s=_WAIT | NONE)
    def lease_gpu(self, nbytes: int, *, wait_s: float | None = None) -> Region:
        """Leases memory of the session's GPU, like `lease_host`."""
        return self._region(abi.GPU, nbytes, wait_s)

    def _region(self, kind: int, nbytes: int, wait_s: float | None) -> Region:
        return Region(self, kind, nbytes,
                      self.lease_wait_s if wait_s is None else wait_s)

    def close(self) -> None:
        """Waits for copies in flight, then gives all memory back to the
        daemon. Regions stay readable, arenas do not. Idempotent."""
        self._end()

    @property
    def closed(self) -> bool:
        return not self._handle.value

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = " closed" if self.closed else ""
        return f"<sluice.Session {self.socket}{state}>"

    def _value(self) -> int:
        """Returns the open handle; raises `Error` FAILED_PRECONDITION after
        `close` and in a forked child."""
        if not self._handle.ours():
            raise forked("the session")
        if not self._handle.value:
            raise Error(Status.FAILED_PRECONDITION,
                        "the session is closed: open another")
        return self._handle.value
