"""Finds or starts the daemon of a session that names no socket
(client/python/DESIGN.md, "The daemon of a session"). Slurm ends a job's daemon
with the job, so each job has its own. Each MIG instance has its own, too,
because CUDA shows a process only one instance."""
from __future__ import annotations

import fcntl
import os
import pathlib
import socket
import stat
import subprocess
import tempfile

from sluice.base.errors import Error, Status
from sluice.native.daemon import (
    MAX_SOCKET_PATH,
    START_TIMEOUT_S,
    available_bytes,
    await_ready,
    config_text,
    find_programs,
    log_path,
)

NODES_OWN = "/run/sluice/session.sock"
IDLE_S = 600  # seconds without sessions after which the daemon ends
_SIMULATED_GPUS = 8
_GIB = 1 << 30


def socket_of_the_node() -> str:
    """Returns the socket of the node's or the user's daemon; starts a daemon if
    there is none. Thread safety: safe, also among processes.

    Raises:
        Error: NOT_FOUND: no sluiced to start; PERMISSION_DENIED: the user's
            folder belongs to another user, or others may write to it;
            INTERNAL, with the last line of its log: sluiced did not start;
            DEADLINE_EXCEEDED.
    """
    if os.path.exists(NODES_OWN):
        return NODES_OWN
    folder = folder_of_the_user()
    path = os.path.join(folder, "session.sock")
    with open(os.path.join(folder, "start.lock"), "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed
        if not listens(path):
            _start(folder)
    return path


def known_socket() -> str:
    """Returns the path that `socket_of_the_node` returns; starts no daemon."""
    return NODES_OWN if os.path.exists(NODES_OWN) else os.path.join(
        _folder(), "session.sock")


def _instance() -> str:
    """Returns the MIG instance in CUDA_VISIBLE_DEVICES, or ""."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0]
    return first if first.startswith("MIG-") else ""


def _folder() -> str:
    name = "-".join(["sluice", str(os.getuid()),
                     *filter(None, [os.environ.get("SLURM_JOB_ID"),
                                    _instance().replace("/", "-")])])
    folder = os.path.join(tempfile.gettempdir(), name)
    return folder if len(os.path.join(folder, "session.sock")
                         ) <= MAX_SOCKET_PATH else os.path.join("/tmp", name)


def folder_of_the_user() -> str:
    folder = _folder()
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        found = os.lstat(folder)
        if (not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid()
                or found.st_mode & 0o022):
            raise Error(Status.PERMISSION_DENIED,
                        f"{folder} is not this user's own folder: set TMPDIR "
                        "to one, or SLUICE_SOCKET to a daemon's") from None
    return folder


def listens(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asked:
        return asked.connect_ex(path) == 0


def command(folder: str) -> list[str]:
    free = available_bytes()
    # The share that Pinnable (proto/base/cgroup.h) would give of `free`.
    host = max(free // 2, min(free // 10 * 9, free - 64 * _GIB))
    nodes = [*pathlib.Path("/sys/devices/system/node").glob("node[0-9]*")]
    config = pathlib.Path(folder, "config.toml")
    text = config_text("auto", _SIMULATED_GPUS, free // 4,
                       host // max(1, len(nodes)), 0)
    if _instance():  # a MIG instance has no device node to check access by
        text += '[gpus]\naccess = "any"\n'
    config.write_text(text, "ascii")
    return [os.path.abspath(find_programs().need("sluiced")),
            "--config", str(config), "--runtime-dir", folder]


def _start(folder: str) -> None:
    idle = os.environ.get("SLUICE_DAEMON_IDLE_S", str(IDLE_S))
    # sluiced must see all GPUs; this process may see only some of them.
    seen = {name: value for name, value in os.environ.items()
            if name != "CUDA_VISIBLE_DEVICES" or _instance()}
    with open(log_path(folder), "wb") as log:
        sluiced = subprocess.Popen(
            [*command(folder), "--end-after-idle", idle], cwd="/", env=seen,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
            start_new_session=True)
    try:
        await_ready(sluiced, folder, START_TIMEOUT_S)
    except BaseException:
        sluiced.kill()
        sluiced.wait()
        raise
    finally:
        sluiced.stdout.close()
    sluiced.returncode = 0  # marks it as waited for: it outlives this process
