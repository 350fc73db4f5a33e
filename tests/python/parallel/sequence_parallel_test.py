"""Sequences that ranks share have the gradients of the whole sequences on the
model itself. Real processes, on Gloo."""

from __future__ import annotations

import contextlib
import subprocess
import sys

import pytest
from group_behaviours import BEHAVIOURS
from group_heads import BEHAVIOURS_OF_HEADS
from group_layers import LAYERS
from groups import CASES
from support import TESTS, environment

from sluice.daemon import PrivateDaemon

WORKER = str(TESTS / "groups.py")


@pytest.mark.parametrize("world,cases", [
    (2, [*CASES[2], *BEHAVIOURS, *BEHAVIOURS_OF_HEADS, *LAYERS]),
    (4, CASES[4])],
    ids=["two ranks", "four ranks"])
def test_ranks_that_share_sequences_pass_each_case(tmp_path, world, cases):
    with contextlib.closing(PrivateDaemon(gpus=1)) as daemon:
        ranks = subprocess.run(
            [sys.executable, WORKER, str(world), str(tmp_path / "group"),
             daemon.socket, *cases], env=environment(), text=True,
            timeout=850, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert ranks.returncode == 0, ranks.stdout
