"""The cost model's answers for real GPUs: sluicectl plan train.

These are estimates; no training runs. The report shows them next to the lengths
that the demo measured, so that readers do not take the measured lengths for a
GPU's.
"""

import json
import os
import subprocess

# sluicectl calls the demo's "recompute" ulysses: DeepSpeed-Ulysses with full
# recomputation.
METHODS = ["ulysses", "alst", "sluice"]
QUESTION = {"model": "llama-8b", "hardware": "h100-80g", "gpus": 8}
SHORT = 1 << 20  # tokens, at which the MFU of all methods is shown


class DeskFailed(Exception):
    """Raised if sluicectl gives no answer."""


def ask(binaries):
    """Returns {"question", "methods": {name: its answer}, "verdict"}."""
    methods = {method: _ask(binaries, method) for method in METHODS}
    return {"question": QUESTION, "methods": methods,
            "verdict": verdict(methods)}


# The memory that limits a method, in words.
SHORT_OF = {"gpu_memory": "GPU memory", "host_memory": "host memory"}


def verdict(methods):
    """Compares the longest lengths of sluice and alst."""
    ours, theirs = methods["sluice"], methods["alst"]
    further, other = (("sluice", "alst")
                      if ours["max_seq_len"] >= theirs["max_seq_len"] else
                      ("alst", "sluice"))
    said = (f"There {further} reaches further: "
            f"{methods[further]['max_seq_len']:,} tokens against {other}'s "
            f"{methods[other]['max_seq_len']:,}.")
    if ours["stopped_by"] == "host_memory" != theirs["stopped_by"]:
        said += (" Host memory is the limit of sluice, which keeps more per "
                 "layer there than alst does, and "
                 f"{SHORT_OF.get(theirs['stopped_by'], 'another limit')} that "
                 "of alst.")
    if ours["mfu_at_1m"] and theirs["mfu_at_1m"]:
        said += (f" At 1M tokens sluice is at {100 * ours['mfu_at_1m']:.1f} % "
                 f"MFU, alst at {100 * theirs['mfu_at_1m']:.1f} %.")
    return said


def _ask(binaries, method):
    longest = _answer(binaries, method, ["--max-seq-len"])
    short = _answer(binaries, method, ["--seq-len", str(SHORT)])
    return {"max_seq_len": longest["max_seq_len"],
            "stopped_by": longest["stopped_by"],
            "gpu_bytes": longest["gpu_peak_bytes"],
            "host_bytes_per_node": longest["host_bytes_per_node"],
            "mfu_at_1m": short["mfu"] if short["fits"] else None}


def _answer(binaries, method, more):
    command = [os.path.join(binaries, "sluicectl"), "plan", "train", "--model",
               QUESTION["model"], "--hardware", QUESTION["hardware"], "--gpus",
               str(QUESTION["gpus"]), "--global-batch", "1", "--method",
               method, "--json"] + more
    done = subprocess.run(command, capture_output=True, text=True, timeout=60,
                          check=False)
    # Status 3 means that the run does not fit, which is a valid answer.
    if done.returncode not in (0, 3):
        raise DeskFailed(f"sluicectl ended with status {done.returncode}: "
                         f"{done.stderr.strip()}\n  command: "
                         f"{' '.join(command)}")
    return json.loads(done.stdout)
