"""Invalid data from an unknown client does not end rank 0's watch over the
others."""

from __future__ import annotations

import socket

import pytest
import torch.distributed as dist
from support import await_true, forked

from sluice.ranks.board import Board
from sluice.ranks.peer_line import Line


class Hears:
    def __init__(self) -> None:
        self.told: list[str] = []

    def peer_died(self, what: str) -> None:
        self.told.append(what)


@pytest.mark.parametrize("written", [
    b"\xff\xfe 1\n", b"GET / HTTP/1.0\r\nHost: rank0\r\n\r\n", b"x" * 1000,
    b""])
def test_a_stranger_is_no_rank(written):
    def run():
        store = dist.HashStore()
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        board, hears = Board(store), Hears()
        line = Line(board)
        line.heard_by(hears)
        place = board.read("line")
        to = ("127.0.0.1", place["port"])
        with socket.create_connection(to) as stranger:
            stranger.sendall(written)
        with socket.create_connection(to) as flood:
            flood.sendall(written)
            rank = socket.create_connection(to)
            rank.sendall(f"{place['token']} 1\n".encode())
            await_true("it has its rank", lambda: any(
                peer.rank == 1 for peer in line._peers))
            rank.close()
            await_true("it is told", lambda: hears.told)
            flood.setblocking(False)
            try:
                closed = flood.recv(1) == b""
            except BlockingIOError:
                closed = False
            except ConnectionError:
                closed = True
        assert hears.told == ["rank 1: its process has ended"]
        assert closed == bool(written)
    ended = forked(run)
    assert ended.returncode == 0, ended.stdout + ended.stderr
