#!/usr/bin/env python3
"""bench-gpu: tokens per second of `sluice-train` on a GPU of this machine.

    gpu_steps.py --bin DIR --json FILE [--small]

Methods take turns on one daemon with the cuda driver; a GPU at its limit of
power slows down within seconds, and so all are measured on one as warm. The
model and its memory are those of deploy/bundle/measured. `--small`: a model and
a memory in which the test of this script runs on the fakes.
"""

import argparse
import json
import os
import statistics
import sys

import node

STEPS = 4  # of a run; the first touches the memory, and does not count
ROUNDS = 3
CONFIG = """\
[device]
driver = "cuda"
[http]
listen = ""
"""
SMALL_CONFIG = CONFIG + """\
[gpus]
access = "any"
[pools]
gpu_bytes = "64MiB"
host_bytes = "128MiB"
extent_bytes = "4MiB"
"""
SMALL = ("--layers 2 --hidden 64 --heads 4 --kv-heads 2 --ffn 96 --dtype bf16 "
         "--hbm 16MiB").split()
SIZED = ("--layers 4 --hidden 2048 --heads 16 --kv-heads 4 --ffn 5632 "
         "--dtype bf16 --threads 12 --hbm 12GiB --host 16GiB").split()
# What is compared: where all could be kept, and where that does not fit.
SIZED_RUNS = {
    "16K tokens": (16384, {"keep-all": [], "sluice": []}),
    "64K tokens": (65536, {"recompute": [], "alst": [], "sluice": [],
                           "sluice, chunk 16K": ["--chunk", "16K"]}),
}
SMALL_RUNS = {
    "200 tokens": (200, {"keep-all": [], "recompute": [], "alst": [],
                         "sluice": ["--chunk", "64"]}),
}


def rates(folder, runtime, model, tokens, methods):
    """{method: tokens per second of its steps, over all rounds}; a method that
    does not fit is said, and has none."""
    found = {method: [] for method in methods}
    for _ in range(ROUNDS):
        for method, more in methods.items():
            run = node.train(
                folder, runtime,
                ["--device", "cuda", *model, "--seq-len", str(tokens),
                 "--method", method.partition(",")[0], *more], STEPS, __file__)
            if run is None:
                print(f"{method}: {tokens} tokens do not fit", flush=True)
                continue
            found[method] += [step["tokens_per_second"] for step in run[0][1:]]
    return {method: rate for method, rate in found.items() if rate}


def entries_of(folder, small):
    runs, model = (SMALL_RUNS, SMALL) if small else (SIZED_RUNS, SIZED)
    entries = []
    with node.daemon(folder, SMALL_CONFIG if small else CONFIG) as runtime:
        for length, (tokens, methods) in runs.items():
            found = rates(folder, runtime, model, tokens, methods)
            for method, rate in found.items():
                entries.append({
                    "name": f"on a GPU, {length}, {method}",
                    "value": statistics.median(rate), "unit": "tokens/s",
                    "target": None, "better": "higher",
                    "detail": f"median of {len(rate)} steps in {ROUNDS} "
                              f"rounds, from {min(rate):.0f} to "
                              f"{max(rate):.0f}"})
                print(f"{entries[-1]['name']:<40} "
                      f"{entries[-1]['value']:,.0f} tokens/s", flush=True)
    return entries


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", required=True)
    parser.add_argument("--json", required=True)
    parser.add_argument("--small", action="store_true", help="as the test's")
    arguments = parser.parse_args()
    entries = entries_of(os.path.abspath(arguments.bin), arguments.small)
    if not entries:
        sys.exit("error: no method fits into this GPU's memory")
    with open(arguments.json, "w", encoding="utf-8") as file:
        json.dump(entries, file)


if __name__ == "__main__":
    main()
