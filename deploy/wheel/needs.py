"""Checks what a binary needs of a machine against manylinux_2_28's promises.

A binary may use only symbols up to version PROMISED, and only libraries in
LIBRARIES. These are PyPA's policy (auditwheel's manylinux_2_28: RHEL 8, Debian
10) without libstdc++ and libgcc, which are linked statically.
"""

from __future__ import annotations

import pathlib
import re
import subprocess
from collections.abc import Iterable

PROMISED = {"GLIBC": (2, 28)}
LIBRARIES = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2",
             "librt.so.1", "ld-linux-x86-64.so.2"}

_NEEDED = re.compile(r"^\s+NEEDED\s+(\S+)", re.MULTILINE)
_SEARCHED = re.compile(r"^\s+(R(?:UN)?PATH)\s+(\S+)", re.MULTILINE)
# Matches FLAGS of the dynamic section that include DF_STATIC_TLS, 0x10.
_STATIC_TLS = re.compile(r"^\s+FLAGS\s+0x[0-9a-f]*[13579bdf][0-9a-f]\s*$",
                         re.MULTILINE)
# Matches "0x06969190 0x00 05 GLIBC_2.34" below "required from libc.so.6:".
_VERSION = re.compile(r"^\s+0x\w+ 0x\w+ \d+ (\w+?)_(\d[\d.]*)$", re.MULTILINE)
_UNNUMBERED = re.compile(r"^\s+0x\w+ 0x\w+ \d+ ((?!\w+?_\d)\S+)$",
                         re.MULTILINE)


def _headers(binary: pathlib.Path) -> str:
    return subprocess.run(["objdump", "-p", binary], check=True, text=True,
                          stdout=subprocess.PIPE).stdout


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _references(headers: str) -> str:
    return headers.partition("Version References:")[2]


def newest(binary: pathlib.Path) -> list[str]:
    """Returns the newest version needed of each kind: "GLIBC_2.34"."""
    most: dict[str, str] = {}
    for kind, version in _VERSION.findall(_references(_headers(binary))):
        most[kind] = max(most.get(kind, version), version, key=_numbers)
    return [f"{kind}_{version}" for kind, version in sorted(most.items())]


def problems_of(name: str, headers: str) -> list[str]:
    """Returns why a binary cannot be in the wheel."""
    found = [f"{name} needs {library}"
             for library in _NEEDED.findall(headers)
             if library not in LIBRARIES]
    found += [f"{name} has {kind} {path}"
              for kind, path in _SEARCHED.findall(headers)]
    if _STATIC_TLS.search(headers):
        found.append(f"{name} has STATIC_TLS: it cannot be loaded after torch")
    references = _references(headers)
    for kind, version in sorted(set(_VERSION.findall(references))):
        if kind not in PROMISED:
            found.append(f"{name} needs {kind}_{version}")
        elif _numbers(version) > PROMISED[kind]:
            limit = ".".join(map(str, PROMISED[kind]))
            found.append(f"{name} needs {kind}_{version}, over {kind}_{limit}")
    found += [f"{name} needs {tag}" for tag in _UNNUMBERED.findall(references)]
    return found


def check(binaries: Iterable[pathlib.Path]) -> list[str]:
    return [problem for binary in binaries
            for problem in problems_of(binary.name, _headers(binary))]
