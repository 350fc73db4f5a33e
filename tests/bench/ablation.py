#!/usr/bin/env python3
"""bench-ablation: longest sequence and speed of each part of the plan alone.

    ablation.py --bin DIR --json FILE [--way NAME] [--lengths]

A Llama of 32 layers trains on two simulated GPUs. Host memory is four times
the HBM that the model's states leave free. `sluice-train --probe` finds the
longest sequence of each way, and the way then trains a whole step on it. Then
the two ways of each pair in PAIRS take turns at the longest length of the
second way.
`recompute` and `alst` are the baselines. MEMO's ways: everything swapped,
everything recomputed, one half swapped and the other recomputed, or fractions
by a linear program. FPDT's way: attention of all chunks is recomputed from the
layers' inputs, with keys in the outer loop, and nothing stays on the GPU. "By
chunk" chooses HBM, host memory or recomputation for each chunk. Runs are in
fp32, where attention's output is as wide as a hidden state, as on a GPU in
bf16.
"""

import argparse
import json
import os
import statistics
import sys

import node

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                "../../deploy/demo"))
import search

MIB = 1 << 20
# MiB of a GPU's memory, and of the model's weights and optimizer states
HBM, STATES = 270, 256
GPUS, CHUNK = 2, 128
HOST = 4 * GPUS * (HBM - STATES)
MODEL = ["--layers", "32", "--hidden", "256", "--heads", "8", "--kv-heads", "2",
         "--ffn", "688", "--vocab", "256", "--dtype", "fp32",
         "--ranks", str(GPUS), "--threads", "1",
         "--hbm", f"{HBM}MiB", "--host", f"{HOST}MiB"]
CHUNKS = ["--chunk", str(CHUNK)]
NOTHING_KEPT = [*CHUNKS, "--no-keep"]
WAYS = {
    "recompute": ["--method", "recompute"],
    "alst": ["--method", "alst"],
    "all swapped": [*NOTHING_KEPT, "--alpha", "1"],
    "half swapped": [*NOTHING_KEPT, "--alpha", "0.5"],
    "all recomputed": [*NOTHING_KEPT, "--alpha", "0"],
    "linear program": CHUNKS,
    "fpdt": [*NOTHING_KEPT, "--alpha", "0", "--rerun", "1", "--rerun-layers",
             "1", "--backward-order", "keys"],
    "by chunk, nothing on the GPU": [*NOTHING_KEPT, "--rerun", "auto",
                                     "--backward-order", "queries"],
    "by chunk": [*CHUNKS, "--rerun", "auto", "--backward-order", "queries"],
}
# (way, way to compare it with, least ratio of their longest sequences)
PAIRS = [("by chunk, nothing on the GPU", "fpdt", 1.7),
         ("by chunk, nothing on the GPU", "alst", 1.4),
         ("by chunk", "fpdt", 2), ("by chunk", "alst", 1.7)]
ROUNDS = 2
CONFIG = f"""\
[device]
driver = "sim"
[sim]
gpus = {GPUS}
gpu_memory = "{HBM + 8}MiB"
host_memory = "{HOST + 64}MiB"
[pools]
host_bytes = "{HOST + 64}MiB"
[http]
listen = ""
"""


class Runs:
    def __init__(self, folder, runtime):
        self._folder, self._runtime = folder, runtime
        self._text = os.path.join(runtime, "text")
        with open(self._text, "w", encoding="utf-8") as file:
            file.writelines(f"line {i} of a text\n" for i in range(40000))

    def run(self, way, length, *more):
        """Returns (the step log's lines, the report) of one step, or None if
        the sequence does not fit."""
        return node.train(
            self._folder, self._runtime, [*MODEL, *WAYS[way], "--seq-len",
                                          str(length), *more], 1, self._text)

    def longest(self, way, *more):
        """Returns (tokens of the longest sequence that fits, seconds of a
        whole step at that length, the report). With `--probe` the seconds are
        0."""
        found, _ = search.longest(
            lambda length: self.run(way, length, "--probe") is not None, 2048)
        while found and (ran := self.run(way, found, *more)) is None:
            found -= CHUNK
        if not found:
            return 0, 0, None
        seconds = ran[0][0]["seconds"] if ran[0] else 0
        print(f"{way}: {found} tokens, {seconds:.1f} s{placed(ran[1])}",
              file=sys.stderr, flush=True)
        return found, seconds, ran[1]


def step_of(tokens, seconds):
    if not seconds:
        return "only probed"
    return f"a step in {seconds:.1f} s, {tokens / seconds:.0f} tokens/s"


def placed(report):
    settings = report and report["settings"]
    if not settings:
        return ""
    return (f", {settings['kept']:.0%} kept, {settings['rerun_chunks']} chunks "
            f"again by {settings['rerun_layers']} layers")


def entries_of(runs, ways, only_lengths):
    longest = {way: runs.longest(way, *["--probe"] * only_lengths)
               for way in ways}
    entries = [{"name": f"ablation, {way}", "value": tokens, "unit": "tokens",
                "target": None, "better": "higher", "detail":
                step_of(tokens, seconds) + placed(report)}
               for way, (tokens, seconds, report) in longest.items()]
    for way, other, least in PAIRS:
        if way not in longest or other not in longest:
            continue
        length = longest[other][0]
        entries.append({
            "name": f"ablation, {way} / {other}", "target": least,
            "value": longest[way][0] / length, "unit": "x as long",
            "better": "higher", "detail": ""})
        if only_lengths:
            continue
        seconds = {one: [] for one in (way, other)}
        for _ in range(ROUNDS):
            for one, times in seconds.items():
                times.append(runs.run(one, length)[0][0]["seconds"])
        mine, theirs = (statistics.median(seconds[one])
                        for one in (way, other))
        entries.append({
            "name": f"ablation, speed of {way} / {other}", "target": 1,
            "value": theirs / mine, "unit": f"x at {length} tokens",
            "better": "higher", "detail": f"{step_of(length, mine)} beside "
            f"{step_of(length, theirs)}"})
    return entries


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", required=True)
    parser.add_argument("--json", required=True)
    parser.add_argument("--way", choices=WAYS, action="append",
                        help="measure this way only; may be repeated")
    parser.add_argument("--lengths", action="store_true",
                        help="only probe: run no whole step, measure no speed")
    arguments = parser.parse_args()
    with node.daemon(arguments.bin, CONFIG) as runtime:
        entries = entries_of(Runs(arguments.bin, runtime),
                             arguments.way or list(WAYS), arguments.lengths)
    with open(arguments.json, "w", encoding="utf-8") as file:
        json.dump(entries, file)


if __name__ == "__main__":
    main()
