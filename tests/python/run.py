#!/usr/bin/env python3
"""Runs one pytest file: run.py PYTHON FILE [FOLDER OF THE PACKAGE].

PYTHON is the interpreter that has torch and pytest; where it is missing the
test fails with the line that says how to get it.
"""

import os
import sys


def main():
    python, file = sys.argv[1:3]
    if not os.access(python, os.X_OK):
        sys.exit(f"error: no Python of the tests at {python}: "
                 "./dev setup python makes it, or configure with "
                 "-DSLUICE_PYTHON=PATH of one that has torch, transformers "
                 "and pytest")
    os.execv(python, [python, "-m", "pytest", "-q", "-p", "no:cacheprovider",
                      "--durations=3", file])


if __name__ == "__main__":
    main()
