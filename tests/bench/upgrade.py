#!/usr/bin/env python3
"""bench-upgrade: how long a training step becomes while the daemon under it is
restarted, killed, upgraded and downgraded.

    upgrade.py --bin DIR --json FILE

It runs tests/package/rootfs_test.py, which installs the packages into a Debian
of their own and boots systemd there, and reads what that prints. Needs root.
"""

import argparse
import json
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
TEST = os.path.join(HERE, "../package/rootfs_test.py")
# What the issue names; the others are shown beside them.
TARGET_MS = {"upgrade": 100, "downgrade": 100}
LINE = re.compile(r"^(?P<way>[\w ]+): .*longest step is (?P<ms>-?\d+) ms over "
                  r"the median", re.M)


def entry(way, milliseconds):
    return {"name": "longest step, " + way, "value": milliseconds,
            "unit": "ms over the median",
            "target": TARGET_MS.get(way.rstrip(" 0123456789")),
            "better": "lower",
            "detail": "of a run of two ranks, which have the cores before dpkg "
                      "has; its losses are bit-identical to an undisturbed "
                      "run's, or the test fails"}


def entries(printed):
    """Ways that come again are numbered."""
    found, times = [], {}
    for match in LINE.finditer(printed):
        way = match["way"].replace("_", " ")
        times[way] = times.get(way, 0) + 1
        if times[way] > 1:
            way += f" {times[way]}"
        found.append(entry(way, float(match["ms"])))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", required=True)
    parser.add_argument("--json", required=True)
    arguments = parser.parse_args()
    build = os.path.dirname(os.path.abspath(arguments.bin))
    run = subprocess.run([sys.executable, TEST, build], text=True, check=False,
                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    print(run.stdout, end="", flush=True)
    if run.returncode != 0:
        sys.exit(f"error: {TEST} ended with status {run.returncode}")
    rows = entries(run.stdout)
    if not {"longest step, " + way for way in TARGET_MS} <= {
            row["name"] for row in rows}:
        sys.exit("error: it did not say how long the steps became")
    with open(arguments.json, "w", encoding="utf-8") as file:
        json.dump(rows, file)


if __name__ == "__main__":
    main()
