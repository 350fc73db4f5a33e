#!/usr/bin/env python3
"""Runs pytest files in one process: run.py PYTHON FILE...

PYTHON is the interpreter that has torch and pytest. If it is missing, the test
fails with a line that says how to install it.
"""

import os
import sys


def main():
    python, *files = sys.argv[1:]
    if not os.access(python, os.X_OK):
        sys.exit(f"error: no Python of the tests at {python}: "
                 "./dev setup python makes it, or configure with "
                 "-DSLUICE_PYTHON=PATH of one that has torch, transformers "
                 "and pytest")
    os.execv(python, [python, "-m", "pytest", "-q", "-p", "no:cacheprovider",
                      "--durations=3", *files])


if __name__ == "__main__":
    main()
