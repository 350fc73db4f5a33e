"""What the benchmarks share that run a test and read the figures it prints."""

import argparse
import json
import subprocess
import sys


def arguments(doc):
    """Parses `--bin DIR --json FILE` of a benchmark, which `doc` describes."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--bin", required=True)
    parser.add_argument("--json", required=True)
    return parser.parse_args()


def printed_by(test, *words, env=None):
    """What the script `test` prints, which is shown too; ends the benchmark
    where the test fails."""
    run = subprocess.run([sys.executable, test, *words], text=True, check=False,
                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                         env=env)
    print(run.stdout, end="", flush=True)
    if run.returncode != 0:
        sys.exit(f"error: {test} ended with status {run.returncode}")
    return run.stdout


def write(rows, needed, path):
    """Ends the benchmark where a row of `needed`, by name, is not there."""
    missing = set(needed) - {row["name"] for row in rows}
    if missing:
        sys.exit(f"error: the test did not print: {', '.join(sorted(missing))}")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(rows, file)
