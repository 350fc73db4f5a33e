"""Finds libsluice.so and the programs; makes the configuration of a daemon that
this package starts, and waits until that daemon is ready."""
from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import select
import subprocess
import time
from collections.abc import Iterable, Iterator

from sluice.base.errors import Error, Status, loader_fault
from sluice.native import abi

START_TIMEOUT_S = 30.0
MAX_SOCKET_PATH = 107  # bytes of a Unix socket's path, without the final zero
_READY = re.compile(rb"^sluiced: ready", re.MULTILINE)
_PACKAGE = pathlib.Path(__file__).resolve().parent.parent


@dataclasses.dataclass(frozen=True)
class Programs:
    """Paths of the programs of one build; None for missing ones."""

    library: str | None  # libsluice.so
    sluiced: str | None
    sluicectl: str | None

    def need(self, name: str) -> str:
        """Returns a program's path; raises `Error` NOT_FOUND without one."""
        told = os.environ.get("SLUICE_BIN_DIR")
        where = (f"SLUICE_BIN_DIR={told}" if told else
                 "the package or in a build of its source tree")
        if getattr(self, name):
            return getattr(self, name)
        file = "libsluice.so" if name == "library" else name
        raise Error(Status.NOT_FOUND, f"no {file} in {where}: install the "
                    "wheel, or build with ./dev build and set SLUICE_BIN_DIR "
                    "to its build/release/bin")


def _candidates() -> list[tuple[pathlib.Path, tuple[pathlib.Path, ...]]]:
    """Returns (folder of sluiced, folders of libsluice.so) in the order of
    search. A folder that the user names is the only candidate."""
    told = os.environ.get("SLUICE_BIN_DIR")
    if told:
        folder = pathlib.Path(told)
        return [(folder, (folder.parent / "lib", folder))]
    # The wheel, then the source tree that contains this file.
    found: list[tuple[pathlib.Path, tuple[pathlib.Path, ...]]] = [
        (_PACKAGE / "bin", (_PACKAGE / "lib",))]
    if (_PACKAGE.parents[2] / "CMakeLists.txt").is_file():
        build = _PACKAGE.parents[2] / "build" / "release"
        found.append((build / "bin", (build / "lib",)))
    return found


def find_programs() -> Programs:
    """Finds the programs in $SLUICE_BIN_DIR, the wheel, or the tree's build."""
    for binaries, libraries in _candidates():
        found = Programs(
            _first_file(folder / "libsluice.so" for folder in libraries),
            _first_file([binaries / "sluiced"]),
            _first_file([binaries / "sluicectl"]))
        if found.library or found.sluiced:
            return found
    return Programs(None, None, None)


def load_library() -> abi.Library:
    """Loads the library that `find_programs` finds; raises as `abi.load`."""
    return abi.load(find_programs().need("library"))


def _first_file(paths: Iterable[pathlib.Path]) -> str | None:
    return next((str(path) for path in paths if path.is_file()), None)


def available_bytes(root: str = "/") -> int:
    """Returns the bytes that this process can still allocate: the minimum over
    the machine and the process's cgroups, read from `root`/proc and /sys."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    # MemAvailable counts reclaimable caches; a /proc with subset=pid lacks it.
    meminfo = _numbers(pathlib.Path(root, "proc/meminfo"))
    return max(0, min([meminfo.get("MemAvailable:", free >> 10) << 10,
                       *_left_by_cgroups(pathlib.Path(root))]))


def _numbers(file: pathlib.Path) -> dict[str, int]:
    """Returns {name: number} of a file's lines "name number". The name is ""
    for a line with only a number. Returns {} if the file cannot be read."""
    try:
        lines = file.read_text("ascii").splitlines()
    except OSError:
        return {}
    words = [line.removesuffix(" kB").split() for line in lines]
    return {"".join(line[:-1]): int(line[-1]) for line in words
            if line and line[-1].isdigit()}


def _left_by_cgroups(root: pathlib.Path) -> Iterator[int]:
    """Yields the bytes left in the process's cgroup and in each above it."""
    try:
        told = (root / "proc/self/cgroup").read_bytes()
    except OSError:
        return
    for line in os.fsdecode(told).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        mounted = root / "sys/fs/cgroup" / ("memory" if controllers else "")
        names = (("memory.limit_in_bytes", "memory.usage_in_bytes")
                 if controllers else ("memory.max", "memory.current"))
        parts = [part for part in path.split("/") if part]
        # In a container the mount may begin at a group within the path.
        while parts and not mounted.joinpath(*parts).is_dir():
            parts = parts[1:]
        for depth in range(len(parts) + 1):
            group = mounted.joinpath(*parts[:depth])
            limit, used = (_numbers(group / name).get("") for name in names)
            stat = _numbers(group / "memory.stat")
            # This limit also includes the limits of groups above the mount.
            limit = stat.get("hierarchical_memory_limit", limit)
            if limit is not None:
                yield limit - (used or 0) + stat.get(
                    "total_inactive_file", stat.get("inactive_file", 0))


def config_text(driver: str, gpus: int, gpu_bytes: int, host_bytes: int,
                link_bytes_per_second: float) -> str:
    """Returns the config.toml of a daemon that this package starts.
    `host_bytes` is per NUMA node; the other numbers describe simulated GPUs."""
    speed = f"{link_bytes_per_second:.1f}"
    links = ", ".join(f'{{name = "pcie{i}", h2d_bytes_per_s = {speed}, '
                      f'd2h_bytes_per_s = {speed}}}' for i in range(gpus))
    names = ", ".join(f'"pcie{i}"' for i in range(gpus))
    gpu, host = f"{gpu_bytes >> 10}KiB", f"{host_bytes >> 10}KiB"
    return (f'[device]\ndriver = "{driver}"\n'
            f'[sim]\ngpus = {gpus}\ngpu_memory = "{gpu}"\n'
            f'host_memory = "{host}"\n'
            f'links = [{links}]\ngpu_links = [{names}]\n'
            f'[pools]\nhost_bytes = "{host}"\n'
            f'[http]\nlisten = ""\n[log]\nlevel = "warning"\n')


def log_path(folder: str) -> str:
    return os.path.join(folder, "log")


def await_ready(process: subprocess.Popen[bytes], folder: str,
                timeout_s: float) -> None:
    """Waits until sluiced reports on `process.stdout` that it serves. Raises
    `Error` with the last line of its log: INTERNAL if sluiced ends before it is
    ready; DEADLINE_EXCEEDED after `timeout_s`."""
    deadline, text = time.monotonic() + timeout_s, b""
    assert process.stdout is not None
    while not _READY.search(text):
        left = deadline - time.monotonic()
        if left <= 0:
            raise Error(Status.DEADLINE_EXCEEDED, "sluiced was not "
                        f"ready after {timeout_s:g} s: {_last_line(folder)}")
        if not select.select([process.stdout], [], [], left)[0]:
            continue
        piece = os.read(process.stdout.fileno(), 4096)
        if not piece:
            line = _last_line(folder)
            raise Error(Status.INTERNAL, "sluiced did not start: "
                        f"{loader_fault(line) or line}")
        text += piece


def _last_line(folder: str) -> str:
    with open(log_path(folder), encoding="utf-8", errors="replace") as file:
        lines = [line.strip() for line in file if line.strip()]
    return lines[-1] if lines else "it said nothing"
