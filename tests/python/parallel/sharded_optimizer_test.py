"""sluice.AdamW under FSDP2 is bit-identical to torch's AdamW, and each can
load the other's states. There is one process per rank, on Gloo."""

from __future__ import annotations

import contextlib

import pytest
from gloo import run_ranks
from private_daemon import PrivateDaemon
from sharded_optimizer import work
from support import forked


@pytest.mark.parametrize("case", ["steps", "half", "states", "ddp"])
def test_adamw_of_shards_passes_each_case(tmp_path, case):
    with contextlib.closing(PrivateDaemon(gpus=1)) as daemon:
        ranks = forked(lambda: run_ranks(
            2, work, 2, str(tmp_path / "group"), daemon.socket, case))
    assert ranks.returncode == 0, ranks.stdout + ranks.stderr
