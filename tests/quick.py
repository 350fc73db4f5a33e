#!/usr/bin/env python3
"""The short loop after an edit: quick.py BUILD_DIR.

Runs all unit tests, and every other test (gpu, bench and deep aside) with a
program, script or file of its command that changed since this last passed; for
a test that starts programs of bin/ (integration, gradient, python) any of those
too.
"""

import glob
import json
import os
import subprocess
import sys

LEFT_OUT = {"gpu", "bench", "deep"}
STARTS_PROGRAMS = {"integration", "gradient", "python", "package"}
PROGRAMS = ["bin/sluiced", "bin/sluiced-keeper", "bin/sluice-worker",
            "bin/sluicectl", "bin/sluice-train", "lib/libsluice.so"]


def mtime(path):
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0


def newest(command):
    """When what a test's command runs last changed: the program, every path
    among its arguments, the modules in a folder among them, and those beside
    a Python script (the program of a Python test is the interpreter, which
    never changes)."""
    times = [0]
    for word in command:
        times.append(mtime(word))
        if os.path.isdir(word):
            times += map(mtime, glob.glob(
                os.path.join(glob.escape(word), "**", "*.py"),
                recursive=True))
        if word.endswith(".py"):
            times += map(mtime, glob.glob(
                os.path.join(glob.escape(os.path.dirname(word)), "*.py")))
    return max(times)


def labels(test):
    found = [p["value"] for p in test.get("properties", [])
             if p["name"] == "LABELS"]
    return set(found[0]) if found else set()


def wanted(test, build, since):
    kinds = labels(test)
    if kinds & LEFT_OUT:
        return False
    if "unit" in kinds:
        return True
    changed = newest(test.get("command", [])) > since
    if kinds & STARTS_PROGRAMS:
        changed |= any(mtime(os.path.join(build, p)) > since
                       for p in PROGRAMS)
    return changed


def main():
    build = os.path.abspath(sys.argv[1])
    stamp = os.path.join(build, "quick-passed")
    since = mtime(stamp)
    listing = subprocess.run(
        ["ctest", "--test-dir", build, "--show-only=json-v1"],
        capture_output=True, text=True, check=True)
    tests = json.loads(listing.stdout)["tests"]
    chosen = [i for i, test in enumerate(tests, 1)
              if wanted(test, build, since)]
    print(f"quick: {len(chosen)} of {len(tests)} tests")
    with open(stamp + ".new", "w", encoding="utf-8"):
        pass
    status = subprocess.run(
        ["ctest", "--test-dir", build, "-j", str(os.cpu_count()),
         "--output-on-failure", "-I", "0,0,0," + ",".join(map(str, chosen))],
        check=False).returncode
    if status == 0:
        os.replace(stamp + ".new", stamp)
    sys.exit(status)


if __name__ == "__main__":
    main()
