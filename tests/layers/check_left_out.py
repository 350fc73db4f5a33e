#!/usr/bin/env python3
"""Lists tests that CMake left out of a build: check_left_out.py BUILD.

CMake defines some tests only if torch with NVIDIA's libraries is installed
(`./dev setup python`, which `./dev test` calls). Prints the tests that are
missing and exits 1 if there are any.
"""

import json
import subprocess
import sys

NEED_NVIDIAS_LIBRARIES = [
    "nccl_ranks_test", "python_gradients_cuda", "train_cuda_parity",
    "train_cuda_ranks", "verify_torch_test"]


def main():
    listed = subprocess.run(
        ["ctest", "--test-dir", sys.argv[1], "--show-only=json-v1"],
        check=True, capture_output=True, text=True).stdout
    there = {test["name"] for test in json.loads(listed)["tests"]}
    missing = [name for name in NEED_NVIDIAS_LIBRARIES if name not in there]
    for name in missing:
        print(f"{name}: left out of this build: call ./dev setup python, and "
              "configure anew")
    sys.exit(1 if missing else 0)


if __name__ == "__main__":
    main()
