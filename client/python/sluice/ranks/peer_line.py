"""Tells the processes of a job on several nodes that one of them has died.

[Note: the line]
client/train/launch/peer_line.h describes the protocol and the reasons for it.
Each rank has a connection to rank 0, the line; if a connection closes and the
message "end" was not sent, a process has died.
"""
from __future__ import annotations

import contextlib
import multiprocessing.util
import os
import secrets
import select
import socket
import sys
import threading
import time
import weakref
from typing import Any

import torch.distributed as dist

from sluice.native import launcher
from sluice.ranks.board import Board

# Seconds until rank 0 reports a closed connection as a death: ranks on the dead
# one's node may first report what their daemon knows of the death.
NAMING_S = 0.5
_TICK_MS = 100
_LOOK_S = 0.2  # seconds between two attempts to reach rank 0
_MOST_UNREAD = 256  # bytes buffered from a connection without a valid token
# After two seconds of silence, four probes at intervals of one second.
_KEEP_ALIVE = ((socket.TCP_KEEPIDLE, 2), (socket.TCP_KEEPINTVL, 1),
               (socket.TCP_KEEPCNT, 4))


def several_nodes() -> bool:
    """Returns whether the job spans several nodes, as its launcher says."""
    place = launcher.place()
    return place.local_world is not None and place.local_world < place.world


class _Peer:
    def __init__(self, connection: socket.socket, rank: int | None):
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEP_ALIVE:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        self.connection, self.rank = connection, rank
        self.unread, self.closed_at = b"", float("inf")

    def send(self, line: str) -> None:
        # Messages are few and short: a full buffer means that the node is dead.
        with contextlib.suppress(OSError):
            self.connection.send(f"{line}\n".encode())

    def lines(self) -> list[str]:
        """Returns the complete lines that have arrived. Sets `closed_at` if the
        connection is closed."""
        with contextlib.suppress(BlockingIOError):
            # These errors report a reset or a keepalive time-out.
            with contextlib.suppress(ConnectionError, TimeoutError):
                while some := self.connection.recv(4096):
                    self.unread += some
            self.closed_at = min(self.closed_at, time.monotonic())
        *whole, self.unread = self.unread.split(b"\n")
        return [line.decode("utf-8", "replace") for line in whole]


