"""The board passes messages among a job's ranks. A rank writes into the store
of torch.distributed, through which the processes found each other, and the
others read it from time to time. With collectives all ranks would wait for each
other in every step, mostly without a message."""
from __future__ import annotations

import contextlib
import json
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist

from sluice.base.errors import Error, PeerFailed, Status

Value = dict[str, Any]


class Board:
    """JSON values by key, in a store that all ranks share. Calls take a few
    round trips to the store and need no other rank. They raise `RuntimeError`
    if the store is gone, and may never return if its node is lost. Thread
    safety: safe."""

    def __init__(self, store: dist.Store):
        self._store = store

    @staticmethod
    def of_job() -> Board | None:
        """Returns the job's board; None without torch.distributed."""
        if not (dist.is_available() and dist.is_initialized()):
            return None
        return Board(dist.PrefixStore(
            "sluice", dist.distributed_c10d._get_default_store()))

    def read(self, key: str) -> Value | None:
        """Returns the value of `key`, or None (`get` would wait)."""
        if not self._store.check([key]):
            return None
        return json.loads(self._store.get(key))

    def update(self, key: str, change: Callable[[Value | None], Value]
               ) -> Value:
        """Replaces a value by `change(value)` atomically, and returns the new
        value. `change` is called again if another rank writes in between."""
        seen = self._store.get(key) if self._store.check([key]) else b""
        while True:
            wanted = json.dumps(change(json.loads(seen) if seen else None),
                                sort_keys=True).encode()
            found = self._store.compare_set(key, seen.decode(), wanted.decode())
            if found == wanted:
                return json.loads(found)
            seen = found


def check_daemon(socket: str) -> None:
    """Raises `Error` if another rank of the job on this node uses another
    daemon: two daemons do not know of each other's leases and copies."""
    board = Board.of_job()
    if board is None:
        return
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        node = file.read().strip()
    # For one daemon the path or the file may differ, not both: containers may
    # mount a socket at several paths, and a restarted daemon makes a new file.
    own = {"rank": dist.get_rank(), "socket": socket,
           "file": os.stat(socket).st_ino}
    told = board.update(f"daemon/{node}", lambda told: told or own)
    if told["socket"] != socket and told["file"] != own["file"]:
        raise Error(Status.FAILED_PRECONDITION, (
            f"rank {own['rank']} uses the daemon at {socket}, but rank "
            f"{told['rank']} on the same node uses the one at "
            f"{told['socket']}: set SLUICE_SOCKET to one of them in both"))


FAILED = "failed"  # key of the error that a rank raised in a streamed step
# Seconds by which two ranks may differ in their clocks and progress together.
APART_S = 60.0


def _is_anothers(told: Value | None, since: float) -> bool:
    """Returns whether another rank raised `told` after `since` - APART_S."""
    return told is not None and told["rank"] != dist.get_rank() and (
        told["time"] >= since - APART_S)


@contextlib.contextmanager
def telling_job() -> Iterator[None]:
    """Writes an error raised within the block to the job's board. Ranks that
    wait for this one in a collective of FSDP2 or DDP cannot be interrupted
    (Gloo's `abort` ends no collective that has begun), but they can report the
    error. Another rank's recent error is not replaced: it is the likely cause.
    """
    begun = time.time()
    try:
        yield
    except PeerFailed:
        # The board has the error already, and if a node is lost, a write may
        # never return.
        raise
    except BaseException as error:
        board, what = Board.of_job(), f"{type(error).__name__}: {error}"
        if board is not None:
            # Ignore that the store is gone: no rank can be informed then.
            with contextlib.suppress(RuntimeError):
                own = {"rank": dist.get_rank(), "what": what[:500],
                       "time": time.time()}
                board.update(FAILED, lambda told: told if told and _is_anothers(
                    told, begun) else own)
        raise


def failed_rank(since: float) -> str:
    """Returns a line about the first error that another rank raised after
    `since` or at most APART_S before; "" if there is none."""
    try:
        board = Board.of_job()
        told = None if board is None else board.read(FAILED)
    except RuntimeError:
        return ""
    if told is None or not _is_anothers(told, since):
        return ""
    return f"rank {told['rank']} failed: {told['what']}"


def start_looking(looks: Any, every_s: float, over: threading.Event,
                  name: str) -> threading.Thread:
    """Starts a thread that calls `looks.look()` every `every_s` seconds until
    `over` is set or nothing else refers to `looks`."""
    thread = threading.Thread(target=_keep_looking, name=name, daemon=True,
                              args=(weakref.ref(looks), every_s, over))
    thread.start()
    return thread


def _keep_looking(looks: weakref.ref, every_s: float,
                  over: threading.Event) -> None:
    while not over.wait(every_s):
        alive = looks()
        if alive is None:
            return
        alive.look()
        del alive
