"""Helpers of the Python package's tests: child processes, and waiting for
them."""

from __future__ import annotations

import atexit
import functools
import json
import os
import pathlib
import select
import subprocess
import sys
import tempfile
import textwrap
import time
import traceback
from collections.abc import Callable

import pytest

DEEP = "SLUICE_DEEP" in os.environ
TESTS = pathlib.Path(__file__).resolve().parent
ROOT = TESTS.parents[1]
PACKAGE = ROOT / "client" / "python"


def deep(*values):
    """Marks a case of a parametrized test that runs only with SLUICE_DEEP=1
    (conftest.py)."""
    return pytest.param(*values, marks=pytest.mark.deep)


def environment(**changes: str | None) -> dict[str, str]:
    """Returns this process's environment with the package first in PYTHONPATH
    and with the changes; None removes a variable."""
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


def forked(call: Callable[[], int | None]) -> subprocess.CompletedProcess[str]:
    """Runs `call` in a fork, which has loaded what this process has. Returns
    what run() would; the status is what `call` returns or exits with."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile(
            "w+") as err:
        child = os.fork()
        if child == 0:
            os._exit(_status_of(call, out, err))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        for file in (out, err):
            file.seek(0)
        return subprocess.CompletedProcess([], status, out.read(), err.read())


def _status_of(call: Callable[[], int | None], out, err) -> int:
    sys.stdout, sys.stderr = out, err
    os.dup2(out.fileno(), 1)
    os.dup2(err.fileno(), 2)
    try:
        return int(call() or 0)
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        out.flush()
        err.flush()


class Loaded:
    """A process that has loaded some modules and runs programs in its forks
    (loaded.py), because loading torch takes longer than most of the programs.
    """

    def __init__(self, *modules: str, **changes: str | None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="sluice-loaded-")
        self._modules, self._changes = modules, changes
        self._start()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, TESTS / "loaded.py", *self._modules],
            env=environment(**self._changes), text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def run(self, program: str | os.PathLike[str], *arguments: str,
            timeout_s: float = 250, **variables: str
            ) -> subprocess.CompletedProcess[str]:
        """Works like subprocess.run() of a Python program with these
        additional variables."""
        out, err = (pathlib.Path(self._folder.name, name)
                    for name in ("out", "err"))
        for file in out, err:
            file.write_text("")
        print(json.dumps(dict(
            program=str(program), arguments=arguments, variables=variables,
            out=str(out), err=str(err))), file=self._process.stdin, flush=True)
        if not select.select([self._process.stdout], [], [], timeout_s)[0]:
            self._process.kill()  # this also ends the fork
            self._wait()
            self._start()  # for the next program
            raise subprocess.TimeoutExpired(program, timeout_s, out.read_text(),
                                            err.read_text())
        status = int(self._process.stdout.readline())
        return subprocess.CompletedProcess(
            [program, *arguments], status, out.read_text(), err.read_text())

    def run_code(self, code: str) -> subprocess.CompletedProcess[str]:
        file = pathlib.Path(self._folder.name, "code.py")
        file.write_text(textwrap.dedent(code), encoding="utf-8")
        return self.run(file)

    def _wait(self) -> None:
        """Waits for the end of the process; no program may be running."""
        self._process.stdin.close()
        self._process.wait(timeout=30)
        self._process.stdout.close()

    def close(self) -> None:
        self._wait()
        self._folder.cleanup()


@functools.cache
def _with_sluice() -> Loaded:
    loaded = Loaded("torch", "sluice", "sluice.memory.arena")
    atexit.register(loaded.close)
    return loaded


def run_loaded(code: str) -> subprocess.CompletedProcess[str]:
    """Works like run(), in a fork that has already loaded torch and sluice."""
    return _with_sluice().run_code(code)


def is_running(pid: int) -> bool:
    """Returns whether the process runs. A zombie, which its parent has
    not yet waited for, does not count."""
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
    """Returns the ids of running processes with `folder` in their command
    line, such as sluiced."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                if folder.encode() in file.read():
                    found.append(int(entry))
        except (OSError, ValueError):
            pass
    return [pid for pid in found if is_running(pid)]
