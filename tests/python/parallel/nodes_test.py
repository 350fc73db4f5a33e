"""A killed rank on one of two nodes, or a cut network between the nodes, ends
the ranks of both nodes with errors that name a lost rank. The daemons of the
nodes do not know each other. There is one process per rank, on Gloo."""

from __future__ import annotations

import contextlib
import signal
import socket

import pytest
from gloo import FORK
from nodes import WORLD, work
from private_daemon import PrivateDaemon
from support import await_true, forked
from two_networks import TwoNetworks

import sluice


def free_at(socket_of_node: str) -> tuple[int, int]:
    with sluice.Session(socket_of_node, job="looks") as session:
        limits = session.limits()
        return limits.host_free_bytes, limits.gpu_free_bytes


# Rank 0 holds the store; rank 2 is alone on its node.
@pytest.mark.parametrize("victim,how", [
    (2, "compute"), (1, "collective"), (2, "lease"), (0, "compute"),
    (2, "cut")])
def test_a_lost_rank_ends_the_ranks_of_both_nodes(tmp_path, victim, how):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with contextlib.ExitStack() as nodes:
        sockets = [nodes.enter_context(contextlib.closing(
            PrivateDaemon(gpus=1))).socket for _ in range(2)]
        networks = None if how != "cut" else nodes.enter_context(
            contextlib.closing(TwoNetworks()))
        before = [free_at(each) for each in sockets]

        def run():
            ranks = [FORK.Process(target=work, args=(
                rank, victim, how, port, sockets, str(tmp_path), networks))
                for rank in range(WORLD)]
            for rank in ranks:
                rank.start()
            for rank in ranks:
                rank.join()
            expected = [0] * WORLD
            if networks is None:
                expected[victim] = -signal.SIGKILL
            assert [rank.exitcode for rank in ranks] == expected
        ranks = forked(run)
        print(ranks.stdout)
        assert ranks.returncode == 0, ranks.stdout + ranks.stderr
        await_true("memory is back",
                   lambda: [free_at(each) for each in sockets] == before)
