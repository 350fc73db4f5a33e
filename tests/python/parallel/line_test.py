"""Tests rank 0's end of the connections by which ranks watch each other
(Line). Invalid data from a stranger does not end the watch, and a process that
ends tells its peers why."""

from __future__ import annotations

import socket
import sys

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


def line_of_rank_0():
    """Returns rank 0's line, its address and its token. Makes this process
    rank 0 of a new group."""
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    board = Board(store)
    line = Line(board)
    place = board.read("line")
    return line, ("127.0.0.1", place["port"]), place["token"]


def connected_as_1(line, to, token):
    rank = socket.create_connection(to)
    rank.sendall(f"{token} 1\n".encode())
    await_true("the connection is known as rank 1", lambda: any(
        peer.rank == 1 for peer in line._peers))
    return rank


@pytest.mark.parametrize("written", [
    b"\xff\xfe 1\n", b"GET / HTTP/1.0\r\nHost: rank0\r\n\r\n", b"x" * 1000,
    b""])
def test_invalid_data_from_a_stranger_does_not_end_the_watch(written):
    def run():
        line, to, token = line_of_rank_0()
        hears = Hears()
        line.heard_by(hears)
        with socket.create_connection(to) as stranger:
            stranger.sendall(written)
        with socket.create_connection(to) as flood:
            flood.sendall(written)
            connected_as_1(line, to, token).close()
            await_true("the end of rank 1 is reported", lambda: hears.told)
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


@pytest.mark.parametrize("error, told", [
    (None, b"end\n"),
    (KeyError("x"), b"died rank 0 failed: KeyError: 'x'\n")])
def test_a_process_that_ends_tells_its_exception_to_peers(error, told):
    def run():
        line, *place = line_of_rank_0()
        with connected_as_1(line, *place) as rank:
            sys.last_value = error
            line.end()
            assert rank.recv(1000) == told
    ended = forked(run)
    assert ended.returncode == 0, ended.stdout + ended.stderr
