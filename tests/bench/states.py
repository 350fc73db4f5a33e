#!/usr/bin/env python3
"""bench-states: a step with AdamW's states in host memory beside one with them
in HBM.

    states.py --bin DIR --json FILE

On 1, 2 and 4 simulated GPUs, each with a link of its own that is so fast that
the states go one way in 0.8 of the time in which a step computes. With
states in host memory a GPU has less HBM than all states take.
"""

import json
import os
import statistics

import figures
import node

MIB = 1 << 20
TARGET = 1.15  # times the step with states in HBM
COPIES = 0.8  # of a step's compute, one way
ROUNDS, STEPS = 3, 4  # the first step of a run touches the memory
MODEL = ("--layers 16 --hidden 256 --heads 8 --kv-heads 2 --ffn 688 --dtype "
         "bf16 --seq-len 512 --chunk 128 --alpha 0 --no-keep --threads 1 "
         "--clip 1").split()
STATES = 128 * MIB  # of fp32 weights, m and v
HBM = {"hbm": "400MiB", "host": "120MiB"}
CONFIG = """\
[device]
driver = "sim"
[sim]
gpus = {gpus}
gpu_memory = "420MiB"
host_memory = "1GiB"
gpu_links = [{names}]
{links}[pools]
host_bytes = "1GiB"
[http]
listen = ""
"""
LINK = """\
[[sim.links]]
name = "{name}"
h2d_bytes_per_s = {speed:e}
d2h_bytes_per_s = {speed:e}
"""


def config(gpus, speed):
    names = [f"link{i}" for i in range(gpus)]
    return CONFIG.format(
        gpus=gpus, names=", ".join(f'"{name}"' for name in names),
        links="".join(LINK.format(name=name, speed=speed) for name in names))


def seconds(folder, runtime, gpus, where):
    ran, _ = node.train(
        folder, runtime,
        [*MODEL, "--ranks", str(gpus), "--optimizer-states", where, "--hbm",
         HBM[where]], STEPS, os.path.abspath(__file__))
    return [step["seconds"] for step in ran[1:]]


def entry(folder, gpus):
    with node.daemon(folder, config(gpus, 1e12)) as runtime:
        compute = statistics.median(seconds(folder, runtime, gpus, "hbm"))
    times = {where: [] for where in HBM}
    with node.daemon(folder, config(
            gpus, STATES / gpus / (COPIES * compute))) as runtime:
        for _ in range(ROUNDS):
            for where, found in times.items():
                found += seconds(folder, runtime, gpus, where)
    hbm, host = (statistics.median(times[where]) for where in HBM)
    print(f"{gpus} ranks: {hbm:.3f} s with states in HBM, {host:.3f} s in host "
          f"memory", flush=True)
    return {"name": f"states in host memory, {gpus} ranks", "value": host / hbm,
            "unit": "x of HBM's step", "target": TARGET, "better": "lower",
            "detail": f"{host:.3f} s beside {hbm:.3f} s"}


def main():
    arguments = figures.arguments(__doc__)
    entries = [entry(arguments.bin, gpus) for gpus in (1, 2, 4)]
    with open(arguments.json, "w", encoding="utf-8") as file:
        json.dump(entries, file)


if __name__ == "__main__":
    main()
