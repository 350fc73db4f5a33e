"""Tests how the slack of copies is learned, and which deadlines are sent to
the daemon."""

from __future__ import annotations

import json
import os
import subprocess
import time

import pytest
import torch
from private_daemon import PrivateDaemon

import sluice
from sluice.memory.arena import HostArena
from sluice.memory.copy_deadlines import RECENT, UNKNOWN, Slack
from sluice.native.abi import GPU_TO_HOST, HOST_TO_GPU

MIB = 1 << 20


def learn(slack, times, nbytes=8, first=1):
    for ticket, seconds in enumerate(times, first):
        slack.started(ticket, nbytes, 100.0)
        slack.asked(ticket, 100.0 + seconds)


# --- learning the slack ----------------------------------------------------


def test_copies_of_one_size_get_their_smallest_recent_slack():
    slack = Slack()
    assert slack.of(8) == UNKNOWN
    learn(slack, [3, 2, 4])
    assert slack.of(8) == 2
    assert slack.of(16) == UNKNOWN  # each size has its own slack


def test_old_measurements_are_dropped():
    slack = Slack()
    learn(slack, [1])
    learn(slack, [5] * (RECENT - 1), first=2)
    assert slack.of(8) == 1
    learn(slack, [5] * RECENT, first=100)
    assert slack.of(8) == 1  # the least of two windows of RECENT copies
    learn(slack, [5], first=1000)
    assert slack.of(8) == 5


def test_copies_without_a_use_are_not_recorded():
    slack = Slack()
    for ticket in range(1000):
        slack.started(ticket, 8, 0.0)
    slack.asked(3, 1.0)  # a copy with a record that was dropped long ago
    slack.asked(5000, 1.0)  # a copy that was never started
    assert slack.of(8) == UNKNOWN
    assert len(slack._started) < 200
    learn(slack, [1] * 1000, first=2000)
    for size in range(1, 1000):
        learn(slack, [1], nbytes=size, first=9000)
    assert len(slack._least) < 300


def test_copies_before_a_drain_are_not_measured():
    slack = Slack()
    slack.started(1, 8, 0.0)
    slack.forget_started()
    slack.asked(1, 5.0)
    assert slack.of(8) == UNKNOWN


def test_a_deadline_close_to_the_last_is_not_sent_again():
    slack = Slack()
    assert slack.is_told(UNKNOWN)
    assert not slack.is_told(0.0)
    slack.told = 1.0
    assert slack.is_told(0.95)
    assert not slack.is_told(0.5)
    assert not slack.is_told(UNKNOWN)
    slack.told = 0.0
    assert slack.is_told(0.0)
    assert not slack.is_told(0.001)


# --- sending deadlines -----------------------------------------------------


@pytest.fixture
def session():
    """A session on a link of known speed."""
    daemon = PrivateDaemon(gpu_bytes=64 * MIB, host_bytes=64 * MIB,
                           link_bytes_per_second=1e9)
    with sluice.Session(daemon.socket) as session:
        yield session
    daemon.close()


class Watched:
    """A library that records calls of engine_know_slack. Its copies are never
    reported as done before a wait, and its waits take `wait_s` longer."""

    def __init__(self, library, wait_s=0.0):
        self._library, self._wait_s, self.told = library, wait_s, []
        self.waited = 0.0  # seconds added to waits

    def __getattr__(self, name):
        return getattr(self._library, name)

    def engine_know_slack(self, engine, direction, seconds):
        self.told.append((direction, seconds))
        return self._library.engine_know_slack(engine, direction, seconds)

    def engine_reached(self, engine, ticket, reached):
        return 0  # never done

    def engine_wait(self, engine, ticket):
        time.sleep(self._wait_s)
        self.waited += self._wait_s
        return self._library.engine_wait(engine, ticket)


def watch(arena, **given):
    watched = Watched(arena._copies._library, **given)
    arena._copies._library = watched
    return watched


def test_a_prefetchs_slack_is_the_compute_time_before_its_use(arena):
    watched = watch(arena)
    began = time.perf_counter()
    hosts = [arena.put(torch.ones(1000)) for _ in range(3)]
    for host in hosts[:2]:
        arena.prefetch(host, "cpu")
        time.sleep(0.05)
        arena.get(host, "cpu")
    # The first copy had no known slack.
    [(direction, seconds)] = watched.told
    assert direction == HOST_TO_GPU
    assert 0.05 <= seconds <= time.perf_counter() - began
    arena.get(hosts[2], "cpu")
    # The copy is needed at once.
    assert watched.told[1:] == [(HOST_TO_GPU, 0.0)]
    arena.prefetch(hosts[0], "cpu")
    # A fetch without prefetch changes no slack.
    [(direction, again)] = watched.told[2:]
    assert direction == HOST_TO_GPU
    assert 0.05 <= again <= time.perf_counter() - began


def test_an_offloads_slack_is_the_compute_time_before_its_memory_is_reused(
        session):
    with HostArena(session, in_flight_bytes=1) as arena:
        watched = watch(arena)
        began = time.perf_counter()
        # Two copies may be in flight: the third waits for the first.
        for _ in range(6):
            arena.put(torch.ones(1000))
            time.sleep(0.02)
    direction, seconds = watched.told[0]
    assert direction == GPU_TO_HOST
    assert 0.04 <= seconds <= time.perf_counter() - began


def test_waiting_for_other_copies_is_not_slack(arena):
    watched = watch(arena, wait_s=0.5)
    began = time.perf_counter()
    big, small = arena.put(torch.ones(2000)), arena.put(torch.ones(10))
    for _ in range(2):
        arena.prefetch(big, "cpu")
        arena.get(small, "cpu")  # compute waits for this copy
        arena.get(big, "cpu")
    computed = time.perf_counter() - began - watched.waited
    assert all(seconds <= computed for _, seconds in watched.told)


def test_no_deadlines_are_sent_without_a_bandwidth_limit(daemon):
    with sluice.Session(daemon.socket) as session, HostArena(session) as arena:
        watched = watch(arena)
        host = arena.put(torch.ones(1000))
        for _ in range(3):
            arena.prefetch(host, "cpu")
            arena.get(host, "cpu")
            arena.get(host, "cpu")
        assert watched.told == []


def test_the_daemon_learns_which_copies_are_late():
    """The test copies 8 MiB over a link of 10 MB/s and computes nothing."""
    daemon = PrivateDaemon(gpu_bytes=64 * MIB, host_bytes=64 * MIB,
                           link_bytes_per_second=10e6)
    try:
        with sluice.Session(daemon.socket) as session, (
                HostArena(session)) as arena:
            host = arena.put(torch.ones(2 * MIB))
            arena.get(host, "cpu")
            told = json.loads(subprocess.run(
                [os.path.join(os.environ["SLUICE_BIN_DIR"], "sluicectl"),
                 "--socket", daemon.socket, "status", "--json"],
                capture_output=True, text=True, check=True).stdout)
            late = told["jobs"][0]["ranks"][0]["late"]
            assert late["h2d_copies"] == 1 and late["h2d_seconds"] > 0.1
            assert late["d2h_copies"] == 0  # nothing waits for these copies
    finally:
        daemon.close()
