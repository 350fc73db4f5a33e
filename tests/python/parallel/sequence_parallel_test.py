"""Ranks that share sequences have the gradients of the plain model on the
whole sequences. There is one process per rank, on Gloo."""

from __future__ import annotations

import contextlib

import pytest
from gloo import run_ranks
from group_behaviours import BEHAVIOURS
from group_heads import BEHAVIOURS_OF_HEADS
from group_layers import LAYERS
from groups import CASES, ONLY_DEEP, work
from private_daemon import PrivateDaemon
from support import DEEP, forked


@pytest.mark.parametrize("world,cases", [
    (2, [*CASES[2], *BEHAVIOURS, *BEHAVIOURS_OF_HEADS, *LAYERS]),
    (4, CASES[4])],
    ids=["two ranks", "four ranks"])
def test_ranks_that_share_sequences_pass_each_case(tmp_path, world, cases):
    cases = [case for case in cases if DEEP or case not in ONLY_DEEP[world]]
    with contextlib.closing(PrivateDaemon(gpus=1)) as daemon:
        ranks = forked(lambda: run_ranks(
            world, work, world, str(tmp_path / "group"), daemon.socket, cases))
    assert ranks.returncode == 0, ranks.stdout + ranks.stderr
