"""Tests which daemon and which rank a session gets if it names none, and that
a user's own daemon leaves nothing behind."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import threading

import pytest
from support import (
    PACKAGE,
    TESTS,
    await_true,
    environment,
    is_running,
    processes_of,
    run,
    start,
)

import sluice
from sluice.base.errors import Status
from sluice.native import user_daemon
from sluice.native.launcher import Place, place

TELLS = """
    import json, os, sluice, sys
    with sluice.Session() as session:
        session.lease_host(1 << 20).free()
        print(json.dumps([session.socket, session.job, session.rank,
                          session.gpu]), flush=True)
        sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder for this user's daemon, before there is one. Checks at the end
    that no daemon is left."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr(user_daemon, "NODES_OWN", str(tmp_path / "none"))
    yield tmp_path / f"sluice-{os.getuid()}"
    await_true("the daemon ends", lambda: not processes_of(str(tmp_path)))
    assert not (tmp_path / f"sluice-{os.getuid()}" / "session.sock").exists()


def told(child):
    return json.loads(child.stdout.readline())


def end(*children):
    for child in children:
        child.communicate(timeout=100)


# --- which daemon -----------------------------------------------------------


def test_processes_of_a_user_share_one_daemon(folder):
    first, second = start(TELLS), start(TELLS)
    assert told(first)[0] == told(second)[0] == str(folder / "session.sock")
    [pid] = processes_of(str(folder))
    third = start(TELLS)
    assert told(third)[0] == str(folder / "session.sock")
    end(first, second)
    assert processes_of(str(folder)) == [pid]
    end(third)
    await_true("the daemon ends after the last session",
               lambda: not is_running(pid))


def test_a_later_job_uses_the_idle_daemon(folder, monkeypatch):
    monkeypatch.setenv("SLUICE_DAEMON_IDLE_S", "600")
    end(start(TELLS))
    [pid] = processes_of(str(folder))
    end(start(TELLS))
    assert processes_of(str(folder)) == [pid]
    os.kill(pid, signal.SIGTERM)


def test_a_killed_job_ends_its_daemon_and_the_next_starts_one(folder):
    child = start(TELLS)
    told(child)
    [pid] = processes_of(str(folder))
    child.kill()
    child.communicate()
    await_true("the daemon ends", lambda: not is_running(pid))
    again = start(TELLS)
    assert told(again)[0] == str(folder / "session.sock")
    assert processes_of(str(folder)) != [pid]
    end(again)


def test_simultaneous_threads_start_one_daemon(folder):
    sessions = []
    threads = [threading.Thread(target=lambda: sessions.append(
        sluice.Session())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(processes_of(str(folder))) == 1
    assert len({session.job for session in sessions}) == 4
    for session in sessions:
        session.close()


def test_a_daemon_of_the_node_is_used_first(daemon, folder, monkeypatch):
    monkeypatch.setattr(user_daemon, "NODES_OWN", daemon.socket)
    with sluice.Session() as session:
        assert session.socket == daemon.socket
    assert not folder.exists()


def test_a_named_socket_without_a_daemon_is_an_error(folder):
    ran = run("import sluice; sluice.Session()", SLUICE_SOCKET="/nonexistent/s")
    assert "/nonexistent/s" in ran.stderr.splitlines()[-1]
    assert not folder.exists()


def test_a_folder_that_others_may_write_to_is_refused(folder):
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(sluice.Error, match=str(folder)) as raised:
        sluice.Session()
    assert raised.value.status is Status.PERMISSION_DENIED


def test_a_daemon_serves_gpus_hidden_from_its_first_process(folder):
    child = start(TELLS, CUDA_VISIBLE_DEVICES="3")
    told(child)
    [pid] = processes_of(str(folder))
    assert b"CUDA_VISIBLE_DEVICES" not in pathlib.Path(
        f"/proc/{pid}/environ").read_bytes()
    end(child)


def test_mig_has_own_daemon(folder):
    child = start(TELLS, CUDA_VISIBLE_DEVICES="MIG-1/0,GPU-3")
    own = f"{folder}-MIG-1-0"
    assert told(child)[0] == f"{own}/session.sock"
    [pid] = processes_of(own)
    assert b"CUDA_VISIBLE_DEVICES=MIG-1/0" in pathlib.Path(
        f"/proc/{pid}/environ").read_bytes()
    end(child)


def test_sluice_bin_dir_may_be_a_relative_path(folder):
    child = start(TELLS, SLUICE_BIN_DIR=os.path.relpath(
        os.environ["SLUICE_BIN_DIR"]))
    assert told(child)[0] == str(folder / "session.sock")
    end(child)


def test_a_slurm_job_has_its_own_daemon(folder):
    child = start(TELLS, SLURM_JOB_ID="12")
    assert told(child)[0] == f"{folder}-12/session.sock"
    end(child)


# --- which rank -------------------------------------------------------------


@pytest.mark.parametrize("variables, expected", [
    ({}, Place()),
    ({"RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1",
      "LOCAL_WORLD_SIZE": "8", "TORCHELASTIC_RUN_ID": "x", "MASTER_PORT": "29"},
     Place(9, 16, 1, 8, "python-x-29")),
    ({"RANK": "1", "WORLD_SIZE": "2"}, Place(1, 2, 1, None, "python")),
    # The third of three nodes, which has fewer tasks than the others.
    ({"SLURM_PROCID": "8", "SLURM_STEP_NUM_TASKS": "9", "SLURM_LOCALID": "0",
      "SLURM_STEP_TASKS_PER_NODE": "4(x2),1", "SLURM_NODEID": "2",
      "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"},
     Place(8, 9, 0, 1, "python-7-0")),
    # A batch script is one process, however many tasks the job has.
    ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "7"}, Place()),
    # torchrun in a job step of one task.
    ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "RANK": "3",
      "WORLD_SIZE": "4", "LOCAL_RANK": "3"}, Place(3, 4, 3, None, "python")),
    ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4",
      "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
     Place(3, 4, 1, 2, "python")),
    ({"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1",
      "MPI_LOCALNRANKS": "2"}, Place(3, 4, 1, 2, "python")),
])
def test_the_rank_comes_from_the_launchers_variables(variables, expected):
    assert place(variables) == expected