class Line:
    """This process's end of the line ([Note: the line]). A thread receives
    reports of deaths until the process ends. Thread safety: safe."""

    def __init__(self, board: Board):
        self._board, self.rank = board, dist.get_rank()
        self._hears: weakref.WeakSet[Any] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._listener: socket.socket | None = None  # rank 0's
        self._peers: list[_Peer] = []  # on rank 0 all other ranks, else rank 0
        self._died, self._heard, self._ended = "", "", False
        self._token = ""
        if self.rank == 0:
            self._listener = socket.create_server(
                ("", 0), family=socket.AF_INET6, dualstack_ipv6=True
            ) if socket.has_dualstack_ipv6() else socket.create_server(("", 0))
            self._listener.setblocking(False)
            self._token = secrets.token_hex(8)
            host = os.environ.get("MASTER_ADDR") or socket.gethostname()
            port = self._listener.getsockname()[1]
            board.update("line", lambda _: {
                "host": host, "port": port, "token": self._token})
        threading.Thread(target=self._run, name="sluice line",
                         daemon=True).start()
        # Not atexit: processes of multiprocessing do not run it.
        multiprocessing.util.Finalize(None, self.end, exitpriority=0)
        # A forked DataLoader worker must not keep a dead rank's connection.
        os.register_at_fork(after_in_child=self._close)

    def heard_by(self, hears: Any) -> None:
        """Calls `hears.peer_died`, on the line's thread, when this process
        learns of a death. Keeps only a weak reference."""
        self._hears.add(hears)

    def tell(self, what: str) -> None:
        """Reports to all other ranks that a process has died, unless a death
        was reported before or this process has ended its line."""
        with self._lock:
            if not self._died and not self._ended:
                self._died = what.partition("\n")[0]
                self._send(f"died {self._died}")

    def end(self) -> None:
        """Declares that the end of this process is not a death. If an exception
        ends the process, reports the exception to all ranks instead."""
        error = getattr(sys, "last_value", None)
        if error is not None:
            self.tell(f"rank {self.rank} failed: {type(error).__name__}: "
                      f"{error}")
        with self._lock:
            if not self._ended and error is None:
                self._send("end")
            self._ended = True

    def _close(self) -> None:
        self._ended = True
        for peer in self._peers:
            peer.connection.close()
        if self._listener is not None:
            self._listener.close()

    def _send(self, line: str) -> None:
        for peer in self._peers:
            if peer.rank is not None:
                peer.send(line)

    def _run(self) -> None:
        while not self._ended:
            if self._listener is None and not self._peers:
                if not self._reach():
                    time.sleep(_LOOK_S)
                    continue
            waiting = select.poll()
            for each in [self._listener, *(
                    p.connection for p in self._peers
                    if p.closed_at == float("inf"))]:
                if each is not None:
                    waiting.register(each, select.POLLIN)
            waiting.poll(_TICK_MS)
            with self._lock:
                heard = "" if self._ended else self._look()
            for hears in [*self._hears] if heard else ():
                hears.peer_died(heard)
            if self._listener is None and not self._peers:
                return  # rank 0 has ended normally

    def _reach(self) -> bool:
        """Connects to rank 0; returns False if that is not possible yet."""
        try:
            place = self._board.read("line")
            if place is None:
                return False
            connection = socket.create_connection(
                (place["host"], place["port"]), timeout=10)
        except (OSError, RuntimeError):  # the store is gone, or no route
            return False
        with self._lock:
            peer = _Peer(connection, 0)
            self._peers.append(peer)
            peer.send(f"{place['token']} {self.rank}")
        return True

    def _look(self) -> str:
        """Reads all connections and, on rank 0, accepts new ones. Returns a
        death that was not returned before, or ""."""
        self._peers = [peer for peer in self._peers if self._read(peer)]
        naming = 0.0 if self._listener is None else NAMING_S
        for peer in self._peers:
            if time.monotonic() - peer.closed_at >= naming:
                self._hear(f"rank {peer.rank}: its process has ended")
        if self._listener is not None:
            with contextlib.suppress(BlockingIOError):
                while True:
                    self._peers.append(_Peer(self._listener.accept()[0], None))
        heard, self._heard = self._heard, ""
        return heard

    def _read(self, peer: _Peer) -> bool:
        """Handles the lines of a connection; returns False if it is to be
        dropped. A connection is trusted only after its token has come, because
        any host on the network may connect."""
        if not all(self._obey(peer, line) for line in peer.lines()):
            return False
        return peer.rank is not None or (
            peer.closed_at == float("inf") and len(peer.unread) < _MOST_UNREAD)

    def _obey(self, peer: _Peer, line: str) -> bool:
        if peer.rank is None:
            token, _, rank = line.partition(" ")
            if not secrets.compare_digest(token.encode(), self._token.encode()):
                return False
            peer.rank = int(rank)
            if self._died:
                peer.send(f"died {self._died}")
        elif line.startswith("died "):
            self._hear(line.removeprefix("died "))
        return line != "end"

    def _hear(self, what: str) -> None:
        if self._died:
            return
        self._died = self._heard = what
        if self._listener is not None:
            self._send(f"died {what}")


_lines: weakref.WeakKeyDictionary[dist.ProcessGroup, Line] = (
    weakref.WeakKeyDictionary())


def of_job() -> Line | None:
    """Returns the line of this process's job, made at the first call; None if
    the job is on one node or torch.distributed is not initialised."""
    board = Board.of_job()
    if board is None or not several_nodes():
        return None
    world = dist.distributed_c10d._get_default_group()
    if world not in _lines:
        _lines[world] = Line(board)
    return _lines[world]
