"""A session with the node's daemon: what it has, what it is told, leases."""

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
from typing import Any, Protocol

from sluice.base.arguments import (
    FLAG,
    NONE,
    PATH,
    a,
    invalid,
    number,
    short_text,
    takes,
    whole,
)
from sluice.base.errors import Error, Status
from sluice.native import abi, launcher, user_daemon
from sluice.native.daemon import load_library
from sluice.native.handle import Handle, forked
from sluice.native.leases import CopyStats, Region
from sluice.native.waiting import Calls, waits_for

__all__ = ["Limits", "Session"]

_NO_PLAN = 2**64 - 1  # a number that no plan has
_MOST_RANKS = 1 << 20
_LONGEST_LABEL = 60  # and a number
_COUNT = whole(0, "a whole number, 0 or more")
_BYTES = whole(1, "bytes, a whole number from 1")
_WAIT = number("seconds, 0 or more", least=0, most=1e6)

_labels: set[str] = set()  # of this process's open sessions that named none
_labels_lock = threading.Lock()


def _take_label(told: launcher.Place) -> str:
    """The first of the job's that is free: ranks that open as many sessions
    have the same ones."""
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
    """The UUID of torch's device, as the driver writes it; None for a CPU."""
    torch = sys.modules.get("torch")  # a session goes without
    if torch is None or torch.device(device).type == "cpu":
        return None
    told = torch.cuda.get_device_properties(device)
    kind = "MIG" if " MIG " in told.name else "GPU"
    return f"{kind}-{told.uuid}".encode()


class Watch(Protocol):
    """Called by a thread of the library's."""

    def peer_died(self, what: str) -> None: ...


@dataclasses.dataclass(frozen=True)
class Limits:
    """What the session's GPU and its NUMA node have.

    The free bytes are those of the moment in which the session opened.
    Speeds are of the GPU's link under contention; 0 is unknown.
    """

    gpu_total_bytes: int
    gpu_free_bytes: int
    host_total_bytes: int
    host_free_bytes: int
    granularity_bytes: int  # leases are rounded up to a multiple of it
    h2d_bytes_per_second: float
    d2h_bytes_per_second: float
    guaranteed_bytes_per_second: float  # 0: there are no guarantees any more
    device: int | None = None  # of torch.device("cuda", …); None: simulated


