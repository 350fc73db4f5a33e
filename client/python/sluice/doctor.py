"""Checks what is installed and whether it works. Each finding is one line."""
from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import json
import pathlib
import platform
import subprocess
import time
from collections.abc import Callable, Iterator

from sluice.native import abi
from sluice.native.daemon import Programs, find_programs
from sluice.native.session import Session

# Names of sluicectl's checks of the machine.
_MACHINE = ("driver", "persistence mode", "locked memory", "open files",
            "memory limit", "huge pages", "NUMA", "host memory")


@dataclasses.dataclass(frozen=True)
class Finding:
    what: str
    ok: bool
    said: str


def examine(socket: str | None = None) -> Iterator[Finding]:
    """Yields each finding when its check ends. One check opens and closes a
    `Session(socket)`; sluicectl's findings come last."""
    yield Finding("python", True, platform.python_version())
    for package in ("torch", "transformers"):
        yield _finding(
            package, functools.partial(importlib.metadata.version, package))
    yield _finding("CUDA of torch", _cuda)
    programs = find_programs()
    yield _finding("libsluice.so", lambda: _library(programs))
    if socket is None:
        yield _finding("sluiced", lambda: programs.need("sluiced"))
    try:
        with Session(socket) as session:
            yield Finding("session", True, _session(session))
            yield from _of_the_machine(programs, session.socket)
    except Exception as error:
        yield _failed("session", error)
        yield from _of_the_machine(programs, socket)


def _finding(what: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(what, True, look())
    except Exception as error:
        return _failed(what, error)


def _failed(what: str, error: Exception) -> Finding:
    return Finding(what, False, str(error) or type(error).__name__)


def _cuda() -> str:
    import torch
    if torch.version.cuda is None:
        return "none: this torch is built for the CPU, where GPUs are simulated"
    if not torch.cuda.is_available():
        if not list(pathlib.Path("/dev").glob("nvidia[0-9]*")):
            return f"{torch.version.cuda}, and no GPU on this machine"
        raise RuntimeError(
            f"{torch.version.cuda}, which finds no GPU though there is one: "
            "see nvidia-smi, and whether the driver is new enough for this "
            "torch")
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
    return (f"{torch.version.cuda}, NCCL {nccl}, {torch.cuda.device_count()} "
            "GPUs that this process sees")


def _library(programs) -> str:
    path = programs.need("library")
    return f"{path}, C ABI {abi.load(path).abi_version()}"


def _of_the_machine(programs: Programs, socket: str | None
                    ) -> Iterator[Finding]:
    """Yields sluicectl's findings about the machine and, with `socket`, also
    its failed checks of the daemon there. Yields nothing without sluicectl."""
    if programs.sluicectl is None:
        return
    asked = ["--socket", socket] if socket else []
    told = subprocess.run([programs.sluicectl, *asked, "doctor", "--json"],
                          text=True, capture_output=True)
    try:
        findings = json.loads(told.stdout)["findings"]
    except ValueError:
        yield Finding("sluicectl", False, told.stderr.strip())
        return
    for found in findings:
        mend = f"; run: {found['fix']}" if found["fix"] else ""
        if found["what"] in _MACHINE or (socket and not found["ok"]):
            yield Finding(found["what"], found["ok"], found["said"] + mend)


def _session(session: Session) -> str:
    import torch

    from sluice.memory.arena import HostArena
    before = time.monotonic()
    with HostArena(session) as arena:
        there = torch.arange(1 << 20, dtype=torch.int32, device=arena.device)
        again = arena.get(arena.put(there), there.device)
        if not torch.equal(there, again):
            raise RuntimeError("4 MiB came back changed from host memory: "
                               "report this")
    limits = session.limits()
    simulated = ", simulated GPUs" if limits.device is None else ""
    return (f"{session.socket}{simulated}, "
            f"{limits.host_free_bytes / 2**30:.1f} GiB of host memory free, "
            "4 MiB copied there and back; "
            f"{time.monotonic() - before:.2f} s")
