"""Checks what Debian packages need of a machine: check_debs.py PACKAGE.deb…

The packages are for Debian and Ubuntu with glibc 2.35 or newer, so a package
may depend on no library except glibc and libsluice, and each program must meet
the wheel's limits (deploy/wheel/needs.py).
"""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.append(str(pathlib.Path(__file__).parents[1] / "wheel"))
import needs

NEWEST_GLIBC = (2, 35)
OTHERS = {"init-system-helpers", "systemd", "libsluice1"}
# Matches "libc6 (>= 2.34)".
_RELATION = re.compile(r"([\w.+-]+)(?: \(>?= ([\d.]+)\))?")


def problems_of(depends: str) -> list[str]:
    """Returns the disallowed entries in a package's field Depends."""
    found = []
    for package, version in _RELATION.findall(depends):
        if package == "libc6":
            if tuple(map(int, version.split("."))) > NEWEST_GLIBC:
                found.append(f"libc6 {version}")
        elif package not in OTHERS:
            found.append(package)
    return found


def check(deb: pathlib.Path) -> list[str]:
    depends = subprocess.run(["dpkg-deb", "-f", deb, "Depends"], check=True,
                             text=True, stdout=subprocess.PIPE).stdout
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["dpkg-deb", "-x", deb, folder], check=True)
        usr = pathlib.Path(folder) / "usr"
        programs = [*usr.glob("bin/*"), *usr.glob("lib/**/*.so.*.*")]
        found = needs.check(programs)
    found += [f"it depends on {each}" for each in problems_of(depends)]
    return [f"{deb.name}: {each}" for each in found]


def main(debs: list[str]) -> int:
    problems = [each for deb in debs for each in check(pathlib.Path(deb))]
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems or not debs else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
