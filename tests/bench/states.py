#!/usr/bin/env python3
"""bench-states: a step with AdamW's states in host memory, beside HBM.

    states.py --bin DIR --json FILE

Runs on 1, 2 and 4 simulated GPUs. Each GPU has its own link, over which the
states take 0.8 of a step's compute time there and back. With states in host
memory a GPU has less HBM than all states take.

The states pass through a ring of buffers in HBM. Each direction copies for 0.4
of the compute time. Copies run during forward, which takes 0.25 of that time,
and as far as the ring has room, during backward. With a tiny ring 0.4 - 0.25 =
0.15 is not hidden, so the limit is 1.15. The step copies nothing else, because
its activations are kept in HBM.

The simulator copies by memcpy, which takes CPU time; a GPU's copies take no
compute time. The sequence is so long that memcpy is only about a twentieth of
the CPU time.
"""

import json
import os
import sys

import figures
import node

MIB = 1 << 20
TARGET = 1.15  # limit as a multiple of the time with states in HBM
COPIES = 0.8  # time of the states' copies as a fraction of a step's compute
ROUNDS, STEPS = 3, 4  # the first step of a run touches the memory
KEPT = ("q", "k", "v", "attention_output", "lse", "layer_input",
        "output_gradient", "query_gradient")
MODEL = ("--layers 16 --hidden 256 --heads 8 --kv-heads 2 --ffn 688 --dtype "
         "bf16 --seq-len 1024 --chunk 128 --alpha 0 --round-output --threads 1 "
         "--clip 1 --fractions").split() + [
             ",".join(f"{name}=keep:1" for name in KEPT)]
STATES = 128 * MIB  # least bytes of fp32 weights, m and v
HBM = {"hbm": "400MiB", "host": "128MiB"}
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


def steps(folder, runtime, gpus, where):
    """Returns what all steps but the first logged: seconds, and the bytes that
    rank 0 copied."""
    ran, _ = node.train(
        folder, runtime,
        [*MODEL, "--ranks", str(gpus), "--optimizer-states", where, "--hbm",
         HBM[where]], STEPS, os.path.abspath(__file__))
    return ran[1:]


def least(ran):
    """Returns the fastest step's seconds, because other work on the machine
    only makes a step slower."""
    return min(step["seconds"] for step in ran)


def copied(ran):
    return ran[-1]["h2d_bytes"] + ran[-1]["d2h_bytes"]


def entry(folder, gpus):
    with node.daemon(folder, config(gpus, 1e12)) as runtime:
        in_hbm = steps(folder, runtime, gpus, "hbm")
        in_host = steps(folder, runtime, gpus, "host")
    if copied(in_hbm) > 0 or copied(in_host) * gpus < 2 * STATES:
        sys.exit("error: the runs differ by more than the states' copies")
    ran = {where: [] for where in HBM}
    with node.daemon(folder, config(
            gpus, copied(in_host) / (COPIES * least(in_hbm)))) as runtime:
        for _ in range(ROUNDS):
            for where, found in ran.items():
                found += steps(folder, runtime, gpus, where)
    hbm, host = (least(ran[where]) for where in HBM)
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
