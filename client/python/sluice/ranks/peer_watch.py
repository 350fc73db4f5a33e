"""How a failed rank ends the others, where a real GPU computes or ranks are on
several nodes.

[Note: waiting on a GPU]
There a collective is only enqueued. The host waits wherever numbers are read,
the user's code included, and NCCL's kernels wait for a rank that is gone until
a time-out of minutes. So a thread looks whether a rank has told that it failed
(`Ranks.told`), and the daemon, or another node (`line`), tells when a process
of the job has died. Either aborts what this process has of NCCL, FSDP2's groups
too. What waited goes on, with results that are void, so the stream raises
wherever it runs; where the host had left it already and waits in the user's
code, an exception is raised there, as Ctrl-C's is.

Where the node with the store has lost its power a look into the store never
ends. So a death is acted on by the thread that brings it, and on several nodes
the thread that computes does not look.
"""
from __future__ import annotations

import ctypes
import sys
import threading
import weakref

import torch
import torch.distributed as dist

from sluice.base.errors import PeerFailed, Status
from sluice.native.session import Session
from sluice.ranks import peer_line
from sluice.ranks.groups import LOOK_S, Ranks


class PeerWatch:
    """Watches the ranks that share sequences, in one of them, until one has
    failed, `close` is called, or nothing refers to it.

    Thread safety: safe.
    """

    def __init__(self, ranks: Ranks, session: Session, device: torch.device):
        self._ranks, self._device = ranks, device
        # The one that computes, on the stream that is current there.
        self._thread = threading.get_ident()
        self._stream = _stream_of(device)
        self._ending = threading.Lock()
        self._over = threading.Event()
        session._watched_by(self)
        self._line = peer_line.of_job()
        if self._line is not None:
            self._line.heard_by(self)
            ranks.hears_deaths = True
        threading.Thread(target=_keep_looking, name="sluice peers", daemon=True,
                         args=(weakref.ref(self), self._over)).start()

    @staticmethod
    def of(ranks: Ranks | None, session: Session, device: torch.device
           ) -> PeerWatch | None:
        """None where Gloo and the board tell all that there is to know."""
        if ranks is None or device.type == "cpu" and not peer_line.several_nodes():
            return None
        return PeerWatch(ranks, session, device)

    def computes(self) -> None:
        """The calling thread begins a call of the model."""
        self._thread = threading.get_ident()
        self._stream = _stream_of(self._device)

    def peer_died(self, what: str) -> None:
        """By the daemon: "rank 1 of job demo: killed by signal 9"."""
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
        self._ranks.failed = failed
        waits = self._stream is None or not self._stream.query()
        if not self._ranks.within and waits:
            _raise_in(self._thread, failed)  # before what it waits for ends
        # Gloo's collectives end with the connections of the dead rank.
        for group in [*dist.distributed_c10d._world.pg_map] if on_gpu else ():
            group.abort()


def _stream_of(device: torch.device) -> torch.cuda.Stream | None:
    return None if device.type == "cpu" else torch.cuda.current_stream(device)


def _keep_looking(watch: weakref.ref[PeerWatch],
                  over: threading.Event) -> None:
    while not over.wait(LOOK_S):
        alive = watch()
        if alive is None:
            return
        alive.look()
        del alive


def _raise_in(thread: int, error: PeerFailed) -> None:
    """Between two lines of its Python, once its call of C has returned."""
    kind = type("PeerFailed", (PeerFailed,), {
        "__init__": lambda self: PeerFailed.__init__(self, *error.args)})
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread),
                                               ctypes.py_object(kind))
