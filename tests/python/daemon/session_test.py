"""Tests limits, reports and leases of sessions, and how sessions end."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import threading

import pytest
from conftest import GPU_BYTES, HOST_BYTES
from support import await_true, run_loaded

import sluice
from sluice.base.errors import Status
from sluice.native.leases import CopyStats, Engine

MIB = 1 << 20


def fill(region, value):
    ctypes.memset(region.address, value, region.nbytes)


def first_byte(region):
    return ctypes.string_at(region.address, 1)[0]


def status_of(daemon):
    """Returns `sluicectl status --json` as an object."""
    told = subprocess.run(
        [os.path.join(os.environ["SLUICE_BIN_DIR"], "sluicectl"), "--socket",
         daemon.socket, "status", "--json"],
        capture_output=True, text=True, check=True)
    return json.loads(told.stdout)


# --- limits and reports ----------------------------------------------------


def test_limits_are_the_bytes_of_the_node(session):
    limits = session.limits()
    assert limits.gpu_total_bytes == limits.gpu_free_bytes == GPU_BYTES
    assert limits.host_total_bytes == limits.host_free_bytes == HOST_BYTES
    assert limits.granularity_bytes > 0


def test_a_report_reaches_the_operator(daemon):
    with sluice.Session(daemon.socket, job="book", gpu=1) as session:
        session.report(7, 0.5, 4096, loss=1.25, gpu_peak_bytes=MIB,
                       copies=CopyStats(1, 2, 0.25, 0.125))

        def told():
            [job] = status_of(daemon)["jobs"]
            [rank] = job["ranks"]
            return (job["name"] == "book" and rank["gpu"] == 1 and
                    rank["step"] == 7 and rank["loss"] == 1.25 and
                    rank["tokens_per_second"] == 8192 and
                    rank["stall_seconds"] == 0.125 and
                    rank["grant_wait_seconds"] == 0.25 and
                    rank["hbm_peak_bytes"] == MIB)

        await_true("the report arrives", told)


def test_the_socket_comes_from_the_environment(daemon, monkeypatch):
    monkeypatch.setenv("SLUICE_SOCKET", daemon.socket)
    with sluice.Session() as session:
        assert session.socket == daemon.socket


def test_repr_names_the_socket_and_a_closed_session(session):
    assert session.socket in repr(session) and "closed" not in repr(session)
    session.close()
    assert "closed" in repr(session)


def test_the_death_of_another_rank_is_reported_with_its_cause(daemon):
    class Hears:
        def peer_died(self, what):
            told.append(what)

    told, hears = [], Hears()
    with sluice.Session(daemon.socket, job="pair", world=2, rank=0) as session:
        session._watched_by(hears)
        run_loaded(f"""
            import os, sluice
            session = sluice.Session({daemon.socket!r}, job="pair", world=2,
                                     rank=1)
            os.kill(os.getpid(), 9)
            """)
        await_true("the death is reported", lambda: told)
    assert "rank 1" in told[0] and "signal 9" in told[0]


# --- leases ----------------------------------------------------------------


def test_a_lease_is_rounded_up_and_writable(session):
    for region in (session.lease_host(1), session.lease_gpu(1)):
        assert region.nbytes == session.limits().granularity_bytes
        fill(region, 7)
        assert first_byte(region) == 7
        region.free()
        region.free()


def test_two_sessions_do_not_see_each_others_memory(daemon):
    with sluice.Session(daemon.socket, job="a") as a, \
            sluice.Session(daemon.socket, job="b") as b:
        ours, theirs = a.lease_host(MIB), b.lease_host(MIB)
        fill(ours, 1)
        fill(theirs, 2)
        a.close()
        assert first_byte(theirs) == 2
        b.lease_host(MIB).free()


def test_a_lease_over_the_pool_is_refused_with_the_daemons_message(session):
    held = session.lease_host(MIB)
    fill(held, 3)
    with pytest.raises(sluice.Error, match="asked 256 MiB, free") as raised:
        session.lease_host(HOST_BYTES)
    assert raised.value.status is Status.RESOURCE_EXHAUSTED
    assert first_byte(held) == 3


def test_a_lease_waits_for_memory_that_others_free(daemon):
    with sluice.Session(daemon.socket, job="holds") as holds:
        held = holds.lease_gpu(GPU_BYTES)
        with sluice.Session(daemon.socket, job="waits",
                            lease_wait_s=0.1) as waits:
            with pytest.raises(sluice.Error, match="waited") as raised:
                waits.lease_gpu(GPU_BYTES)
        assert raised.value.status is Status.DEADLINE_EXCEEDED
        threading.Timer(0.5, held.free).start()
        with sluice.Session(daemon.socket, job="waits",
                            lease_wait_s=60) as waits:
            waits.lease_gpu(GPU_BYTES).free()


def test_a_region_outlives_its_session(session):
    region = session.lease_host(MIB)
    fill(region, 5)
    session.close()
    assert first_byte(region) == 5
    region.free()


def test_leased_memory_and_copies_outlive_a_killed_daemon(
        daemon, session):
    host, gpu = session.lease_host(MIB), session.lease_gpu(MIB)
    fill(host, 9)
    engine = Engine(session)
    os.kill(daemon.pid, signal.SIGKILL)

    def refused():
        try:
            session.lease_host(MIB)
        except sluice.Error as error:
            return error.status is Status.UNAVAILABLE
        return False

    await_true("a lease is Unavailable", refused)
    ticket = ctypes.c_uint64()
    assert engine.library.engine_copy(
        engine.handle.value, 0, gpu.address, host.address, MIB, None, 0,
        ctypes.byref(ticket)) == 0
    engine.drain()
    assert first_byte(gpu) == 9
    assert engine.stats().host_to_gpu_bytes == MIB
    with pytest.raises(sluice.Error) as raised:
        session.report(1, 1.0, 1)
    assert raised.value.status is Status.UNAVAILABLE


# --- refusals --------------------------------------------------------------


def test_a_socket_without_a_daemon_raises_an_error_with_its_path(tmp_path):
    path = tmp_path / "none.sock"
    with pytest.raises(sluice.Error) as raised:
        sluice.Session(path)
    assert raised.value.status in (Status.NOT_FOUND, Status.UNAVAILABLE)
    assert str(path) in raised.value.line and "\n" not in raised.value.line


def test_a_second_session_of_a_rank_is_refused(daemon):
    with sluice.Session(daemon.socket, job="a"):
        with pytest.raises(sluice.Error) as raised:
            sluice.Session(daemon.socket, job="a")
    assert raised.value.status is Status.ALREADY_EXISTS


def test_a_closed_session_refuses_calls_but_close(session):
    session.close()
    session.close()
    assert session.closed
    for call in (session.limits, lambda: session.lease_host(1),
                 lambda: session.report(1, 1.0, 1), lambda: Engine(session)):
        with pytest.raises(sluice.Error, match="closed: open") as raised:
            call()
        assert raised.value.status is Status.FAILED_PRECONDITION


# --- ends ------------------------------------------------------------------


def test_closing_a_session_stops_its_engines(session):
    engine = Engine(session)
    session.close()
    with pytest.raises(sluice.Error, match="closed"):
        engine.drain()
    engine.stop()


def test_a_forked_child_gets_a_clear_error_and_ends(daemon):
    session = sluice.Session(daemon.socket)
    child = os.fork()
    if child == 0:
        try:
            session.lease_host(MIB)
            os._exit(1)
        except sluice.Error as error:
            session.close()
            os._exit(0 if "forked child" in error.line else 2)
    assert os.waitpid(child, 0)[1] == 0
    # The child process has closed nothing of this session.
    session.lease_host(MIB).free()
    session.close()


def test_sessions_open_and_close_in_any_thread(daemon):
    failed = []

    def work(name):
        try:
            with sluice.Session(daemon.socket, job=name) as session:
                for _ in range(20):
                    session.lease_host(MIB).free()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(f"job{i}",))
               for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed


COPIES = """
    import ctypes, gc, sys, sluice
    from sluice.native.leases import Engine
    session = sluice.Session()
    host, gpu = session.lease_host(64 << 20), session.lease_gpu(64 << 20)
    engine = Engine(session)
    ticket = ctypes.c_uint64()
    for _ in range(8):
        engine.library.engine_copy(engine.handle.value, 0, gpu.address,
                                   host.address, 64 << 20, None, 0,
                                   ctypes.byref(ticket))
    print("copying", flush=True)
"""


@pytest.mark.parametrize("last", [
    "",
    "session.close()",
    "del host, gpu, engine, session",
    "engine.stop(); host.free(); gpu.free(); session.close()",
    # In a reference cycle the collector may run finalizers in any order.
    "host.me = [host, gpu, engine, session]; session.me = host.me; "
    "del host, gpu, engine, session; gc.collect()",
    "raise SystemExit(0)",
    "sys.modules['keeps'] = (host, gpu, engine, session)",
])
def test_no_order_of_closing_crashes_or_hangs(last):
    ran = run_loaded(COPIES + "    " + last)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "copying\n", "")
