"""Tests streamed steps on torch's CUDA device, on the fake driver. The driver's
race detector (tests/fake_cuda) finds each removed wait. This proves nothing
about a real GPU."""

from __future__ import annotations

import pytest
import torch
from support import deep

import sluice
from sluice.memory import compute_device

pytest_plugins = "fake_node"  # the fixture `node`


@pytest.mark.parametrize("what", [
    "device", "fits", "tried_on_its_device", "host", "rerun", "swapped",
    "automatic", "planned", "drawn", "waits", "windows", "streams", "handover",
    "rounded", "slots", "rounded_output", "by_efficient", "by_cudnn", "layouts",
    "by_scores", "no_kernel", "by_flash_through_windows", "optimizer",
    deep("rounded_optimizer"), "a_session_by_torchs_device"])
def test_a_step_is_exact_and_has_no_race(node, what):
    ran = node.run("cuda_step.py", what)
    print(ran.stdout)
    assert ran.returncode == 0 and ran.stdout.endswith("same\n"), ran.stderr
    assert node.take_findings() == ""


# If a link has a speed, its copies need the daemon's grants. The fakes copy as
# fast as they can.
LINK = """
[cuda]
links = [{name = "pci-0000:3a:00.0", h2d_bytes_per_s = 3e8, \
d2h_bytes_per_s = 3e8}]
"""


@pytest.mark.parametrize("node", [LINK], indirect=True,
                         ids=["limited"])
@pytest.mark.parametrize("what", ["ahead", "deadlines", "waits"])
def test_the_host_does_not_wait_for_copies_that_need_grants(node, what):
    """The host runs four chunks ahead, and deadlines follow the GPU's clock.
    """
    node.jitter_us = 5000
    ran = node.run("cuda_step.py", what)
    print(ran.stdout)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert node.take_findings() == ""


@pytest.mark.parametrize("what, without", [
    ("device", "no_wait"), ("device", "no_mark"), ("device", "no_stream"),
    ("device", "no_hold"), deep("host", "no_wait"), deep("rerun", "no_wait"),
    ("streams", "no_wait"), ("handover", "no_handover"),
    ("optimizer", "no_wait"), deep("optimizer", "no_mark"),
    deep("optimizer", "no_stream"), ("optimizer", "no_order")])
def test_a_removed_wait_or_mark_is_detected(node, what, without):
    ran = node.run("cuda_step.py", what, without)
    assert ran.returncode != 0
    assert "is not ordered after" in node.take_findings(), ran.stderr


def test_a_model_on_another_device_is_refused(node):
    ran = node.run("cuda_step.py", "refusals")
    assert ran.returncode == 0, ran.stderr
    assert "a tensor on cpu: the session's GPU is cuda:0" in ran.stdout
    assert node.take_findings() == ""


def test_a_process_ends_without_findings(node):
    """The process makes its last driver calls after thread-local objects that
    these calls use were destroyed."""
    ran = node.start("cuda_exit.py")
    assert ran.returncode == 0, ran.stderr
    assert node.take_findings() == ""


def test_kernels_of_real_gpus_are_refused_on_a_simulated_one():
    compute_device.check_kernel(torch.device("cuda", 0), "cudnn")
    compute_device.check_kernel(torch.device("cpu"), "auto")
    with pytest.raises(sluice.Unsupported,
                       match="^device cpu: kernel = 'cudnn': .*simulated"):
        compute_device.check_kernel(torch.device("cpu"), "cudnn")
