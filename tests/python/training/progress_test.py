"""Tests messages about long and stuck steps, and steps during which the daemon
is killed or another job joins."""

from __future__ import annotations

import gc
import os
import re
import signal
import time
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
import waiting_ranks
from gloo import run_ranks
from models import assert_same, batch, run, tiny, unstreamed
from support import await_true, forked, is_running
from torch import nn

import sluice
from sluice.ranks import board, progress
from sluice.ranks.progress import Progress


class Looked:
    """A Progress with a simulated clock; the test receives its messages."""

    def __init__(self, stalled_s=100.0):
        self.now, self.said = 0.0, []
        self.layers = [nn.Identity() for _ in range(4)]
        self.of = Progress(self.layers, stalled_s, lambda: self.now,
                           self.said.append)
        # Replaces the thread, so that only the test calls look().
        self.of._thread = SimpleNamespace()

    def looks(self, seconds):
        """Calls look() once per simulated second; returns the new messages."""
        for _ in range(seconds):
            self.now += 1
            self.of.look()
        said, self.said[:] = list(self.said), []
        return said


class Step:
    def __init__(self, chunks):
        self.chunks = range(chunks)


def test_a_long_step_reports_its_place_at_intervals():
    looked, step = Looked(), Step(7)
    for chunk in range(7):
        looked.of.move(step, "forward", looked.layers[2], chunk)
        assert looked.looks(3) == (
            ["sluice: forward, layer 3 of 4, chunk 7 of 7, 20 s"]
            if chunk == 6 else [])
    looked.of.move(step, "backward", looked.layers[3], 6)
    assert looked.looks(20) == [
        "sluice: backward, layer 4 of 4, chunk 7 of 7, 30 s",
        "sluice: backward, layer 4 of 4, chunk 7 of 7, 40 s"]
    looked.of.done(looked.layers[3])
    assert len(looked.looks(10)) == 1
    looked.of.done(looked.layers[0])
    assert looked.looks(500) == []  # no step runs, so nothing is stuck


def test_a_stall_is_reported_at_growing_intervals():
    looked, step = Looked(stalled_s=15), Step(2)
    looked.of.move(step, "forward", looked.layers[1], 0)
    assert looked.looks(14) == []
    line = "sluice: rank 0 of 1: nothing has moved for {} s: forward, layer " \
        "2 of 4, chunk 1 of 2"
    assert looked.looks(60) == [line.format(15), line.format(30),
                                line.format(60)]
    looked.of.move(step, "forward", looked.layers[1], 1)
    looked.looks(14)
    assert len(looked.looks(1)) == 1  # reported again after the limit
    del step  # as when a step fails
    gc.collect()
    assert looked.looks(500) == []


@pytest.mark.parametrize("quiet", [False, True])
def test_a_hanging_layer_is_named_unless_quiet(
        session, capsys, quiet, monkeypatch):
    monkeypatch.setattr(progress, "LOOK_S", 0.02)
    model, calls, said = tiny(), [], []

    def is_said():
        said.append(capsys.readouterr().err)
        return "nothing has moved" in "".join(said)

    def hang(*_):
        calls.append(0)
        if len(calls) != 8:  # chunk 3 of 5 in backward, after 5 in forward
            return
        if quiet:
            time.sleep(0.6)
        else:
            await_true("the standstill is reported", is_said)

    model.model.layers[1].mlp.register_forward_pre_hook(hang)
    stream = sluice.stream(model, session=session, chunk=16, quiet=quiet,
                           stalled_s=0.3, check="off")
    calls.clear()  # drop the probe's calls
    run(model, batch())
    said = "".join(said) + capsys.readouterr().err
    assert bool(re.search(r"rank 0 of 1: nothing has moved for \d+ s: backward,"
                          " layer 2 of 2, chunk 3 of 5", said)) != quiet
    stream.unstream()
    assert not quiet or said == ""


