"""Collects the licences of all code that is linked into the programs of the
wheel and of the verification kit (`python3 licences.py BUILD FOLDER FILE…`).

The build's outputs name that code: the linker's maps list the archives that a
member was linked from, and ninja's dependencies the headers that were included.
Each file belongs to a Debian package with its licence in
/usr/share/doc/PACKAGE/copyright.
"""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
from collections.abc import Iterable

# Packages of the compiler and of glibc. Their licences allow any program to be
# built with them.
OF_THE_COMPILER = re.compile(
    r"^(libc6|linux-libc-dev|libstdc\+\+-|libgcc-|libcrypt|cpp|gcc|g\+\+)")
# NVIDIA's headers. A test of the kit includes them only to compare our
# declarations with them.
OF_NVIDIA = re.compile(r"/(cuda(-[\d.]+)?|cu\d+)/")
# Packages compiled from Debian's sources (deploy/cmake/SluiceStatic.cmake).
FROM_SOURCE = {"google": "libprotobuf-dev", "absl": "libabsl-dev",
               "prometheus": "prometheus-cpp-dev"}
DOCUMENTS = pathlib.Path("/usr/share/doc")
COMMON = pathlib.Path("/usr/share/common-licenses")

_MEMBER = re.compile(r"(?<!\S)(/\S+\.a)\(")
_COMMON = re.compile(rf"{COMMON}/([\w.+-]*[\w+-])")


def write(build: pathlib.Path, folder: pathlib.Path,
          carried: Iterable[pathlib.Path] = ()) -> list[str]:
    """Writes THIRD_PARTY into `folder`, and returns the packages in it.

    `carried` are Debian's own files that are distributed unchanged.

    Raises:
        RuntimeError: nothing was linked, or a file is of no package.
        OSError: a package has no licence file.
    """
    packages = sorted(_packages(
        _files(build) | {str(path.resolve()) for path in carried}))
    if not packages:
        raise RuntimeError(f"{build} has linked nothing: build it first")
    parts = ["The programs and libraries here contain code of these Debian "
             f"packages.\n\n  {' '.join(packages)}\n"]
    common: set[str] = set()
    for package in packages:
        text = (DOCUMENTS / package / "copyright").read_text("utf-8")
        common |= set(_COMMON.findall(text))
        parts.append(_title(package) + text)
    for name in sorted(common):
        parts.append(_title(f"{COMMON}/{name}")
                     + (COMMON / name).read_text("utf-8"))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "THIRD_PARTY").write_text("\n".join(parts), "utf-8")
    return packages


def _title(name: str) -> str:
    return f"{'=' * 79}\n{name}\n{'=' * 79}\n\n"


def _files(build: pathlib.Path) -> set[str]:
    """Returns the archives and headers in the programs that are not ours."""
    found = set()
    for path in build.glob("*.map"):
        found |= set(_MEMBER.findall(path.read_text("utf-8", "replace")))
    said = subprocess.run(["ninja", "-C", build, "-t", "deps"], check=True,
                          text=True, stdout=subprocess.PIPE).stdout
    found |= {line.strip() for line in said.splitlines()
              if line.startswith("    /")}
    own = f"{build.resolve()}/"
    tree = f"{pathlib.Path(__file__).resolve().parents[2]}/"
    return {str(pathlib.Path(path).resolve()) for path in found
            if not path.startswith((own, tree))
            and not OF_NVIDIA.search(path)}


def _packages(files: set[str]) -> set[str]:
    found = set()
    installed = []
    for path in files:
        source = re.search(r"/debian-sources/(\w+)/", path)
        if source:
            found.add(FROM_SOURCE[source.group(1)])
        else:
            installed.append(path)
    said = subprocess.run(["dpkg-query", "-S", *installed],
                          capture_output=True, text=True)
    if said.returncode:
        raise RuntimeError("files of no Debian package: " + said.stderr)
    for line in said.stdout.splitlines():
        owners = line.partition(": ")[0]
        found |= {owner.partition(":")[0] for owner in owners.split(", ")}
    return {package for package in found
            if not OF_THE_COMPILER.match(package)}


def main(build: str, folder: str, *carried: str) -> int:
    try:
        write(pathlib.Path(build), pathlib.Path(folder),
              [pathlib.Path(path) for path in carried])
    except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
        print(f"error: licences: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
