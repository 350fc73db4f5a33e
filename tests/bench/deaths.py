#!/usr/bin/env python3
"""bench-deaths: how soon a run ends after a rank or its GPU has failed.

    deaths.py --bin DIR --json FILE

Two ranks of `sluice-train` run over NCCL on the fakes (tests/fake_cuda). The
benchmark runs the tests of tests/integration/train/cuda_ranks_test.py that
check that the other rank ends with the reason and that memory is returned, and
reads their output. It does not measure a GPU: the time is what our processes
take to notice a death and to end hanging ranks. The GPU's part (NCCL's abort)
is simulated.
"""

import os
import re
import sys

import figures

HERE = os.path.dirname(os.path.abspath(__file__))
TEST = os.path.join(HERE, "../integration/train/cuda_ranks_test.py")
CASES = ["kill_9_of_a_rank_ends_the_other",
         "a_lost_gpu_ends_the_run_and_not_the_daemon",
         "a_sticky_error_of_the_driver_ends_the_run_with_its_name"]
WAYS = {"kill -9 of rank 0", "kill -9 of rank 1", "a lost GPU",
        "a sticky error"}
ROUNDS = 3  # the longest time of these rounds is reported
TARGET_S = 5
LINE = re.compile(r"^(?P<way>.+): ended (?P<s>[0-9.]+) s after the last step$",
                  re.M)


def name_of(way):
    return f"on the fakes, {way}: the run ends"


def entries(printed):
    longest = {}
    for match in LINE.finditer(printed):
        way = match["way"]
        longest[way] = max(longest.get(way, 0), float(match["s"]))
    return [{"name": name_of(way), "value": seconds,
             "unit": "s after its last step", "target": TARGET_S,
             "better": "lower",
             "detail": f"the longest of {ROUNDS}; two ranks over NCCL's fake, "
                       "the launcher's end included"}
            for way, seconds in longest.items()]


def main():
    arguments = figures.arguments(__doc__)
    folder = os.path.abspath(arguments.bin)
    fakes = os.path.join(os.path.dirname(folder), "fake_cuda")
    if not os.path.exists(os.path.join(fakes, "over_real")):
        sys.exit(f"error: there is no {fakes}/over_real: NCCL's headers and "
                 "torch with NVIDIA's libraries are needed (./dev setup "
                 "python), then a build")
    env = {**os.environ, "SLUICE_BIN_DIR": folder,
           "SLUICE_FAKE_CUDA_DIR": fakes, "PYTHONDONTWRITEBYTECODE": "1"}
    cases = [f"CudaRanks.test_{case}" for case in CASES]
    printed = "".join(figures.printed_by(TEST, *cases, env=env)
                      for _ in range(ROUNDS))
    figures.write(entries(printed), map(name_of, WAYS), arguments.json)


if __name__ == "__main__":
    main()