def test_an_exception_ends_progress_messages(session):
    model = tiny()
    stream = sluice.stream(model, session=session, chunk=16)
    hook = model.model.layers[1].register_forward_pre_hook(
        lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(**batch())
    assert stream.progress._place is None
    hook.remove()
    run(model, batch())
    assert stream.progress._place is None
    stream.unstream()
    assert stream.progress._ended.is_set()


def test_a_waiting_rank_reports_its_stall_and_names_the_failed_rank(
        daemon, tmp_path):
    """waiting_ranks.py has the code of the two ranks."""
    ranks = forked(lambda: run_ranks(
        2, waiting_ranks.work, str(tmp_path / "group"), daemon.socket,
        str(tmp_path)))
    said = [(tmp_path / str(rank)).read_text() for rank in range(2)]
    assert ranks.returncode == 0, said
    later = [text.partition("probed")[2] for text in said]
    assert re.search(r"rank 1 of 2: nothing has moved for \d s: forward, layer "
                     "2 of 2, chunk 1 of 5", later[1]), said[1]
    waited, _, failed = later[0].partition("sluice: LlamaForCausalLM")
    assert "nothing has moved" not in waited, said[0]
    assert re.search(r"rank 0 of 2: nothing has moved for \d s: forward, layer "
                     "1 of 2, chunk 5 of 5; rank 1 failed: ZeroDivisionError: "
                     "division by zero", failed), said[0]


# Guards against replacing the cause by a victim's "Connection closed by peer".
def test_the_first_failure_stays_on_the_jobs_board(tmp_path):
    dist.init_process_group("gloo", f"file://{tmp_path}/group", rank=0,
                            world_size=1)
    try:
        def fails(rank, ago):
            board.Board.of_job().update(board.FAILED, lambda _: {
                "rank": rank, "what": "the cause", "time": time.time() - ago})

        fails(1, ago=3)  # before this rank entered its part of the step
        with pytest.raises(RuntimeError), board.telling_job():
            raise RuntimeError("Connection closed by peer")
        assert board.failed_rank(time.time()) == "rank 1 failed: the cause"
        fails(1, ago=100)  # in a much earlier step
        with pytest.raises(ValueError), board.telling_job():
            raise ValueError("its own")
        told = board.Board.of_job().read(board.FAILED)
        assert (told["rank"], told["what"]) == (0, "ValueError: its own")
    finally:
        dist.destroy_process_group()


# --- the daemon and other jobs during a step ---------------------------------

def trained(model, steps, meanwhile=lambda step, where: None):
    """Returns the losses of `steps` steps of AdamW; calls `meanwhile` during
    each forward and each backward."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    found, at = [], SimpleNamespace(step=0, where="forward")

    def hook(*_):
        where, at.where = at.where, ""
        if where:
            meanwhile(at.step, where)

    handle = model.model.layers[1].mlp.register_forward_pre_hook(hook)
    for at.step in range(steps):
        at.where = "forward"
        loss = model(**batch(seed=at.step)).loss
        at.where = "backward"
        loss.backward()
        found.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    handle.remove()
    return found


def streamed_losses(session, meanwhile=lambda step, where: None):
    model = tiny()
    stream = sluice.stream(model, session=session, chunk=16, quiet=True)
    found = trained(model, 4, meanwhile)
    assert stream.stats().host_bytes == 0
    stream.unstream()
    return found


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_daemon_that_is_killed_in_mid_step_changes_no_loss(daemon, where):
    with sluice.Session(daemon.socket) as session:
        expected = streamed_losses(session)
    session = sluice.Session(daemon.socket)

    def kill(step, at):
        if (step, at) == (1, where):
            os.kill(daemon.pid, signal.SIGKILL)
            await_true("sluiced is gone", lambda: not is_running(daemon.pid))

    assert streamed_losses(session, kill) == expected
    session.close()


def test_a_daemon_killed_before_a_lease_is_reported(daemon):
    model = tiny()
    expected = unstreamed(model, batch())
    session = sluice.Session(daemon.socket)
    stream = sluice.stream(model, session=session, chunk=16, quiet=True)
    assert_same(run(model, batch()), expected)
    os.kill(daemon.pid, signal.SIGKILL)
    await_true("sluiced is gone", lambda: not is_running(daemon.pid))
    long = batch(4, 500)  # needs more than is leased
    model.zero_grad()
    with pytest.raises(sluice.Error, match="UNAVAILABLE"):
        for _ in range(40):
            model(**long).loss.backward(retain_graph=False)
            long = {k: v.repeat(2, 1) for k, v in long.items()}
    gc.collect()
    assert stream.stats().host_bytes == 0
    assert_same(run(model, batch()), expected)  # steps that fit still work
    session.close()


def test_another_job_that_joins_and_leaves_changes_no_loss(daemon):
    with sluice.Session(daemon.socket, job="one") as session:
        expected = streamed_losses(session)
    others = []

    def meanwhile(step, where):
        if (step, where) in ((1, "forward"), (2, "backward")):
            other = sluice.Session(daemon.socket, job=f"other{step}")
            others.append((other, other.lease_host(8 << 20),
                           other.lease_gpu(4 << 20)))
        if (step, where) in ((1, "backward"), (3, "forward")):
            other, *regions = others.pop()
            for region in regions:
                region.free()
            other.close()

    with sluice.Session(daemon.socket, job="one") as session:
        assert streamed_losses(session, meanwhile) == expected
    assert not others
