#!/usr/bin/env python3
"""clang's thread safety analysis: locks.py BUILD_DIR [--tests] [--besides DIR]… [SOURCE…]

Compiles, without output, every source of BUILD_DIR/compile_commands.json (or
those named) that can see proto/base/mutex.h; no other can touch a guarded
member or hold a lock. Tests are left out without --tests: they are half of the
sources, and minutes. A complaint is an error.

--besides: a build by clang, which analyses what it compiles (-Wthread-safety,
-Werror); what it has compiled since the newest header is left out here.
"""

import argparse
import concurrent.futures
import json
import os
import re
import shlex
import subprocess
import sys

import lint

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
MUTEX = "proto/base/mutex.h"
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.M)


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


class Includes:
    """Which of our own headers a source sees, through others too."""

    def __init__(self, root):
        self.root = root
        self.known = {}  # header -> sees the mutex

    def sees_mutex(self, path):
        """`path` relative to the root."""
        if path == MUTEX:
            return True
        if path not in self.known:
            self.known[path] = False  # while it is being read: a circle
            full = os.path.join(self.root, path)
            self.known[path] = os.path.exists(full) and any(
                self.sees_mutex(header)
                for header in INCLUDE.findall(read(full)))
        return self.known[path]


def entries(build):
    """{path relative to the root: compile command} of our own sources."""
    with open(os.path.join(build, "compile_commands.json"),
              encoding="utf-8") as file:
        listed = json.load(file)
    found = {os.path.relpath(e["file"], ROOT): e for e in listed}
    return {p: e for p, e in found.items()
            if not p.startswith((".", "build" + os.sep))}


def complaints(entry, source=None):
    """What clang says of the entry's file, or of `source` in its place."""
    flags = [word for word in lint.arguments(entry)
             if not word.startswith("-W") and word != entry["file"]]
    run = subprocess.run(
        ["clang++", "-fsyntax-only", *flags, "-Wthread-safety", "-Werror",
         source or entry["file"]],
        capture_output=True, text=True, cwd=entry["directory"],
        stdin=subprocess.DEVNULL, check=False)
    return run.stdout + run.stderr if run.returncode != 0 else ""


def newest_header():
    listed = subprocess.run(["git", "ls-files", "-z", "*.h"], check=True,
                            capture_output=True, text=True, cwd=ROOT)
    return max(map(mtime, (os.path.join(ROOT, path) for path
                           in listed.stdout.split("\0") if path)), default=0)


def mtime(path):
    try:
        return os.stat(path).st_mtime
    except FileNotFoundError:
        return 0


def analysed(build, since):
    """Sources that `build` has compiled after `since`, and after they changed
    last, with this analysis."""
    done = set()
    for path, entry in entries(build).items():
        words = shlex.split(entry["command"])
        made = os.path.join(entry["directory"], words[words.index("-o") + 1])
        if {"-Wthread-safety", "-Werror"} <= set(words) and mtime(made) >= max(
                since, mtime(entry["file"])):
            done.add(path)
    return done


def arguments():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("build")
    parser.add_argument("--tests", action="store_true")
    parser.add_argument("--besides", action="append", default=[])
    parser.add_argument("sources", nargs="*")
    return parser.parse_intermixed_args()


def main():
    given = arguments()
    build, words = given.build, given.sources
    includes = Includes(ROOT)
    found = entries(build)
    named = {os.path.relpath(s, ROOT) for s in words} or {
        path for path in found
        if given.tests or not path.startswith("tests" + os.sep)}
    seen = {p for p in named & set(found) if includes.sees_mutex(p)}
    since = newest_header()
    elsewhere = {path for other in given.besides
                 for path in analysed(other, since)}
    chosen = sorted(seen - elsewhere)
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for path, said in zip(chosen, pool.map(
                lambda p: complaints(found[p]), chosen)):
            if said:
                failed += 1
                print(f"locks: {path}\n{said}", flush=True)
    print(f"locks: {len(chosen)} sources, {failed} with complaints; "
          f"{len(seen & elsewhere)} were analysed by a build")
    if not seen and not words:
        sys.exit(f"error: locks: no source of {build} sees {MUTEX}: nothing "
                 "was checked")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
