"""Starts a sluiced for a benchmark, and runs sluice-train on it."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile

DOES_NOT_FIT = 3  # sluice-train's exit status


@contextlib.contextmanager
def daemon(folder, config):
    """Starts the sluiced of `folder` with the configuration text `config` and
    yields the daemon's runtime directory. If the daemon does not start, ends
    the benchmark with the last line of the daemon's log."""
    with tempfile.TemporaryDirectory() as runtime:
        path = os.path.join(runtime, "sluiced.toml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(config)
        log = os.path.join(runtime, "sluiced.log")
        with open(log, "w", encoding="utf-8") as stderr, subprocess.Popen(
                [os.path.join(folder, "sluiced"), "--config", path,
                 "--runtime-dir", runtime], stdout=subprocess.PIPE,
                stderr=stderr, stdin=subprocess.DEVNULL, text=True) as process:
            try:
                if "ready" not in process.stdout.readline():
                    sys.exit(f"error: sluiced did not start: {last_line(log)}")
                yield runtime
            finally:
                process.terminate()


def last_line(path):
    with open(path, encoding="utf-8") as file:
        lines = file.read().strip().splitlines()
    return lines[-1] if lines else "it printed nothing"


def train(folder, runtime, flags, steps, text):
    """Runs sluice-train on the daemon of `runtime` over the file `text`.
    Returns (what each step logged, the report), or None if the run does not
    fit. Ends the benchmark on any other failure."""
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as log:
        run = subprocess.run(
            [os.path.join(folder, "sluice-train"), "train", "--socket",
             os.path.join(runtime, "session.sock"), "--json", "--steps",
             str(steps), "--log-jsonl", log.name, "--data", text, *flags],
            capture_output=True, text=True, stdin=subprocess.DEVNULL,
            check=False)
        if run.returncode == DOES_NOT_FIT:
            return None
        if run.returncode != 0:
            sys.exit(f"error: sluice-train {' '.join(flags)}: status "
                     f"{run.returncode}: {run.stderr.strip()}")
        lines = [json.loads(line) for line in log.read().splitlines()]
    return ([line for line in lines if "seconds" in line],
            json.loads(run.stdout))
