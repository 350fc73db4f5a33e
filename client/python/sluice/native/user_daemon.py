"""The daemon of a session that names none: the node's, else one of the user's.

The first process of a user that finds no daemon on its node starts one, in a
folder of the user's; other ranks and later jobs join it. It serves the node's
real GPUs, or simulated ones where there is no NVIDIA device, pins no more host
memory than was free when it started, and ends some minutes after its last
session. In a Slurm job it is the job's, since the job's end ends it. On an
instance of a GPU (MIG), of which CUDA shows a process one, it is the
instance's.
"""
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
IDLE_S = 600  # after its last session it ends; $SLUICE_DAEMON_IDLE_S
_SIMULATED_GPUS = 8
_GIB = 1 << 30


def socket_of_the_node() -> str:
    """The socket of a daemon to open a session with; starts a daemon if there
    is none.

    Raises:
        Error: NOT_FOUND where there is no sluiced to start; PERMISSION_DENIED
            where the user's folder is another user's; INTERNAL with the last
            line of its log where it does not start; DEADLINE_EXCEEDED.

    Thread safety: safe, and so it is among processes.
    """
    if os.path.exists(NODES_OWN):
        return NODES_OWN
    folder = folder_of_the_user()
    path = os.path.join(folder, "session.sock")
    with open(os.path.join(folder, "start.lock"), "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released with the file
        if not listens(path):
            _start(folder)
    return path


def known_socket() -> str:
    """The same, whether there is a daemon or not; nothing is started."""
    return NODES_OWN if os.path.exists(NODES_OWN) else os.path.join(
        _folder(), "session.sock")


def _instance() -> str:
    """The MIG instance that CUDA_VISIBLE_DEVICES gives this process; "": none."""
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
    """Made if it is not there."""
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
    # As much of what is free as a node's own daemon has of all (node.h).
    host = max(free // 2, min(free // 10 * 9, free - 64 * _GIB))
    config = pathlib.Path(folder, "config.toml")
    text = config_text("auto", _SIMULATED_GPUS, free // 4,
                       host // _numa_nodes(), 0)
    if _instance():  # it has no device node of its own to be asked for
        text += '[gpus]\naccess = "any"\n'
    config.write_text(text, "ascii")
    return [os.path.abspath(find_programs().need("sluiced")),
            "--config", str(config), "--runtime-dir", folder]


def _numa_nodes() -> int:
    return max(1, len(list(pathlib.Path("/sys/devices/system/node").glob(
        "node[0-9]*"))))


def _start(folder: str) -> None:
    idle = os.environ.get("SLUICE_DAEMON_IDLE_S", str(IDLE_S))
    # This process may see some of the GPUs only, and others join.
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
    sluiced.returncode = 0  # it outlives this process, which need not wait
