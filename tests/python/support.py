"""What the Python package's tests share: children, and waiting for ends."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable

TESTS = pathlib.Path(__file__).resolve().parent
ROOT = TESTS.parents[1]
PACKAGE = ROOT / "client" / "python"


def environment(**changes: str | None) -> dict[str, str]:
    """This process's, with the package first; None takes a variable away."""
    variables = dict(os.environ, PYTHONPATH=os.pathsep.join(
        [str(PACKAGE), os.environ.get("PYTHONPATH", "")]))
    variables.pop("SLUICE_SOCKET", None)
    for name, value in changes.items():
        variables.pop(name, None)
        if value is not None:
            variables[name] = value
    return variables


def start(code: str, **changes: str | None) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)],
                            env=environment(**changes), text=True,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE)


def run(code: str, timeout_s: float = 200,
        **changes: str | None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", textwrap.dedent(code)],
                          env=environment(**changes), text=True,
                          capture_output=True, timeout=timeout_s)


def is_running(pid: int) -> bool:
    """Not so for a zombie, whose parent just has not asked yet."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def await_true(what: str, true: Callable[[], object],
               timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s} s"
        time.sleep(0.01)


def processes_of(folder: str) -> list[int]:
    """Everything whose command line names the folder: guard, sluiced."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                if folder.encode() in file.read():
                    found.append(int(entry))
        except (OSError, ValueError):
            pass
    return [pid for pid in found if is_running(pid)]
