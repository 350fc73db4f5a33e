#!/usr/bin/env python3
"""bench-upgrade: the longest training step while the daemon is replaced.

    upgrade.py --bin DIR --json FILE

Runs upgrade_rounds.py, which installs the packages into a separate Debian and
boots systemd there, and reads its output. Measures also how long a session
waits for the first reply of a new daemon. Needs root.
"""

import os
import re
import statistics

import figures

ROUNDS = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                      "upgrade_rounds.py")
# Targets; the other figures have none.
STEP_MS = {"upgrade": 100, "downgrade": 100}
REPLY_MS = {"median": 100, "latest": 250}
STEP = re.compile(r"^\d+ of \d+, (?P<way>\w+): the longest step is "
                  r"(?P<ms>-?\d+) ms over the median$", re.M)
REPLY = re.compile(r"^first reply after a kill: median (?P<median>[\d.]+) ms, "
                   r"latest (?P<latest>[\d.]+) ms of (?P<kills>.+)$", re.M)


def step_name(way):
    return "longest step, " + way.replace("_", " ")


def reply_name(which):
    return "first reply, " + which


def step_row(way, milliseconds):
    """Returns the row of the action `way`: the median of the rounds' longest
    steps, with their range in its detail."""
    target = STEP_MS.get(way)
    over = sum(ms > target for ms in milliseconds) if target else 0
    return {"name": step_name(way), "value": statistics.median(milliseconds),
            "unit": "ms over the median", "target": target, "better": "lower",
            "detail": f"median of {len(milliseconds)} times, "
                      f"{min(milliseconds):.0f} to {max(milliseconds):.0f}"
                      + (f"; {over} over the target" if target else "")}


def rows(printed):
    steps = {}
    for match in STEP.finditer(printed):
        steps.setdefault(match["way"], []).append(float(match["ms"]))
    return ([step_row(way, milliseconds) for way, milliseconds in steps.items()]
            + [{"name": reply_name(which), "value": float(match[which]),
                "unit": "ms", "target": target, "better": "lower",
                "detail": "of " + match["kills"]}
               for match in REPLY.finditer(printed)
               for which, target in REPLY_MS.items()])


def main():
    arguments = figures.arguments(__doc__)
    build = os.path.dirname(os.path.abspath(arguments.bin))
    printed = figures.printed_by(ROUNDS, build)
    needed = [*map(step_name, STEP_MS), *map(reply_name, REPLY_MS)]
    figures.write(rows(printed), needed, arguments.json)


if __name__ == "__main__":
    main()
