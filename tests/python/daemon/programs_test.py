"""Tests how the package finds its programs and starts a daemon."""

from __future__ import annotations

import os

import pytest
from private_daemon import PrivateDaemon
from support import is_running, run

import sluice
from sluice.base.errors import Status
from sluice.native.daemon import find_programs

MIB = 1 << 20

# --- finding the programs --------------------------------------------------


def test_sluice_bin_dir_replaces_all_other_folders(
        monkeypatch, tmp_path):
    assert find_programs().sluiced == os.path.join(
        os.environ["SLUICE_BIN_DIR"], "sluiced")
    monkeypatch.setenv("SLUICE_BIN_DIR", str(tmp_path))
    assert find_programs().library is None
    assert find_programs().sluiced is None


def test_without_library_the_import_works_and_a_session_fails_clearly(
        tmp_path):
    ran = run("import sluice; print('imported'); sluice.Session()",
              SLUICE_BIN_DIR=str(tmp_path))
    assert ran.stdout == "imported\n"
    line = ran.stderr.splitlines()[-1]
    assert line.startswith("sluice.Error: no libsluice.so in SLUICE_BIN_DIR=")
    assert "./dev build" in line


def test_an_invalid_library_is_reported_in_one_line(tmp_path):
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


# --- starting a daemon -----------------------------------------------------


def test_a_closed_daemon_leaves_no_process_and_no_folder():
    daemon = PrivateDaemon(gpu_bytes=8 * MIB, host_bytes=16 * MIB)
    pid, folder = daemon.pid, os.path.dirname(daemon.socket)
    with sluice.Session(daemon.socket) as session:
        assert session.limits().host_total_bytes == 16 * MIB
        assert session.limits().gpu_total_bytes == 8 * MIB
    daemon.close()
    assert not is_running(pid) and not os.path.exists(folder)


def test_a_failed_start_raises_the_daemons_own_message():
    with pytest.raises(sluice.Error) as raised:
        PrivateDaemon(gpu_bytes=1024, host_bytes=16 * MIB)
    assert raised.value.status is Status.INTERNAL
    assert "did not start: error: " in raised.value.line
    assert "\n" not in raised.value.line


def test_a_daemon_that_is_too_slow_is_an_error():
    with pytest.raises(sluice.Error, match="not ready after 0 s") as raised:
        PrivateDaemon(start_timeout_s=0)
    assert raised.value.status is Status.DEADLINE_EXCEEDED
