"""`./dev wheel --matrix`: the wheel under each Python and torch it is for.

    matrix.py DIST [--only 3.13]

For each combination, makes an empty environment, installs that torch and the
wheel with its dependencies by pip, runs the commands of the READMEs, and
removes the environment. Combinations run one after another, because an
environment with torch is 5 GB. The exit status is 1 if a combination fails, or
if this machine lacks its Python.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import readme

TREE = pathlib.Path(__file__).resolve().parents[2]
PAGES = ("README.md", "client/python/README.md")
MATRIX = (("3.10", "2.10"), ("3.11", "2.11"), ("3.13", "2.11"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dist", type=pathlib.Path)
    parser.add_argument("--only", metavar="PYTHON",
                        choices=[python for python, _ in MATRIX])
    given = parser.parse_args()
    [wheel] = given.dist.glob("*.whl")
    good = True
    for python, torch in MATRIX:
        if given.only in (None, python):
            since = time.monotonic()
            problem = _try(wheel.resolve(), python, torch)
            good &= problem is None
            print(f"matrix: Python {python}, torch {torch}: "
                  f"{problem or 'the READMEs train a model'} "
                  f"({time.monotonic() - since:.0f} s)", flush=True)
    return 0 if good else 1


def _interpreter(python: str) -> str | None:
    """Returns a Python that runs. A shim of pyenv may exist although its Python
    does not."""
    versions = pathlib.Path(os.environ.get("PYENV_ROOT", "~/.pyenv"))
    candidates = [shutil.which(f"python{python}"),
                  *sorted(versions.expanduser().glob(
                      f"versions/{python}.*/bin/python"))]
    for path in candidates:
        if path and not subprocess.run(
                [path, "-c", "import ensurepip, venv"],
                capture_output=True).returncode:
            return str(path)
    return None


def _try(wheel: pathlib.Path, python: str, torch: str) -> str | None:
    """Tests the wheel in one environment. Returns the error, or None."""
    interpreter = _interpreter(python)
    if interpreter is None:
        return "MISSING: this machine has no such Python with venv"
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(("SLUICE_", "PYTHON"))}
    with tempfile.TemporaryDirectory(prefix="sluice-matrix-") as folder:
        environment = {**kept, "PATH": f"{folder}/bin:{kept['PATH']}",
                       # A daemon must end before its folder is deleted.
                       "TMPDIR": folder, "SLUICE_DAEMON_IDLE_S": "0",
                       "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        steps = [[interpreter, "-m", "venv", folder],
                 ["pip", "install", "-q", "--no-cache-dir",
                  f"torch=={torch}.*", str(wheel)],
                 ["python", "-m", "sluice", "doctor"]]
        for page in PAGES:
            typed = pathlib.Path(folder, page.replace("/", "_") + ".py")
            typed.write_text(readme.program(TREE / page))
            steps.append(["python", str(typed)])
        for words in steps:
            words[0] = shutil.which(words[0], path=environment["PATH"])
            done = subprocess.run(words, cwd=folder, env=environment,
                                  capture_output=True, text=True)
            if done.returncode:
                shown = " ".join(map(str, words))
                return f"FAILED: {shown}\n{done.stdout}{done.stderr}"
    return None


if __name__ == "__main__":
    sys.exit(main())
