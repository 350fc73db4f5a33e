#!/usr/bin/env python3
"""bench-train: seconds of a step of `sluice-train`, on a private node.

    train_steps.py --bin DIR --json FILE

This script uses only the program's command line, so that `./dev bench
--against` can measure a revision older than the script. Flags set the chunk and
alpha, so that the trainer's choice of them is not measured.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

STEPS = 6  # of a run; the first touches the memory and is not counted
SHAPE = ["--arch", "llama", "--layers", "2", "--hidden", "128", "--heads", "4",
         "--ffn", "344", "--vocab", "256", "--seq-len", "2048", "--threads",
         "1", "--lr", "0.001", "--hbm", "256MiB", "--host", "1GiB",
         "--steps", str(STEPS)]
RUNS = {
    "train step, sluice, 8 x 256":
        ["--method", "sluice", "--chunk", "256", "--alpha", "0.5"],
    "train step, sluice, 2 x 1024":
        ["--method", "sluice", "--chunk", "1024", "--alpha", "0.5"],
    "train step, sluice, 2 ranks, 8 x 256":
        ["--method", "sluice", "--chunk", "256", "--alpha", "0.5",
         "--ranks", "2"],
    "train step, keep-all": ["--method", "keep-all"],
    "train step, recompute": ["--method", "recompute"],
}
HERE = os.path.dirname(os.path.abspath(__file__))


def steps(program, flags):
    """Returns what the program logged of each step."""
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, "steps.jsonl")
        run = subprocess.run(
            [program, "train", "--private", *SHAPE, "--log-jsonl", log,
             "--data", os.path.join(HERE, "train_steps.py"), *flags],
            capture_output=True, text=True, stdin=subprocess.DEVNULL,
            check=False)
        if run.returncode != 0:
            sys.exit(f"error: sluice-train {' '.join(flags)}: status "
                     f"{run.returncode}: {run.stderr.strip()}")
        with open(log, encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
    return [line for line in lines if "seconds" in line]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", required=True)
    parser.add_argument("--json", required=True)
    arguments = parser.parse_args()
    entries = []
    for name, flags in RUNS.items():
        found = steps(os.path.join(arguments.bin, "sluice-train"), flags)
        seconds = statistics.median(step["seconds"] for step in found[1:])
        entries.append({
            "name": name, "value": seconds, "unit": "s", "target": None,
            "better": "lower",
            "detail": f"loss {found[-1]['loss']:.4f} after {STEPS} steps"})
        print(f"{name:<38} {seconds:.3f} s", flush=True)
    with open(arguments.json, "w", encoding="utf-8") as file:
        json.dump(entries, file)


if __name__ == "__main__":
    main()
