"""On sequences that two ranks share, Trainer and TRL's SFT log in each step
what they log of the plain model on one rank. There is one process per rank, on
Gloo."""

from __future__ import annotations

import contextlib
import json

from gloo import run_ranks
from loops import assert_equal_logs, train
from private_daemon import PrivateDaemon
from shared_loops import CASES, STEPS, work
from support import forked

# Other figures are sums over the ranks, which count the shared rows twice.
COMPARED = ("loss", "grad_norm", "train_loss", "learning_rate")


def test_two_ranks_log_each_step_as_one_rank_does(tmp_path):
    with contextlib.closing(PrivateDaemon(gpus=1)) as daemon:
        ranks = forked(lambda: run_ranks(
            2, work, str(tmp_path / "group"), daemon.socket, str(tmp_path),
            list(CASES)))
    assert ranks.returncode == 0, ranks.stdout + ranks.stderr
    for name, (make, _) in CASES.items():
        expected = [{k: v for k, v in step.items() if k in COMPARED}
                    for step in train(make, None)]
        skipped = 2 if "resumed" in name else 0
        assert len(expected) == STEPS + 1 - skipped
        assert "grad_norm" in expected[0]
        # Only rank 0 logs.
        assert_equal_logs(json.loads(
            (tmp_path / f"{name} 0.json").read_text()), expected)
