"""Finding the programs, and a private daemon that never outlives its
process."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
from support import await_true, is_running, processes_of, run, start

import sluice
from sluice.daemon import PrivateDaemon, available_bytes, find_programs
from sluice.errors import Status

MIB = 1 << 20
# A child that has a private daemon and says where.
OPENS = """
    import os, sluice, sys
    from sluice.daemon import PrivateDaemon
    daemon = PrivateDaemon()
    session = sluice.Session(daemon.socket)
    print(daemon.pid, os.path.dirname(session.socket), flush=True)
"""


def small(**options):
    return PrivateDaemon(gpu_bytes=8 * MIB, host_bytes=16 * MIB, **options)


def place(line):
    pid, folder = line.split()
    return int(pid), folder


def await_nothing_left(pid, folder):
    await_true("sluiced ends", lambda: not is_running(pid))
    await_true("its guard ends", lambda: not processes_of(folder))
    await_true("its folder goes", lambda: not os.path.exists(folder))


# --- what is found ---------------------------------------------------------


def test_the_named_folder_wins_and_is_not_mixed_with_others(
        monkeypatch, tmp_path):
    assert find_programs().sluiced == os.path.join(
        os.environ["SLUICE_BIN_DIR"], "sluiced")
    monkeypatch.setenv("SLUICE_BIN_DIR", str(tmp_path))
    assert find_programs().library is None
    assert find_programs().sluiced is None


def test_without_library_the_import_works_and_a_session_is_one_clear_line(
        tmp_path):
    ran = run("import sluice; print('imported'); sluice.Session()",
              SLUICE_BIN_DIR=str(tmp_path))
    assert ran.stdout == "imported\n"
    line = ran.stderr.splitlines()[-1]
    assert line.startswith("sluice.Error: no libsluice.so in SLUICE_BIN_DIR=")
    assert "./dev build" in line


def test_an_invalid_library_is_one_clear_line(tmp_path):
    (tmp_path / "libsluice.so").write_text("not a library")
    ran = run("import sluice; sluice.Session()", SLUICE_BIN_DIR=str(tmp_path))
    line = ran.stderr.splitlines()[-1]
    assert line.startswith("sluice.Error: cannot load "), line
    assert "file too short" in line or "invalid ELF header" in line


def test_a_library_without_a_daemon_says_that_sluiced_is_missing(tmp_path):
    library = find_programs().library
    (tmp_path / "libsluice.so").symlink_to(library)
    ran = run("import sluice; sluice.Session()", SLUICE_BIN_DIR=str(tmp_path))
    assert ran.stderr.splitlines()[-1].startswith(
        "sluice.Error: no sluiced in SLUICE_BIN_DIR=")


def test_the_import_loads_no_transformers():
    ran = run("import sluice, sys; print('transformers' in sys.modules)")
    assert ran.stdout == "False\n", ran.stderr


# --- how it starts ---------------------------------------------------------


def test_a_closed_daemon_leaves_no_process_and_no_folder():
    daemon = small()
    pid, folder = daemon.pid, os.path.dirname(daemon.socket)
    with sluice.Session(daemon.socket) as session:
        assert session.limits().host_total_bytes == 16 * MIB
        assert session.limits().gpu_total_bytes == 8 * MIB
    daemon.close()
    daemon.close()
    assert daemon.closed
    assert not is_running(pid) and not os.path.exists(folder)
    assert processes_of(folder) == []


def test_default_sizes_are_below_the_machines_memory():
    daemon = PrivateDaemon()
    with sluice.Session(daemon.socket) as session:
        limits = session.limits()
    daemon.close()
    assert 0 < limits.gpu_total_bytes < limits.host_total_bytes
    assert limits.host_total_bytes < available_bytes()


def test_a_failed_start_raises_the_daemons_own_message():
    with pytest.raises(sluice.Error) as raised:
        PrivateDaemon(gpu_bytes=1024, host_bytes=16 * MIB)
    assert raised.value.status is Status.INTERNAL
    assert raised.value.line.startswith(
        "the private sluiced did not start: error: ")
    assert "\n" not in raised.value.line


def test_a_daemon_that_is_too_slow_is_ended(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(sluice.Error, match="not ready after 0 s") as raised:
        small(start_timeout_s=0)
    assert raised.value.status is Status.DEADLINE_EXCEEDED
    assert os.listdir(tmp_path) == []
    assert processes_of(str(tmp_path)) == []


def test_a_long_temporary_folder_is_no_obstacle(monkeypatch, tmp_path):
    long = tmp_path / ("long" * 30)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    daemon = small()
    daemon.close()
    assert os.listdir(long) == []


# --- how it ends -----------------------------------------------------------


@pytest.mark.parametrize("last", ["", "daemon.close()", "os._exit(0)",
                                  "raise SystemExit(0)",
                                  "session.again = session"])
def test_the_daemon_ends_with_the_interpreter(last):
    ran = run(OPENS + "    " + last)
    assert (ran.returncode, ran.stderr) == (0, "")
    await_nothing_left(*place(ran.stdout))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_daemon_ends_with_a_killed_process(number):
    child = start(OPENS + "    sys.stdin.read()")
    pid, folder = place(child.stdout.readline())
    assert len(processes_of(folder)) == 2  # sluiced and its guard
    child.send_signal(number)
    child.wait(60)
    await_nothing_left(pid, folder)


def test_the_folder_of_a_daemon_that_ended_first_is_removed_with_the_process():
    child = start(OPENS + "    sys.stdin.read()")
    pid, folder = place(child.stdout.readline())
    os.kill(pid, signal.SIGTERM)
    await_true("sluiced ends", lambda: not is_running(pid))
    time.sleep(0.3)  # what the guard does then, it has done
    assert os.path.exists(folder)
    child.send_signal(signal.SIGKILL)
    child.wait(60)
    await_nothing_left(pid, folder)


def test_a_process_killed_while_it_closes_leaves_nothing():
    child = start(OPENS + """
    import shutil, signal
    shutil.rmtree = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
    daemon.close()
    """)
    pid, folder = place(child.stdout.readline())
    assert child.wait(60) == -signal.SIGKILL
    await_nothing_left(pid, folder)


def test_the_daemon_ends_when_its_guard_is_killed():
    daemon = small()
    [guard] = set(processes_of(os.path.dirname(daemon.socket))) - {daemon.pid}
    os.kill(guard, signal.SIGKILL)
    await_true("sluiced ends", lambda: not is_running(daemon.pid))
    daemon.close()
    assert not os.path.exists(os.path.dirname(daemon.socket))


TOLD_WHILE_IT_STARTS = """
    import os, signal, subprocess, sys, time
    from sluice import _guard

    really_start = subprocess.Popen

    def told_meanwhile(*words, **how):
        child = really_start(*words, **how)
        while not os.path.exists("up"):
            time.sleep(0.01)
        signal.raise_signal(signal.SIGTERM)
        return child

    subprocess.Popen = told_meanwhile
    sys.argv[1:] = [str(os.getppid()), "folder", "/bin/sh", "-c",
                    "trap 'touch in_order; exit' TERM; touch up;"
                    "while :; do sleep 0.05; done"]
    sys.exit(_guard.main())
