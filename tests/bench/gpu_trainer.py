#!/usr/bin/env python3
"""Tokens per second of `sluice-train` on a GPU of this machine.

    gpu_trainer.py LENGTH --bin DIR --json FILE [--small]

Methods take turns on one daemon with the cuda driver. A GPU at its power limit
slows down within seconds, so all methods are measured on an equally warm GPU.
The model and its memory are those of deploy/bundle/measured. `--small`: a
model and a memory for the fakes.
"""

import os
import re
import statistics

import figures
import node

STEPS = 4  # steps of a run; the first touches the memory and is not counted
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
         "--hbm 16MiB --seq-len 200").split()
SIZED = ("--layers 4 --hidden 2048 --heads 16 --kv-heads 4 --ffn 5632 "
         "--dtype bf16 --threads 12").split()
SMALLER_ROOM = ["--hbm", "12GiB", "--host", "16GiB"]
LARGER_ROOM = ["--hbm", "16GiB", "--host", "20GiB", "--chunk", "16K"]
# Length -> (rounds, flags of all methods, flags by method). Only at 16K tokens
# can all activations be kept.
RUNS = {
    "16K tokens": (2, ["--seq-len", "16384", *SMALLER_ROOM],
                   {"keep-all": [], "sluice": []}),
    "64K tokens": (1, ["--seq-len", "65536", *SMALLER_ROOM],
                   {"recompute": [], "alst": [], "sluice": [],
                    "sluice, chunk 16K": ["--chunk", "16K"]}),
    "256K tokens": (1, ["--seq-len", "262144", *LARGER_ROOM],
                    {"sluice, keys outer": ["--backward-order", "keys"],
                     "sluice, queries outer": ["--backward-order", "queries"]}),
}
FAKES = "SLUICE_FAKE_CUDA"  # the environment variable of tests/fake_cuda
SMALL_METHODS = {"64K tokens": {"keep-all": [], "recompute": [], "alst": [],
                                "sluice": ["--chunk", "64"]}}


def rates(folder, runtime, rounds, flags, methods):
    """Returns {method: tokens per second of its counted steps, over all
    rounds}. The list of a method that does not fit is empty."""
    found = {method: [] for method in methods}
    for _ in range(rounds):
        for method, more in methods.items():
            run = node.train(
                folder, runtime,
                ["--device", "cuda", *flags, "--method",
                 method.partition(",")[0], *more], STEPS, __file__)
            if run is not None:
                found[method] += [step["tokens_per_second"]
                                  for step in run[0][1:]]
    return found


def calls_per_chunk(folder, runtime):
    """Returns [launches, other calls of the driver] of a warm step of 4 chunks,
    per chunk, as the fakes count them (counts=1)."""
    node_of_fakes = re.search(r"\bnode=([^,]+)", os.environ[FAKES])[1]
    counts = []
    for steps in (STEPS, STEPS + 1):
        node.train(folder, runtime, ["--device", "cuda", *SMALL, "--method",
                                     "sluice", "--chunk", "64"], steps,
                   __file__)
        with open(os.path.join(node_of_fakes, "counts"),
                  encoding="utf-8") as file:
            line = [each for each in file
                    if each.startswith("sluice-train ")][-1]
        counts.append([int(re.search(rf"\b{of}=(\d+)", line)[1])
                       for of in ("launches", "other_calls")])
    return [(after - before) / 4 for before, after in zip(*counts)]


def main():
    parser = figures.parser(__doc__)
    parser.add_argument("length", choices=RUNS)
    parser.add_argument("--small", action="store_true")
    arguments = parser.parse_args()
    rounds, flags, methods = RUNS[arguments.length]
    flags, config = [*SIZED, *flags], CONFIG
    if arguments.small:
        rounds, flags, config = 1, SMALL, SMALL_CONFIG
        methods = SMALL_METHODS.get(arguments.length, {"sluice": []})
    results = figures.Results(arguments.json, arguments.small)
    with node.daemon(os.path.abspath(arguments.bin), config) as runtime:
        found = rates(arguments.bin, runtime, rounds, flags, methods)
        calls = (calls_per_chunk(arguments.bin, runtime)
                 if arguments.small and arguments.length == "64K tokens"
                 and "counts=1" in os.environ.get(FAKES, "") else None)
    if calls:
        results.add("sluice-train, launches and calls per chunk", sum(calls),
                    "calls", f"{calls[0]:.0f} launches, {calls[1]:.0f} others")
    for method, rate in found.items():
        results.add(f"sluice-train, {arguments.length}, {method}",
                    statistics.median(rate) if rate else 0.0, "tokens/s",
                    f"median of {len(rate)} steps, from {min(rate):.0f} to "
                    f"{max(rate):.0f}" if rate else "does not fit",
                    better="higher")


if __name__ == "__main__":
    main()