def test_a_variable_that_is_no_number_is_named():
    with pytest.raises(sluice.Invalid, match="RANK = 'x'"):
        place({"RANK": "x", "WORLD_SIZE": "2"})


def test_arguments_override_the_launchers_variables(daemon, monkeypatch):
    for name, value in (("RANK", "5"), ("WORLD_SIZE", "8"),
                        ("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "4")):
        monkeypatch.setenv(name, value)
    with sluice.Session(daemon.socket) as session:
        assert (session.rank, session.gpu) == (5, 1)
    with sluice.Session(daemon.socket, "job", 0, 1) as session:
        assert (session.job, session.rank, session.gpu) == ("job", 0, 0)
    with sluice.Session(daemon.socket, gpu=0) as session:
        assert (session.rank, session.gpu) == (5, 0)


def test_sessions_of_one_process_have_different_jobs(daemon):
    own = f"python-{os.getpid()}"
    with sluice.Session(daemon.socket) as first:
        with sluice.Session(daemon.socket) as second:
            assert [first.job, second.job] == [own, f"{own}.2"]
        with sluice.Session(daemon.socket) as second:
            assert second.job == f"{own}.2"
    with sluice.Session(daemon.socket) as first:
        assert first.job == own


# --- torchrun ---------------------------------------------------------------

TRAINS = """
    import os, sys, torch, sluice
    import torch.distributed as dist
    from transformers import AutoModelForCausalLM, LlamaConfig

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = AutoModelForCausalLM.from_config(LlamaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=128,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2))
    stream = sluice.stream(model, chunk=512)
    session = stream.session
    optimizer = sluice.AdamW(model.parameters(), lr=3e-3)
    ids = torch.tensor([list(b"The quick brown fox jumps. " * 30)])
    losses = []
    for step in range(2):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[1] < losses[0], losses
    with open(f"{sys.argv[1]}-{session.rank}", "w") as file:
        print(session.socket, session.job, session.rank, session.gpu, file=file)
    dist.barrier()
"""


def test_torchrun_runs_the_readmes_lines_with_one_daemon(folder, tmp_path):
    (tmp_path / "train.py").write_text(textwrap.dedent(TRAINS))

    def torchrun(name):
        return subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", "--standalone",
             "--nproc-per-node", "2", str(tmp_path / "train.py"),
             str(tmp_path / name)],
            env=environment(), text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT)

    for run_of in [torchrun("a"), torchrun("b")]:  # both runs at the same time
        said, _ = run_of.communicate(timeout=250)
        assert run_of.returncode == 0, said
    jobs = []
    for name in "a", "b":
        first, second = ((tmp_path / f"{name}-{rank}").read_text().split()
                         for rank in (0, 1))
        assert first[0] == second[0] == str(folder / "session.sock")
        assert first[1] == second[1]
        assert (first[2:], second[2:]) == (["0", "0"], ["1", "1"])
        jobs.append(first[1])
    assert jobs[0] != jobs[1]


DIFFER = """
    import os, sys, sluice
    import torch.distributed as dist
    from models import tiny
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    os.environ["SLUICE_SOCKET"] = sys.argv[1 + rank]
    dist.barrier()
    try:
        sluice.stream(tiny(), chunk=64, quiet=True)
        said = ""
    except sluice.Error as error:
        said = error.line
    dist.barrier()
    if said:
        print(f"rank {rank}: {said}", flush=True)
"""


def test_ranks_of_a_node_with_two_daemons_are_refused(
        daemon, daemon_of_the_file, tmp_path):
    (tmp_path / "differ.py").write_text(textwrap.dedent(DIFFER))

    def torchrun(*sockets):
        return subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--standalone",
             "--nproc-per-node", "2", str(tmp_path / "differ.py"), *sockets],
            env=environment(PYTHONPATH=f"{PACKAGE}:{TESTS}"), text=True,
            capture_output=True, timeout=250)

    first, second = daemon.socket, daemon_of_the_file.socket
    said = torchrun(first, second).stdout.splitlines()
    assert len(said) == 1 and first in said[0] and second in said[0], said
    other = tmp_path / "other"  # another path to the same daemon
    other.symlink_to(os.path.dirname(first))
    ran = torchrun(first, str(other / "session.sock"))
    assert (ran.returncode, ran.stdout) == (0, ""), ran.stderr
