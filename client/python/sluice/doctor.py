"""What is here, and whether it works: one line per finding. The line of a
failed one ends with what to do."""
from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import platform
import time
from collections.abc import Callable, Iterator

from sluice import _native
from sluice.daemon import find_programs
from sluice.session import Session


@dataclasses.dataclass(frozen=True)
class Finding:
    what: str
    ok: bool
    said: str


def examine(socket: str | None = None) -> Iterator[Finding]:
    """Looks at one thing after the other; yields what was found as it is
    found. Opens and ends a session, with a private daemon where `socket` and
    $SLUICE_SOCKET name none."""
    yield Finding("python", True, platform.python_version())
    for package in ("torch", "transformers"):
        yield _finding(
            package, functools.partial(importlib.metadata.version, package))
    programs = find_programs()
    yield _finding("libsluice.so", lambda: _library(programs))
    if socket is None:
        yield _finding("sluiced", programs.need_sluiced)
    yield _finding("session", lambda: _session(socket))


def _finding(what: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(what, True, look())
    except Exception as error:  # whatever is wrong is the finding
        return Finding(what, False, str(error) or type(error).__name__)


def _library(programs) -> str:
    path = programs.need_library()
    return f"{path}, C ABI {_native.load(path).abi_version()}"


def _session(socket: str | None) -> str:
    """Leases, copies to the host and back, and compares."""
    import torch

    from sluice.arena import HostArena
    before = time.monotonic()
    with Session(socket) as session, HostArena(session) as arena:
        there = torch.arange(1 << 20, dtype=torch.int32, device=arena.device)
        again = arena.get(arena.put(there), there.device)
        if not torch.equal(there, again):
            raise RuntimeError("4 MiB came back changed from host memory: "
                               "report this")
        limits = session.limits()
        where = ("a private simulated daemon" if session.daemon else
                 session.socket)
    return (f"{where}, {limits.host_free_bytes / 2**30:.1f} GiB of host memory"
            f" free, 4 MiB copied there and back; "
            f"{time.monotonic() - before:.2f} s")
