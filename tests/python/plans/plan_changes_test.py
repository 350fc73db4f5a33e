"""All ranks of a job take a changed plan at the same step, or none does. The
losses are bit-identical to those of an undisturbed run."""

from __future__ import annotations

import contextlib
import random

import pytest
import torch.distributed as dist
from changing import RANKS, work
from gloo import run_ranks
from private_daemon import PrivateDaemon
from support import forked

from sluice.plan.plan_changes import Changes, Decision, Offer
from sluice.ranks.board import Board

# So few that each rank gets an extent of 4 MiB less when a second job joins.
HOST_BYTES = 22 << 20


def test_plan_changes_change_no_bit(tmp_path):
    """Runs the cases of changing.py. The last case kills the daemon."""
    with contextlib.closing(PrivateDaemon(
            gpus=RANKS + 1, gpu_bytes=64 << 20,
            host_bytes=HOST_BYTES)) as daemon:
        ranks = forked(lambda: run_ranks(
            RANKS, work, str(tmp_path / "group"), daemon.socket, daemon.pid))
    assert ranks.returncode == 0, ranks.stdout + ranks.stderr


# --- which plan is taken, and at which step ----------------------------------

class Ranks:
    """The ranks of one job, which step in random order."""

    def __init__(self, count, seed):
        self.board = Board(dist.HashStore())
        self.changes = [Changes("job", rank, lambda: self.board)
                        for rank in range(count)]
        for one in self.changes:
            one._stream = 0  # as in separate processes
        self.random = random.Random(seed)
        self.steps = [0] * count
        self.offers: list[Offer | None] = [None] * count
        self.decided: list[list[tuple[int, Decision]]] = [
            [] for _ in range(count)]

    def offer(self, rank, plan, refusal=""):
        self.offers[rank] = Offer(plan, range(len(self.steps)), refusal)

    def run(self, steps):
        """Runs steps. No rank gets more than two steps ahead of another."""
        for _ in range(steps * len(self.steps)):
            rank = self.random.choice([
                r for r, step in enumerate(self.steps)
                if step <= min(self.steps) + 1])
            made = self.changes[rank].step(self.steps[rank],
                                           self.offers[rank])
            if made is not None:
                self.decided[rank].append((self.steps[rank], made))
                if self.offers[rank].plan == made.plan:
                    self.offers[rank] = None  # the offer was answered
            self.steps[rank] += 1


@pytest.mark.parametrize("seed", range(40))
def test_all_ranks_take_a_plan_at_one_step_or_none_does(seed):
    ranks = Ranks(2 + seed % 4, seed)
    for plan in range(1, 4):
        refuses = ranks.random.random() < 0.3
        for rank in ranks.random.sample(range(len(ranks.steps)),
                                        len(ranks.steps)):
            # Some ranks are first offered another plan, which `plan` replaces.
            if ranks.random.random() < 0.3:
                ranks.offer(rank, 10 * plan + 1)
                ranks.run(ranks.random.randrange(3))
            ranks.offer(rank, 10 * plan,
                        "full" if refuses and rank == 0 else "")
            ranks.run(ranks.random.randrange(3))
        ranks.run(5)
        made = ranks.decided[0]
        assert ranks.decided == [made] * len(ranks.steps)
        assert made[-1][1] == Decision(10 * plan, "rank 0: full" if refuses
                                       else "")
    assert ranks.offers == [None] * len(ranks.steps)


def test_ranks_with_different_offers_keep_running():
    ranks = Ranks(3, 0)
    ranks.offer(0, 1)
    ranks.offer(1, 1)
    ranks.run(20)
    ranks.offer(2, 2)
    ranks.run(20)
    assert ranks.decided == [[], [], []]


def test_the_board_is_not_read_without_an_offer():
    def board():
        raise AssertionError("the board was read without an offer")

    changes = Changes("job", 0, board)
    assert [changes.step(i, None) for i in range(3)] == [None] * 3
    # A job with one rank decides alone.
    assert changes.step(3, Offer(1, [0])) == Decision(1, "")


def test_ranks_without_a_board_refuse_a_change():
    changes = Changes("job", 0, lambda: None)
    assert "torch.distributed is not initialised" in changes.step(
        0, Offer(1, [0, 1])).refusal

    def gone():
        raise RuntimeError("Connection reset by peer")

    changes = Changes("job", 0, gone)
    assert "Connection reset" in changes.step(0, Offer(1, [0, 1])).refusal
