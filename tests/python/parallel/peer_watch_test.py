"""A watch thread checks whether a rank failed and then raises PeerFailed in the
thread that computes, unless a stream runs there: a stream raises the error
itself."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from support import await_true, forked

from sluice.base.errors import PeerFailed
from sluice.ranks.groups import Ranks
from sluice.ranks.peer_watch import PeerWatch

CPU = torch.device("cpu")


def watch_of(ranks, told):
    ranks.told = told
    return PeerWatch(ranks, SimpleNamespace(_watched_by=lambda watch: None),
                     CPU)


def stub(within=0):
    """Returns `Ranks` without a process group."""
    ranks = Ranks.__new__(Ranks)
    ranks.failed, ranks.within, ranks.hears_deaths = None, within, False
    ranks._failing, ranks._interrupted = threading.Lock(), None
    return ranks


def in_a_thread(work):
    """Runs `work` in a thread; returns the texts of PeerFailed that it raised.
    """
    raised: list[str] = []

    def run():
        try:
            work()
        except PeerFailed as error:
            raised.append(str(error))
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return raised


def wait_a_little():
    for _ in range(200):
        time.sleep(0.001)


@pytest.mark.parametrize("within", [0, 1, 2])
def test_a_ranks_failure_is_raised_where_no_stream_runs(within, capsys):
    ranks = stub(within=within)

    def work():
        watch = watch_of(ranks, lambda: "")
        assert not watch.look()
        ranks.told = lambda: "rank 1 failed"
        watch.look()
        wait_a_little()
    raised = in_a_thread(work)
    assert isinstance(ranks.failed, PeerFailed)
    assert raised == ([] if within else ["rank 1 failed (ABORTED)"])
    assert "rank 1 failed: this rank cannot go on" in capsys.readouterr().err


def test_a_failure_is_raised_in_the_thread_that_computed_last():
    ranks = stub()
    watch = watch_of(ranks, lambda: "")

    def work():
        watch.computes()
        ranks.told = lambda: "rank 1 failed"
        watch.look()
        wait_a_little()
    assert in_a_thread(work) == ["rank 1 failed (ABORTED)"]


def test_an_error_raised_by_autograds_thread_is_not_raised_again():
    ranks, ready = stub(), threading.Event()
    watch = watch_of(ranks, lambda: "")

    def work():
        watch.computes()
        ready.set()
        time.sleep(0.3)  # in C, as in backward(), so nothing is raised here yet
        wait_a_little()

    def autograd():
        ready.wait()
        watch.peer_died("rank 1: killed by signal 9")
        with pytest.raises(PeerFailed):
            ranks.check()
    other = threading.Thread(target=autograd)
    other.start()
    assert in_a_thread(work) == []
    other.join()


def test_a_closed_watch_reports_no_failure(capfd):
    ranks = stub(within=1)
    watch = watch_of(ranks, lambda: "rank 1 failed")
    watch.close()
    watch.look()
    assert ranks.failed is None and capfd.readouterr().err == ""


def test_a_reported_death_does_not_wait_for_the_next_check():
    ranks, before = stub(within=1), time.monotonic()
    watch = watch_of(ranks, lambda: "")
    watch.peer_died("rank 1: killed by signal 9")
    await_true("the death is reported", lambda: ranks.failed is not None)
    assert time.monotonic() - before < 0.5
    assert "killed by signal 9" in str(ranks.failed)


def test_a_stream_counts_nested_calls_and_raises_a_peers_error():
    def run():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0,
                                world_size=1)
        ranks = Ranks(dist.group.WORLD)
        seen = []
        with ranks.telling():
            seen.append(ranks.within)
            with ranks.telling():
                seen.append(ranks.within)
            seen.append(ranks.within)
        assert [*seen, ranks.within] == [1, 2, 1, 0]
        with pytest.raises(KeyError), ranks.telling():
            raise KeyError
        assert ranks.within == 0 and ranks._raised == ranks.call
        ranks.failed = PeerFailed(10, "rank 1 failed")
        for error in (None, KeyError):
            with pytest.raises(PeerFailed), ranks.telling():
                if error:
                    raise error
        with pytest.raises(KeyboardInterrupt), ranks.telling():
            raise KeyboardInterrupt
    ended = forked(run)
    assert ended.returncode == 0, ended.stdout + ended.stderr
