"""What the ranks of a job tell each other beside their collectives.

A collective would have all ranks wait for each other in every step, only to
hear that there is nothing new. So a rank that has something to say writes it
into the store of torch.distributed, by which the processes found each other,
and the others read it there when they look for it.
"""
from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist

from sluice.base.errors import Error, PeerFailed, Status

Value = dict[str, Any]


class Board:
    """Values of JSON by key, in a store that all ranks share.

    Every call is one or two round trips and never waits for another rank.
    Raises `RuntimeError` where the store is gone. Thread safety: safe.
    """

    def __init__(self, store: dist.Store):
        self._store = store

    @staticmethod
    def of_job() -> Board | None:
        """None where torch.distributed is not initialised."""
        if not (dist.is_available() and dist.is_initialized()):
            return None
        return Board(dist.PrefixStore(
            "sluice", dist.distributed_c10d._get_default_store()))

    def read(self, key: str) -> Value | None:
        """None where nothing was written; `get` would wait for it."""
        if not self._store.check([key]):
            return None
        return json.loads(self._store.get(key))

    def update(self, key: str, change: Callable[[Value | None], Value]
               ) -> Value:
        """What is there after `change` of what was there: at once, as seen by
        all ranks. `change` may be called again where another rank was
        faster."""
        seen = self._store.get(key) if self._store.check([key]) else b""
        while True:
            wanted = json.dumps(change(json.loads(seen) if seen else None),
                                sort_keys=True).encode()
            found = self._store.compare_set(key, seen.decode(),
                                            wanted.decode())
            if found == wanted:
                return json.loads(found)
            seen = found


def check_daemon(socket: str) -> None:
    """Raises `Error` where another rank of the job on this node has another
    daemon: neither would know what the other one leases and copies."""
    board = Board.of_job()
    if board is None:
        return
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        node = file.read().strip()
    # Containers may mount one socket at several paths; a daemon that was
    # started again has another file.
    own = {"rank": dist.get_rank(), "socket": socket,
           "file": os.stat(socket).st_ino}
    told = board.update(f"daemon/{node}", lambda told: told or own)
    if told["socket"] != socket and told["file"] != own["file"]:
        raise Error(Status.FAILED_PRECONDITION, (
            f"rank {own['rank']} has the daemon at {socket}, and rank "
            f"{told['rank']} on the same node that at {told['socket']}: name "
            "one of them to both by SLUICE_SOCKET"))


FAILED = "failed"  # the key of what a rank raised in a streamed step
# Seconds that ranks may be apart: in their steps, and by their nodes' clocks.
APART_S = 60.0


def _is_anothers(told: Value | None, since: float) -> bool:
    """Whether another rank raised that, not long before the time `since`."""
    return told is not None and told["rank"] != dist.get_rank() and (
        told["time"] >= since - APART_S)


@contextlib.contextmanager
def telling_job() -> Iterator[None]:
    """What is raised within is written on the job's board: ranks that wait for
    this one in a collective that is not ours, FSDP2's or DDP's, cannot be
    called back (Gloo's `abort` ends no collective that has begun), but the
    board can say what they wait for. What another rank has raised meanwhile
    stays: this one is its victim."""
    begun = time.time()
    try:
        yield
    except PeerFailed:
        raise  # it was told, and where the store's node is lost no write ends
    except BaseException as error:
        board, what = Board.of_job(), f"{type(error).__name__}: {error}"
        if board is not None:
            # Where there is no store any more no rank can be told.
            with contextlib.suppress(RuntimeError):
                own = {"rank": dist.get_rank(), "what": what[:500],
                       "time": time.time()}
                board.update(FAILED, lambda told: told if told and _is_anothers(
                    told, begun) else own)
        raise


def failed_rank(since: float) -> str:
    """What another rank raised first, not long before `since`; "": nothing."""
    try:
        board = Board.of_job()
        told = None if board is None else board.read(FAILED)
    except RuntimeError:
        return ""
    if told is None or not _is_anothers(told, since):
        return ""
    return f"rank {told['rank']} failed: {told['what']}"
