"""`./dev wheel`, its second half: packs what build/wheel has as one wheel.

    make.py BUILD OUT --python PYTHON

BUILD is a build of the preset `wheel`, and PYTHON a Python with hatchling.
Strips and checks the programs (`needs.py`), collects the licences of all code
in them (`licences.py`), and runs hatchling with client/python/pyproject.toml.
Two runs on the same tree make the same bytes.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import subprocess
import sys

import licences
import needs

TREE = pathlib.Path(__file__).resolve().parents[2]
PLATFORM = "manylinux_2_28_x86_64"
# Path in the build: path in the package `sluice`.
PROGRAMS = {"bin/sluiced": "bin/sluiced",
            "bin/sluice-worker": "bin/sluice-worker",
            "bin/sluicectl": "bin/sluicectl",
            "lib/libsluice.so": "lib/libsluice.so"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--python", required=True)
    given = parser.parse_args()
    try:
        stage = given.build / "wheel-stage"
        shutil.rmtree(stage, ignore_errors=True)
        put_programs(given.build, stage)
        problems = needs.check(stage / name for name in PROGRAMS.values())
        if problems:
            raise RuntimeError(f"not {PLATFORM}:\n  " + "\n  ".join(problems))
        packages = licences.write(given.build, stage / "licenses")
        (stage / "licenses" / "LICENSE").write_bytes(
            (TREE / "LICENSE").read_bytes())
        wheel = pack(stage, given.out, given.python)
    except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
        print(f"error: wheel: {error}", file=sys.stderr)
        return 1
    for name in PROGRAMS.values():
        print(f"wheel: {name}: {mib(stage / name)} MiB, needs "
              f"{', '.join(needs.newest(stage / name))}")
    print(f"wheel: licences of {len(packages)} packages: "
          f"{' '.join(packages)}")
    print(f"wheel: {wheel}, {mib(wheel)} MiB")
    return 0


def mib(path: pathlib.Path) -> str:
    return f"{path.stat().st_size / 2**20:.1f}"


def put_programs(build: pathlib.Path, stage: pathlib.Path) -> None:
    for source, name in PROGRAMS.items():
        to = stage / name
        to.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["strip", "--strip-all", "-o", to, build / source],
                       check=True)
        to.chmod(0o755)


def pack(stage: pathlib.Path, out: pathlib.Path, python: str) -> pathlib.Path:
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("*.whl"):
        old.unlink()
    environment = dict(os.environ, SLUICE_WHEEL_STAGE=str(stage.resolve()),
                       SLUICE_WHEEL_PLATFORM=PLATFORM,
                       SOURCE_DATE_EPOCH=commit_time())
    said = subprocess.run(
        [python, "-m", "hatchling", "build", "-t", "wheel", "-d",
         str(out.resolve())], cwd=TREE / "client" / "python",
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True)
    if said.returncode:
        raise RuntimeError(f"hatchling failed:\n{said.stdout}")
    [wheel] = out.glob("*.whl")
    return wheel


def commit_time() -> str:
    """Returns the last commit's time, so that two runs make the same bytes."""
    asked = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=TREE,
                           capture_output=True, text=True)
    return asked.stdout.strip() or "1577836800"


if __name__ == "__main__":
    sys.exit(main())
