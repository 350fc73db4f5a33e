"""Stops this rank when another one fails, on real GPUs and on several nodes.

[Note: waiting on a GPU]
On a GPU a collective is only enqueued. The host waits wherever numbers are
read, the user's code included, and NCCL's kernels wait for a dead rank until a
time-out of minutes. So a thread checks whether a rank has reported a failure
(`Ranks.told`), and the daemon, or another node (`peer_line`), reports the death
of a process. Either report makes this process abort all its NCCL groups,
FSDP2's too. Work that was waiting continues with void results, so the stream
raises `PeerFailed` at its next check. If the host waits in the user's code, the
error is raised there, as KeyboardInterrupt is for Ctrl-C.

If the node with the store has lost power, a read of the store never returns. So
the thread that receives a report of a death also handles it, and on several
nodes the computing thread does not read the store.
"""
from __future__ import annotations

import sys
import threading

import torch
import torch.distributed as dist

from sluice.base.errors import PeerFailed, Status
from sluice.native.session import Session
from sluice.ranks import peer_line
from sluice.ranks.board import start_looking
from sluice.ranks.groups import LOOK_S, Ranks


class PeerWatch:
    """Watches the ranks that share this rank's sequences until one fails,
    `close` is called, or nothing refers to this object. Thread safety: safe."""

    def __init__(self, ranks: Ranks, session: Session, device: torch.device):
        self._ranks, self._device = ranks, device
        self.computes()
        self._ending = threading.Lock()
        self._over = threading.Event()
        session._watched_by(self)
        self._line = peer_line.of_job()
        if self._line is not None:
            self._line.heard_by(self)
            ranks.hears_deaths = True
        start_looking(self, LOOK_S, self._over, "sluice peers")

    @staticmethod
    def of(ranks: Ranks | None, session: Session, device: torch.device
           ) -> PeerWatch | None:
        """Returns a watch; None if Gloo and the board report all failures."""
        if ranks is None or (device.type == "cpu"
                             and not peer_line.several_nodes()):
            return None
        return PeerWatch(ranks, session, device)

    def computes(self) -> None:
        """Notes that the calling thread and its current stream compute."""
        self._thread = threading.get_ident()
        self._stream = None if self._device.type == "cpu" else (
            torch.cuda.current_stream(self._device))

    def peer_died(self, what: str) -> None:
        """Handles a death that the daemon or the line reports: "rank 1 of job
        demo: killed by signal 9"."""
        if self._line is not None:
            self._line.tell(what)
        self._end(what)

    def close(self) -> None:
        self._over.set()

    def look(self) -> None:
        told = self._ranks.told()
        if told:
            self._end(told)

    def _end(self, told: str) -> None:
        with self._ending:
            if self._over.is_set():
                return
            self._over.set()
        failed, on_gpu = PeerFailed(Status.ABORTED, told), (
            self._stream is not None)
        print(f"sluice: {told}:", "collectives of this process are aborted"
              if on_gpu else "this rank cannot go on", file=sys.stderr,
              flush=True)
        waits = self._stream is None or not self._stream.query()
        # Before abort() ends the thread's wait.
        self._ranks.fail(failed, self._thread if waits else None)
        # Gloo's collectives fail when the dead rank's connections close.
        for group in [*dist.distributed_c10d._world.pg_map] if on_gpu else ():
            group.abort()
