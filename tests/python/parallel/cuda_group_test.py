"""Tests two ranks that share sequences, each on its own GPU of the fake
driver, with torch's ProcessGroupNCCL over a fake of NCCL (tests/fake_cuda).
This proves nothing about a real GPU."""

from __future__ import annotations

import pytest
from support import deep

pytest_plugins = "fake_node"  # the fixture `node`


@pytest.mark.parametrize("what", ["shared", "sharded", "planned", "waits",
                                  deep("automatic")])
def test_shared_sequences_have_the_gradients_of_the_plain_model(
        node, tmp_path, what):
    ran = node.run("cuda_group.py", str(tmp_path), what)
    print(ran.stderr)
    assert ran.returncode == 0 and ran.stdout == "same\nsame\n", (
        ran.stdout + ran.stderr)
    assert node.take_findings() == ""


@pytest.mark.parametrize("without", ["no_collective", "no_wait",
                                     deep("no_mark")])
def test_a_removed_wait_or_mark_is_detected(node, tmp_path, without):
    ran = node.run("cuda_group.py", str(tmp_path), "shared", without)
    assert ran.returncode != 0
    assert "is not ordered after" in node.take_findings(), ran.stderr


@pytest.mark.parametrize("how", ["killed", "killed_elsewhere", "left",
                                 "raised"])
def test_a_failed_rank_ends_the_other_within_five_seconds(node, tmp_path, how):
    """The fake NCCL does not report the failure. Neither does the real one
    between GPUs of one node."""
    ran = node.run("cuda_group.py", str(tmp_path), how,
                   SLUICE_FAKE_NCCL="silent=1")
    print(ran.stdout)
    assert "s: rank 1" in ran.stdout, ran.stdout + ran.stderr
    assert ran.stderr.count("AssertionError") == 0, ran.stderr
