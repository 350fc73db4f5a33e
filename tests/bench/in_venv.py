"""Restarts a benchmark of the Python package in the environment of
deploy/setup/venv.txt, which has torch and transformers."""

import importlib.util
import json
import os
import subprocess
import sys

import figures

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
_INSIDE = "SLUICE_BENCH_INSIDE"


def main(doc, entries_of):
    """Runs `entries_of(DIR)` in the environment that has torch and writes the
    entries to the file of `--json`. Returns the exit status."""
    arguments = figures.arguments(doc)
    enter()
    entries = entries_of(arguments.bin)
    with open(arguments.json, "w", encoding="utf-8") as file:
        json.dump(entries, file)
    return 0


def enter():
    """Unless this process already runs in the environment that has torch, runs
    the same command there and exits with that command's status."""
    if _INSIDE not in os.environ:
        sys.exit(_again(sys.argv[sys.argv.index("--bin") + 1]))


def _again(folder):
    """Runs this command in the environment that has torch, with the programs
    of `folder`, on one thread, and returns its exit status. Without such an
    environment it uses this Python, which may have torch itself."""
    deps = os.environ.get("SLUICE_DEPS",
                          os.path.expanduser("~/.cache/sluice"))
    python = os.path.join(deps, "venv", "bin", "python")
    if not os.path.exists(python):
        if not importlib.util.find_spec("torch"):
            print(f"error: no {python}: ./dev setup python makes it",
                  file=sys.stderr)
            return 1
        python = sys.executable
    environment = dict(os.environ, OMP_NUM_THREADS="1",
                       SLUICE_BIN_DIR=os.path.abspath(folder),
                       PYTHONPATH=os.path.join(ROOT, "client", "python"))
    environment[_INSIDE] = "1"
    environment.pop("SLUICE_SOCKET", None)
    return subprocess.run([python, *sys.argv], env=environment,
                          check=False).returncode
