#!/usr/bin/env python3
"""bench-length: the longest sequence that a small Llama trains on in 64 MiB.

    length.py --bin DIR --json FILE

Device memory is what torch's CPU allocator hands out (counting.cc), at its
peak in one forward and backward of a new model, without its parameters and
ids. The result is the longest sequence that was run and fits. Its length is
estimated from the peaks of two short sequences, then tried.
"""

import gc
import sys
import time

import in_venv

DEVICE_BYTES = 64 << 20
# Set-up -> (two lengths that give its bytes per token, step of its search in
# tokens).
SEARCHED = {
    "checkpointed": ((1024, 1536), 32),
    "checkpointed_chunked_loss": ((2048, 3072), 64),
    "alst": ((4096, 6144), 64),
}
# `streamed` is extrapolated from these lengths; a search would take minutes.
STREAMED = (4096, 8192)
TARGETS = {"checkpointed": 16, "checkpointed_chunked_loss": 6, "alst": 4}
NAMES = {"checkpointed": "checkpointing",
         "checkpointed_chunked_loss": "checkpointing, loss by chunks",
         "alst": "ALST-like"}
IN_HOST = (4096, 16384)
ROWS_TARGET = 0.6  # at most; rows of hidden states per token


def entries_of(_):
    bench = Bench()
    found = {name: bench.longest(name, *search)
             for name, search in SEARCHED.items()}
    row_bytes = 4 * bench.setups.SHAPE["hidden_size"]
    slope = bench.slope("streamed_in_host", *IN_HOST)
    entries = [entry("hidden states in the host, a token", slope / row_bytes,
                     "rows", ROWS_TARGET, "lower", f"{slope:.0f} bytes a token "
                     f"from {IN_HOST[0]} to {IN_HOST[1]}")]
    ours = bench.longest_tried_once("streamed", STREAMED)
    for name, length in found.items():
        entries.append(entry(
            f"length over {NAMES[name]}", ours / length, "x", TARGETS[name],
            "higher", f"{ours} tokens streamed, "
            f"{length} by {NAMES[name]}, in 64 MiB"))
    return entries


def entry(name, value, unit, target, better, detail):
    return {"name": name, "value": value, "unit": unit, "target": target,
            "better": better, "detail": detail}


class Bench:
    """Runs steps and measures their peak memory."""

    def __init__(self):
        import counting
        import length_setups
        import torch
        torch.set_num_threads(1)
        self.setups = length_setups
        self._torch, self._counter = torch, counting.Counter()

    def peak_bytes(self, name, length):
        """Returns the peak bytes of a step on `length` tokens, without
        parameters and ids."""
        model = self.setups.llama()
        with getattr(self.setups, name)(model) as step:
            ids = self._torch.randint(3, self.setups.SHAPE["vocab_size"],
                                      (1, length))
            gc.collect()
            before = self._counter.used_bytes
            self._counter.reset_peak()
            seconds = time.process_time()
            step(ids)
            peak = self._counter.peak_bytes - before
        print(f"{name:<26} {length:>6} tokens {peak / 2 ** 20:7.2f} MiB "
              f"{time.process_time() - seconds:7.2f} CPU s", flush=True)
        return peak

    def slope(self, name, short, long):
        return (self.peak_bytes(name, long) - self.peak_bytes(name, short)) / (
            long - short)

    def _guess(self, name, short, long):
        """Extrapolates the longest length that fits from the peaks at two
        lengths."""
        slope, at = self.slope(name, short, long), self.peak_bytes(name, long)
        return long + int((DEVICE_BYTES - at) / slope)

    def longest(self, name, slope_from, step):
        """Returns the longest multiple of `step` that fits, and checks that the
        next multiple does not fit."""
        length = self._guess(name, *slope_from) // step * step
        while self.peak_bytes(name, length) > DEVICE_BYTES:
            length -= step
        while self.peak_bytes(name, length + step) <= DEVICE_BYTES:
            length += step
        return length

    def longest_tried_once(self, name, slope_from):
        """Returns a length that fits: the extrapolated length minus one chunk,
        or minus more chunks if that does not fit."""
        chunk = self.setups.CHUNK
        length = self._guess(name, *slope_from) // chunk * chunk
        while True:
            length -= chunk
            if self.peak_bytes(name, length) <= DEVICE_BYTES:
                return length


if __name__ == "__main__":
    sys.exit(in_venv.main(__doc__, entries_of))
