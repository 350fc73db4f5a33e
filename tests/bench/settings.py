#!/usr/bin/env python3
"""bench-settings: the trainer's own settings, beside the best of a grid.

    settings.py --bin DIR --json FILE [--shape NAME]

Each shape is trained once with every chunk x prefetch x backward order of a
grid. The fastest settings and the trainer's own choice then take turns on the
same daemon, link and memory, because single runs do not tell the fastest from
the luckiest. The value is the median step time of the grid's best settings
divided by that of the trainer's choice: at 0.9 this choice is 11 % slower.
"""

import argparse
import contextlib
import itertools
import json
import os
import statistics
import sys

import node

# Steps of a run; the first touches the memory and is not counted.
SURVEY_STEPS, STEPS = 2, 3
CHUNKS = [128, 256, 512, 1024, 2048, 4096]
PREFETCHES = [1, 2, 4]
ORDERS = ["keys", "queries"]
# The fastest settings of the grid, by one run each, are measured again.
FINALISTS = 3
ROUNDS = 3  # rounds in which the finalists and the chosen settings take turns
TARGET = 0.9

MODEL = ["--hidden", "128", "--ffn", "344", "--layers", "2", "--threads", "1"]
HEADS = ["--heads", "4"]
# Name -> (link speed in bytes per second each way, or 0 for no limit; flags;
# numbers of GPUs and NUMA nodes, by default 2 and 1).
SHAPES = {
    "fits": (0, [*HEADS, "--seq-len", "4096", "--hbm", "128MiB", "--host",
                 "256MiB"]),
    "long": (0, [*HEADS, "--seq-len", "8192", "--hbm", "26MiB", "--host",
                 "256MiB"]),
    "slow link": (1e8, [*HEADS, "--seq-len", "6144", "--hbm", "26MiB", "--host",
                        "256MiB"]),
    "one kv head": (1e8, ["--seq-len", "6144", "--heads", "8", "--kv-heads",
                          "1", "--hbm", "26MiB", "--host", "256MiB"]),
    "two ranks": (2e8, [*HEADS, "--seq-len", "8192", "--ranks", "2", "--hbm",
                        "24MiB", "--host", "256MiB"]),
    "large vocabulary, little host memory": (
        0, [*HEADS, "--seq-len", "4096", "--vocab", "8192", "--hbm", "80MiB",
            "--host", "32MiB", "--arch", "gpt"]),
    # Without --host, each rank uses its NUMA node's memory. The grid gives
    # --host the memory of all NUMA nodes, and tries one prefetch depth only,
    # because all depths would take an hour.
    "two GPUs, two NUMA nodes": (
        2e8, [*HEADS, "--seq-len", "8192", "--ranks", "2", "--hbm", "24MiB"],
        2, 2),
    "eight GPUs, two NUMA nodes": (
        2e8, ["--heads", "8", "--seq-len", "8192", "--ranks", "8", "--hbm",
              "10MiB"], 8, 2),
}
CONFIG = """\
[device]
driver = "sim"
[sim]
gpus = {gpus}
numa_nodes = {numa_nodes}
gpu_memory = "256MiB"
host_memory = "512MiB"
gpu_links = [{links}]
[[sim.links]]
name = "link"
h2d_bytes_per_s = {speed:.0f}
d2h_bytes_per_s = {speed:.0f}
[pools]
host_bytes = "{pool}MiB"
[http]
listen = ""
"""


@contextlib.contextmanager
def linked_node(folder, speed, gpus=2, numa_nodes=1):
    """Starts a daemon with links of this speed; yields its runtime directory,
    which also contains the text."""
    with node.daemon(folder, CONFIG.format(
            speed=speed, gpus=gpus, links='"link", ' * gpus,
            numa_nodes=numa_nodes, pool=512 // numa_nodes)) as runtime:
        with open(text_of(runtime), "w", encoding="utf-8") as file:
            file.writelines(f"line {i} of a text\n" for i in range(4000))
        yield runtime


def text_of(runtime):
    return os.path.join(runtime, "text")


def train(folder, runtime, flags, steps=STEPS):
    """Returns (median seconds of a step, the run's settings), or None if the
    run does not fit."""
    run = node.train(folder, runtime, flags, steps, text_of(runtime))
    if run is None:
        return None
    logged, report = run
    return (statistics.median(step["seconds"] for step in logged[1:]),
            report["settings"])


def survey(folder, runtime, flags, numa_nodes=1):
    """Returns ({settings: flags} of the FINALISTS fastest of the grid, how
    many settings fit, the slowest setting's seconds)."""
    seconds, by_hand = {}, {}
    prefetches, host = PREFETCHES, []
    if numa_nodes > 1:
        prefetches, host = [2], ["--host", "512MiB"]
    for chunk, prefetch, order in itertools.product(CHUNKS, prefetches,
                                                    ORDERS):
        name = f"chunk {chunk}, prefetch {prefetch}, {order}"
        by_hand[name] = [*flags, *host, "--chunk", str(chunk), "--prefetch",
                         str(prefetch), "--backward-order", order]
        one = train(folder, runtime, by_hand[name], SURVEY_STEPS)
        if one:
            seconds[name] = one[0]
    if not seconds:
        sys.exit("error: no settings of the grid fit")
    fastest = sorted(seconds, key=seconds.get)[:FINALISTS]
    return ({name: by_hand[name] for name in fastest}, len(seconds),
            max(seconds.values()))


def measure(folder, name):
    speed, flags, *gpus = SHAPES[name]
    flags = [*MODEL, *flags]
    with linked_node(folder, speed, *gpus) as runtime:
        finalists, fitting, worst = survey(folder, runtime, flags, *gpus[1:])
        seconds = {one: [] for one in finalists}
        chosen, settings = [], None
        for _ in range(ROUNDS):
            for one, its_flags in finalists.items():
                seconds[one].append(train(folder, runtime, its_flags)[0])
            own = train(folder, runtime, flags)
            if own is None:
                sys.exit(f"error: {name}: the chosen settings do not fit")
            chosen.append(own[0])
            settings = own[1]
    seconds = {one: statistics.median(times) for one, times in seconds.items()}
    own = statistics.median(chosen)
    best = min(seconds, key=seconds.get)
    choice = (f"chunk {settings['chunk']}, prefetch {settings['prefetch']}, "
              f"{settings['backward_order']}")
    if settings["resident"]:
        choice += ", everything kept"
    by_hand = "; ".join(f"{one}: {time:.2f} s"
                        for one, time in seconds.items())
    detail = (f"chose {choice}: {own:.2f} s; the fastest of {fitting} that "
              f"fit: {by_hand}; the worst {worst:.2f} s")
    print(f"{name}: {detail}", flush=True)
    return {"name": f"settings, {name}", "value": seconds[best] / own,
            "unit": "x the best by hand", "target": TARGET,
            "better": "higher", "detail": detail}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", required=True)
    parser.add_argument("--json", required=True)
    parser.add_argument("--shape", choices=SHAPES,
                        help="measure only this shape")
    arguments = parser.parse_args()
    names = [arguments.shape] if arguments.shape else list(SHAPES)
    entries = [measure(arguments.bin, name) for name in names]
    with open(arguments.json, "w", encoding="utf-8") as file:
        json.dump(entries, file)


if __name__ == "__main__":
    main()