class Session:
    """A connection to the daemon, under which memory is leased.

    Args:
        socket: of the daemon; None: $SLUICE_SOCKET, else the node's own, else
            one of the user's, which is started if there is none
            (user_daemon.py).
        job: label of the job, at most 64 characters, the same in all of its
            ranks. None: "python" with the process id, or with what the launcher
            calls the job; of further sessions that are open in this process
            with a number behind it.
        rank, world: this rank of how many. None: as torchrun, Slurm or MPI have
            told this process (launcher.py), else 0 of 1.
        gpu: the node's GPU that this rank uses, counted as the daemon does.
            None: the rank's number on its node.
        local_world: ranks of the job on this node; None: as the launcher told,
            else all.
        device: the GPU as torch calls it, instead of `gpu`: a torch.device of
            CUDA, or its name; found by its UUID. The CPU's is ignored.
        lease_wait_s: seconds that a lease may wait for memory instead of being
            refused at once, within the daemon's `longest_wait_s`; first come,
            first served. Leases that could be smaller do not wait.

    Attributes:
        socket: path; another process or session can open it too.
        job, rank: as given or found.
        gpu: as given, or the rank's number on its node.
        lease_wait_s: as given.
        daemon: None. It was the session's own daemon before daemons of users.

    Raises:
        Invalid: an argument is not what it may be.
        Error: NOT_FOUND or UNAVAILABLE without a daemon at the socket or
            without libsluice.so, or where the daemon does not serve `device`;
            ALREADY_EXISTS where this rank is attached.

    A context manager. Thread safety: safe.
    """

    @takes("Session", socket=PATH | NONE, job=short_text(64) | NONE,
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
        label = None if job else self.job  # to be given back
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
        self._watches: weakref.WeakSet[Watch] = weakref.WeakSet()
        self._end = weakref.finalize(self, _end, self._handle, label)

    def _opened(self, options: abi.SessionOptions, named: str | None
                ) -> int | None:
        """The handle of a session at `named`, or wherever the node's or the
        user's daemon is."""
        opened = ctypes.c_void_p()
        for last in (False, True):
            self.socket = named or user_daemon.socket_of_the_node()
            options.socket = os.fsencode(self.socket)
            try:
                self._library.check(self._library.session_open(
                    ctypes.byref(options), ctypes.byref(opened)))
                break
            except Error:
                # One of the user's may have ended meanwhile: the next is asked.
                if last or named or user_daemon.listens(self.socket):
                    raise
        return opened.value

    def limits(self) -> Limits:
        """What the daemon told when the session opened."""
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
        """One step's figures, for operators; does not wait for the daemon.

        Args:
            copies: of this step alone, not the engine's sums.

        Raises:
            Error: UNAVAILABLE when the daemon is gone; INVALID_ARGUMENT for a
                figure that no step can have, of which nothing is counted.
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
        """Submits this rank's profile of one step (proto/plan, as JSON) and
        waits until the job's other ranks on this node have submitted theirs
        and the daemon has planned. A plan with an "infeasible" that is not
        empty is an answer too. After two seconds a line on stderr says which
        ranks it waits for, unless `quiet`; Ctrl-C ends the wait.

        Raises:
            Error: INVALID_ARGUMENT for a profile that is none;
                DEADLINE_EXCEEDED; UNAVAILABLE when the daemon is gone.
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
        """(its number, the plan) that the daemon wants this rank to run by
        because jobs came or went: the newest one, until it is answered. Only
        its fractions are meant. Does not wait, and is known without a daemon
        too, where that was killed since."""
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
        """Says whether this rank takes a changed plan. Before it takes one it
        gives back the host memory that the plan does not have any more; a rank
        that asked `plan` and never answers lets jobs that join wait for a
        minute. `note`: one line for people. Does not wait for the daemon.

        Raises:
            Error: UNAVAILABLE when the daemon is gone.
        """
        self._library.check(self._library.session_answer_change(
            self._value(), number, int(taken), note.encode()))

    def _watched_by(self, watch: Watch) -> None:
        """`watch` hears of dead processes of the job on this node, as long as
        something refers to it."""
        self._watches.add(watch)
        if self._calls.on_event is None:
            watches = self._watches  # and not the session, which ends by itself

            def tell(_: int | None, kind: int, detail: bytes) -> None:
                for each in [*watches] if kind == abi.PEER_DIED else ():
                    each.peer_died(detail.decode("utf-8", "replace"))

            self._calls.on_event = abi.EventHandler(tell)
            self._library.check(self._library.session_on_event(
                self._value(), self._calls.on_event, None))

    def check_connected(self) -> None:
        """Raises `Error` UNAVAILABLE where the daemon is known to be gone."""
        self.answer_change(_NO_PLAN, False)  # which the daemon ignores

    @takes("lease_host", nbytes=_BYTES, wait_s=_WAIT | NONE)
    def lease_host(self, nbytes: int, *, wait_s: float | None = None
                   ) -> Region:
        """Pinned host memory on the GPU's NUMA node; see `Region`. `wait_s`:
        in the place of the session's `lease_wait_s`.

        Raises:
            Error: RESOURCE_EXHAUSTED over the budget or the pool, and
                DEADLINE_EXCEEDED where it waited for that in vain, with the
                daemon's line; UNAVAILABLE when the daemon is gone.
        """
        return self._region(abi.HOST, nbytes, wait_s)

    @takes("lease_gpu", nbytes=_BYTES, wait_s=_WAIT | NONE)
    def lease_gpu(self, nbytes: int, *, wait_s: float | None = None) -> Region:
        """Memory of the session's GPU; otherwise like `lease_host`."""
        return self._region(abi.GPU, nbytes, wait_s)

    def _region(self, kind: int, nbytes: int, wait_s: float | None) -> Region:
        return Region(self, kind, nbytes,
                      self.lease_wait_s if wait_s is None else wait_s)

    def close(self) -> None:
        """Waits for copies in flight, then gives everything back to the
        daemon. Regions stay readable; arenas do not. Twice is fine."""
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
        """The handle, to call the library with now."""
        if not self._handle.ours():
            raise forked("the session")
        if not self._handle.value:
            raise Error(Status.FAILED_PRECONDITION,
                        "the session is closed: open another")
        return self._handle.value
