#!/usr/bin/env python3
"""Finds production code that no test of the first two tiers runs. C++ is built
by clang with counters in mapped files, which survive a kill (llvm-cov,
continuous mode); coverage.py measures Python. Prints which percentage of each
folder's lines ran; out/coverage/missing.txt lists the lines that did not."""

import argparse
import collections
import glob
import json
import os
import re
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
BUILD = os.path.join(ROOT, "build/coverage")
OUT = os.path.join(ROOT, "out/coverage")
COVERAGE = "coverage==7.17.5"
CPP = ("client/", "daemon/", "kernels/", "planner/", "proto/")
PYTHON = "client/python/sluice/"
# Excludes tests that check the tree, and package tests (they use other builds).
TESTS = ["-LE", "^(deep|bench|package)$", "-E", "^(layers|lint|mutants|run)_"]
# Runs in each Python process of the tests. Does nothing unless
# COVERAGE_PROCESS_START is set.
HOOK = ("import os, sys; 'COVERAGE_PROCESS_START' in os.environ and ("
        "sys.path.append({folder!r}), "
        "__import__('coverage').process_startup())\n")
CONFIGURATION = """[run]
data_file = {out}/python
parallel = true
source = {root}/client/python/sluice
concurrency = thread
sigterm = true
"""


def say(*words, **more):
    return subprocess.run(words, check=True, **more)


def run_tests(select, python):
    """Runs the tests and leaves their coverage data in `OUT`."""
    shutil.rmtree(OUT, ignore_errors=True)
    os.makedirs(os.path.join(OUT, "raw"))
    say(python, "-m", "pip", "install", "-q", "--target",
        os.path.join(OUT, "package"), COVERAGE)
    settings = os.path.join(OUT, "coveragerc")
    with open(settings, "w", encoding="utf-8") as file:
        file.write(CONFIGURATION.format(out=OUT, root=ROOT))
    packages = subprocess.run(
        [python, "-c", "import sysconfig; "
         "print(sysconfig.get_path('purelib'))"], check=True,
        capture_output=True, text=True).stdout.strip()
    hook = os.path.join(packages, "sluice_coverage.pth")
    with open(hook, "w", encoding="utf-8") as file:
        file.write(HOOK.format(folder=os.path.join(OUT, "package")))
    try:
        # Failures are reported by other phases.
        subprocess.run(
            ["ctest", "--test-dir", BUILD, f"-j{os.cpu_count() + 1}", *select],
            env={**os.environ, "COVERAGE_PROCESS_START": settings,
                 "LLVM_PROFILE_FILE": os.path.join(OUT, "raw", "%m%c.profraw")
                 })
    finally:
        os.remove(hook)


def of_cpp():
    """Returns {path: {line: how often it ran}}."""
    merged = os.path.join(OUT, "all.profdata")
    say("llvm-profdata", "merge", "-sparse", "-o", merged,
        "--failure-mode=all", *glob.glob(os.path.join(OUT, "raw/*.profraw")))
    programs = [path for path in glob.glob(os.path.join(BUILD, "bin/*"))
                if os.access(path, os.X_OK) and not re.search(
                    r"(_test|bench|probe)[^/]*$", path)]
    found = collections.defaultdict(dict)
    for program in programs:
        lcov = subprocess.run(
            ["llvm-cov", "export", "--format=lcov", "--instr-profile", merged,
             program], capture_output=True, text=True)
        path = None
        for line in lcov.stdout.splitlines():
            kind, _, rest = line.partition(":")
            if kind == "SF":
                path = os.path.relpath(os.path.realpath(rest), ROOT)
                path = path if path.startswith(CPP) else None
            elif kind == "DA" and path:
                at, count = map(int, rest.split(",")[:2])
                found[path][at] = max(count, found[path].get(at, 0))
    return found


def of_python(python):
    package = os.path.join(OUT, "package")
    words = [python, "-m", "coverage"]
    more = {"env": {**os.environ, "PYTHONPATH": package}, "cwd": OUT}
    say(*words, "combine", "-q", "--rcfile", os.path.join(OUT, "coveragerc"),
        **more)
    say(*words, "json", "-q", "--rcfile", os.path.join(OUT, "coveragerc"),
        "-o", "python.json", **more)
    with open(os.path.join(OUT, "python.json"), encoding="utf-8") as file:
        files = json.load(file)["files"]
    found = {}
    for path, lines in files.items():
        found[os.path.relpath(os.path.join(OUT, path), ROOT)] = {
            **{at: 1 for at in lines["executed_lines"]},
            **{at: 0 for at in lines["missing_lines"]}}
    return found


def table(found):
    folders = collections.defaultdict(collections.Counter)
    with open(os.path.join(OUT, "missing.txt"), "w",
              encoding="utf-8") as file:
        for path, lines in sorted(found.items()):
            with open(os.path.join(ROOT, path), encoding="utf-8") as source:
                text = source.read().split("\n")
            for at, count in sorted(lines.items()):
                folders[os.path.dirname(path)]["lines"] += 1
                folders[os.path.dirname(path)]["run"] += count > 0
                if not count:
                    file.write(f"{path}:{at}: {text[at - 1]}\n")
    print(f"{'folder':40} lines  run, %")
    for folder, counts in sorted(folders.items()):
        print(f"{folder:40} {counts['lines']:5} "
              f"{100 * counts['run'] // counts['lines']:7}")
    lines = sum(counts["lines"] for counts in folders.values())
    ran = sum(counts["run"] for counts in folders.values())
    print(f"{'all':40} {lines:5} {100 * ran // max(lines, 1):7}")


def main():
    parser = argparse.ArgumentParser(
        prog="./dev coverage", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable,
                        help="Python of the tests")
    parser.add_argument("--tests", metavar="REGEX",
                        help="run only tests that match")
    parser.add_argument("--read", action="store_true",
                        help="run no tests, report the last run's data")
    given = parser.parse_args()
    if not given.read:
        run_tests([*TESTS, *(["-R", given.tests] if given.tests else [])],
                  given.python)
    table({**of_cpp(), **of_python(given.python)})


if __name__ == "__main__":
    main()
