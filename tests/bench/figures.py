"""Helpers of benchmarks: arguments, results, and figures that a test prints."""

import argparse
import json
import subprocess
import sys


def parser(doc):
    """Returns a parser for `--bin DIR --json FILE`, described by `doc`."""
    made = argparse.ArgumentParser(description=doc.splitlines()[0])
    made.add_argument("--bin", required=True)
    made.add_argument("--json", required=True)
    return made


def arguments(doc):
    return parser(doc).parse_args()


class Results:
    """A benchmark's entries. Each `add` leaves valid JSON in file `path`."""

    def __init__(self, path, small=False):
        self._path, self._entries = path, []
        self._where = "dry run" if small else "on a GPU"

    def add(self, name, value, unit, detail, better="lower"):
        self._entries.append({"name": f"{self._where}, {name}", "value": value,
                              "unit": unit, "target": None, "better": better,
                              "detail": detail})
        print(f"{name:<56} {value:,.4g} {unit} ({detail})", flush=True)
        with open(self._path, "w", encoding="utf-8") as file:
            json.dump(self._entries, file)


def printed_by(test, *words, env=None):
    """Runs the script `test`, shows its output and returns it. Ends the
    benchmark if the test fails."""
    run = subprocess.run([sys.executable, test, *words], text=True, check=False,
                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                         env=env)
    print(run.stdout, end="", flush=True)
    if run.returncode != 0:
        sys.exit(f"error: {test} ended with status {run.returncode}")
    return run.stdout


def write(rows, needed, path):
    """Writes the rows to `path`. Ends the benchmark if a row named in `needed`
    is missing."""
    missing = set(needed) - {row["name"] for row in rows}
    if missing:
        sys.exit(f"error: the test did not print: {', '.join(sorted(missing))}")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(rows, file)
