"""Runs one check and writes its result. Exits with 0 if the result was written,
even if the check failed."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import traceback

from sluice_verify.result import Failure, Result, in_one_line, say

# The module of each check. A module has EXPECTED and check(result, socket).
CHECKS = {"torch": "found", "gradients": "gradients",
          "training": "training", "memory": "memory",
          "throughput": "throughput"}
PYTHON = (3, 10)


def run(name: str, socket: str) -> tuple[Result, str | None]:
    """Runs a check. Returns its result, and the reason if it failed."""
    result = Result("the check runs")
    try:
        if sys.version_info < PYTHON:
            raise Failure("this Python is {}.{}, and Sluice needs {}.{}: name "
                          "another one with --python".format(
                              *sys.version_info[:2], *PYTHON))
        module = importlib.import_module(f"sluice_verify.{CHECKS[name]}")
        result.expected = module.EXPECTED
        module.check(result, socket)
        return result, None
    except Failure as failure:
        if failure.__cause__ is not None:
            traceback.print_exc()
        return result, str(failure)
    except Exception as error:
        traceback.print_exc()
        return result, in_one_line(error)


def main() -> int:
    parser = argparse.ArgumentParser(prog="sluice_verify")
    parser.add_argument("check", choices=CHECKS)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--result", required=True)
    given = parser.parse_args()
    # Products are compared with the CPU's, so they must not be rounded to
    # TF32.
    for name in "NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE":
        os.environ.pop(name, None)
    result, reason = run(given.check, given.socket)
    result.write(given.result, reason)
    say(f"{given.check}: {reason or 'passed'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