"""


def test_a_guard_that_is_stopped_while_starting_ends_the_daemon_in_order(
        tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = run(TOLD_WHILE_IT_STARTS)
    assert os.path.exists("in_order"), ran.stderr


def test_the_daemon_outlives_the_thread_that_started_it():
    made = []
    thread = threading.Thread(target=lambda: made.append(small()))
    thread.start()
    thread.join()
    with sluice.Session(made[0].socket) as session:
        session.lease_host(MIB).free()
    made[0].close()


def test_a_forked_childs_end_does_not_end_the_daemon():
    ran = run(OPENS + """
    if os.fork() == 0:
        sys.exit(0)  # with all that runs at exit
    print(os.wait()[1])
    session.lease_host(1 << 20)
    print("leased")
    """)
    assert ran.stdout.splitlines()[1:] == ["0", "leased"], ran.stderr
    await_nothing_left(*place(ran.stdout.splitlines()[0]))


def test_ctrl_c_is_for_the_program_not_for_the_daemon():
    child = start("""
    import os, signal
    os.setsid()  # as the foreground group of a terminal
    """ + OPENS + """
    try:
        os.killpg(0, signal.SIGINT)
        signal.pause()
    except KeyboardInterrupt:
        session.lease_host(1 << 20)
        print("leased")
    """)
    out, err = child.communicate(timeout=120)
    assert out.splitlines()[1:] == ["leased"], err
    await_nothing_left(*place(out.splitlines()[0]))
