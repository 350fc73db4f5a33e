#!/usr/bin/env python3
"""bench-gpu: what a GPU of this machine does with Sluice and without.

    gpu.py --bin DIR --json FILE [--call N] [--dry-run]

`--call N` takes only the steps of call N, in at most five minutes. Call 1 has
the most important figures. Each step is a process with its own time limit. A
step is left out if its call has less time left than the step is expected to
take. FILE is written after each step. A step that fails or is left out is a row
with the reason and without a value. `--dry-run` takes every step with tiny
sizes: Python on the CPU, the trainer on the installed libcuda.so.1.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time

import programs

HERE = os.path.dirname(os.path.abspath(__file__))
CALL_S = 290.0
# Environment variables that load tests/fake_cuda.
OF_FAKES = ("LD_PRELOAD", "LD_LIBRARY_PATH")


@dataclasses.dataclass(frozen=True)
class Step:
    name: str
    call: int
    expected_s: float  # how long it takes on an H100
    limit_s: float
    script: str
    words: tuple[str, ...] = ()


STEPS = [
    Step("transformers and Sluice, 64K tokens", 1, 70, 110, "gpu_python.py",
         ("beside", "--tokens", "65536")),
    Step("sluice-train, 64K tokens", 1, 90, 130, "gpu_trainer.py",
         ("64K tokens",)),
    Step("transformers and Sluice, 256K tokens", 1, 90, 130, "gpu_python.py",
         ("beside", "--tokens", "262144", "--steps", "1")),
    Step("longest in 16 GiB", 2, 120, 160, "gpu_python.py",
         ("longest", "--gib", "16")),
    Step("sluice-train, 256K tokens", 2, 100, 140, "gpu_trainer.py",
         ("256K tokens",)),
    Step("sluice-train, 16K tokens", 2, 50, 90, "gpu_trainer.py",
         ("16K tokens",)),
    Step("pinned host memory", 3, 90, 140, "gpu_host.py"),
    Step("documents of new lengths", 3, 50, 80, "gpu_python.py",
         ("documents", "--tokens", "32768")),
    Step("how far the host is ahead", 3, 30, 60, "gpu_python.py",
         ("ahead", "--tokens", "16384")),
]


def without_value(step, why):
    print(f"{step.name}: {why}", flush=True)
    return {"name": f"on a GPU, {step.name}", "value": None, "unit": "",
            "target": None, "better": "lower", "detail": why}


def taken(step, limit_s, arguments):
    """Returns the entries that `step` wrote within its limit. If the step
    failed, the last entry has the reason and no value."""
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "entries.json")
        command = [sys.executable, os.path.join(HERE, step.script), *step.words,
                   "--bin", arguments.bin, "--json", out]
        environment = dict(os.environ)
        if arguments.dry_run:
            command.append("--small")
            if step.script != "gpu_trainer.py":
                environment = {name: value for name, value in os.environ.items()
                               if name not in OF_FAKES}
        try:
            status = programs.finish(command, limit_s, env=environment)
            why = "" if status == 0 else f"ended with status {status}"
        except subprocess.TimeoutExpired:
            why = f"took longer than {limit_s:.0f} s"
        entries = []
        if os.path.exists(out):
            with open(out, encoding="utf-8") as file:
                entries = json.load(file)
    return entries + ([without_value(step, why)] if why else [])


def take_all(arguments, steps):
    entries, began = [], {}
    for step in steps:
        left = CALL_S - (time.monotonic()
                         - began.setdefault(step.call, time.monotonic()))
        if left < step.expected_s and not arguments.dry_run:
            entries.append(without_value(
                step, f"left out: {step.expected_s:.0f} s expected, "
                f"{left:.0f} left of call {step.call}"))
        else:
            at = time.monotonic()
            entries += taken(step, min(step.limit_s, left), arguments)
            print(f"{step.name}: {time.monotonic() - at:.0f} s, expected "
                  f"{step.expected_s:.0f}", flush=True)
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(entries, file)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--json", required=True)
    parser.add_argument("--call", type=int, choices=(1, 2, 3))
    parser.add_argument("--dry-run", action="store_true")
    arguments = parser.parse_args()
    arguments.bin = os.path.abspath(arguments.bin)
    take_all(arguments, [step for step in STEPS
                         if arguments.call in (None, step.call)])


if __name__ == "__main__":
    main()
