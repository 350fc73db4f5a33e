#!/usr/bin/env python3
"""bench-upgrade: how long a training step becomes while the daemon under it is
restarted, killed, upgraded and downgraded.

    upgrade.py --bin DIR --json FILE

It runs tests/package/rootfs_test.py, which installs the packages into a Debian
of their own and boots systemd there, and reads what that prints. Needs root.
"""

import os
import re

import figures

HERE = os.path.dirname(os.path.abspath(__file__))
TEST = os.path.join(HERE, "../package/rootfs_test.py")
# What the issue names; the others are shown beside them.
TARGET_MS = {"upgrade": 100, "downgrade": 100}
LINE = re.compile(r"^(?P<way>[\w ]+): .*longest step is (?P<ms>-?\d+) ms over "
                  r"the median", re.M)


def name_of(way):
    return "longest step, " + way


def entry(way, milliseconds):
    return {"name": name_of(way), "value": milliseconds,
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
    arguments = figures.arguments(__doc__)
    build = os.path.dirname(os.path.abspath(arguments.bin))
    printed = figures.printed_by(TEST, build)
    figures.write(entries(printed), map(name_of, TARGET_MS), arguments.json)


if __name__ == "__main__":
    main()
