"""Ranks on two nodes: two daemons that do not know each other, and ranks that
no launcher of Sluice started. A rank that dies on one node ends the ranks of
both nodes. Their errors name the dead rank, and all memory is returned."""

import signal
import socket as socketlib
import subprocess
import sys
import time
import unittest

import either_node
import harness

sys.path.append(harness.SUPPORT)
from two_networks import TwoNetworks

# Limit from the death of one rank to the end of all others.
LIMIT_S = 10
WORLD = 3
NODES = (0, 0, 1)  # node of each rank


class Nodes(either_node.NodeTest):
    def setUp(self):
        super().setUp()
        self.sockets = [self.daemon(name=name, gpus=WORLD)
                        for name in ("a", "b")]

    def start_ranks(self, *flags, after=lambda log: len(log) >= 2,
                    networks=None):
        """Starts the ranks, each on the network of its node, and returns them
        once `after` holds for rank 0's log."""
        with socketlib.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        log = self.path(port)
        ranks = [self.start(
            [harness.TRAIN, "train", *harness.MODEL, "--ranks", str(WORLD),
             "--seq-len", "300", "--steps", "100000", "--hbm", "16MiB",
             "--data", self.text, "--log-jsonl", log, "--socket",
             self.sockets[node],
             # NCCL's fake identifies a GPU by its number, regardless of the
             # node.
             "--gpu", ",".join(str(r) for r in range(WORLD)
                               if NODES[r] == node),
             *flags],
            {"RANK": str(rank), "WORLD_SIZE": str(WORLD),
             "LOCAL_RANK": str(rank - NODES.index(node)),
             "LOCAL_WORLD_SIZE": str(NODES.count(node)),
             "MASTER_ADDR": (networks.ADDRESSES[0] if networks
                             else "127.0.0.1"),
             "MASTER_PORT": port,
             # NCCL does not report a rank's death, as within a node and over
             # most networks.
             "SLUICE_FAKE_NCCL": "silent=1"},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            preexec_fn=networks and (lambda n=node: networks.enter(n)))
            for rank, node in enumerate(NODES)]
        self.wait_until(lambda: after(harness.lines_of(log)),
                        lambda: "not all ranks started: "
                        f"{[r.poll() for r in ranks]}")
        return ranks

    def expect_ends(self, ranks, victim, names, killed):
        """Checks that all other ranks end within the limit after the time
        `killed` and print what `names` matches."""
        others = [r for r in range(WORLD) if r != victim]
        said = {r: ranks[r].communicate(timeout=harness.PATIENCE_S)[1]
                for r in others}
        took = time.monotonic() - killed
        ranks[victim].communicate()
        print(f"rank {victim}: the others ended after {took:.1f} s")
        for rank in others:
            self.assertEqual(ranks[rank].returncode, 1, said[rank])
            self.assertRegex(said[rank], f"error: rank {rank}: {names[rank]}")
        self.assertLess(took, LIMIT_S)
        for socket in self.sockets:
            self.wait_until(lambda s=socket: self.leased(s) == 0,
                            "the dead job's memory is not free")

    def kill(self, ranks, victim):
        ranks[victim].kill()
        return time.monotonic()

    # The daemon of the victim's node reports the signal to the ranks of both
    # nodes.
    def test_a_rank_killed_in_compute_ends_the_waiting_ranks(self):
        ranks = self.start_ranks()
        ranks[1].send_signal(signal.SIGSTOP)
        time.sleep(1)
        self.assertEqual([r.poll() for r in ranks], [None] * WORLD)
        self.expect_ends(ranks, 1, ["rank 1 of job .*signal 9"] * WORLD,
                         self.kill(ranks, 1))

    # No rank is left on the victim's node.
    def test_a_rank_killed_in_a_collective_ends_the_other_node(self):
        ranks = self.start_ranks()
        for rank in (0, 1):
            ranks[rank].send_signal(signal.SIGSTOP)
        time.sleep(1)  # rank 2 reaches a collective and waits there
        killed = self.kill(ranks, 2)
        for rank in (0, 1):
            ranks[rank].send_signal(signal.SIGCONT)
        self.expect_ends(ranks, 2, ["rank 2 "] * WORLD, killed)

    def test_a_rank_killed_at_a_lease_ends_the_others(self):
        holder = self.start(
            [harness.TRAIN, "train", *harness.MODEL, "--seq-len", "300",
             "--steps", "100000", "--hbm", "60MiB", "--data", self.text,
             "--socket", self.sockets[1], "--job", "holder", "--gpu", "2",
             "--log-jsonl", self.path("holder")],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.wait_until(lambda: len(harness.lines_of(self.path("holder"))) > 1,
                        "the other job does not train")
        held = self.leased(self.sockets[1])
        ranks = self.start_ranks(
            "--wait", "300",
            after=lambda _: self.status(self.sockets[1])["waiting"])
        killed = self.kill(ranks, 2)
        said = [ranks[r].communicate(timeout=harness.PATIENCE_S)[1]
                for r in (0, 1)]
        self.assertLess(time.monotonic() - killed, LIMIT_S)
        for rank in (0, 1):
            self.assertRegex(said[rank], f"error: rank {rank}: rank 2 ")
        self.wait_until(lambda: self.leased(self.sockets[0]) == 0,
                        "memory is still leased")
        self.assertEqual(self.leased(self.sockets[1]), held)
        holder.kill()

    # Rank 0 holds torch's store, through which ranks learn of a death.
    def test_a_killed_rank_with_the_store_ends_all(self):
        ranks = self.start_ranks()
        self.expect_ends(ranks, 0, ["rank 0 "] * WORLD,
                         self.kill(ranks, 0))

    # As in a power cut, no packet arrives, and no connection is closed.
    def test_a_cut_network_ends_both_nodes(self):
        networks = TwoNetworks()
        self.addCleanup(networks.close)
        ranks = self.start_ranks(networks=networks)
        networks.cut()
        cut = time.monotonic()
        said = [rank.communicate(timeout=harness.PATIENCE_S)[1]
                for rank in ranks]
        took = time.monotonic() - cut
        print(f"the ranks of both nodes ended after {took:.1f} s")
        self.assertLess(took, LIMIT_S)
        for rank, lost in ((0, 2), (1, 2), (2, 0)):
            self.assertEqual(ranks[rank].returncode, 1, said[rank])
            self.assertRegex(said[rank], f"error: rank {rank}: rank {lost} ")

    def test_a_stopped_rank_ends_no_other(self):
        ranks = self.start_ranks()
        ranks[0].send_signal(signal.SIGSTOP)
        time.sleep(LIMIT_S)
        self.assertEqual([r.poll() for r in ranks], [None] * WORLD)
        ranks[0].send_signal(signal.SIGCONT)
        for rank in ranks:
            rank.send_signal(signal.SIGTERM)
        for rank in ranks:
            _, err = rank.communicate(timeout=harness.PATIENCE_S)
            self.assertEqual(rank.returncode, 130, err)


if __name__ == "__main__":
    unittest.main()
