#!/usr/bin/env python3
"""clang's thread safety analysis: locks.py BUILD_DIR [--tests] [SOURCE…]

Compiles, without output, every source of BUILD_DIR/compile_commands.json (or
those named) that can see proto/base/mutex.h; no other can touch a guarded
member or hold a lock. Tests are left out without --tests: they are half of the
sources, and minutes. A complaint is an error.
"""

import concurrent.futures
import json
import os
import re
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


def main():
    build, words = sys.argv[1], sys.argv[2:]
    tests = "--tests" in words
    words = [word for word in words if word != "--tests"]
    includes = Includes(ROOT)
    found = entries(build)
    named = {os.path.relpath(s, ROOT) for s in words} or {
        path for path in found if tests or not path.startswith("tests" + os.sep)}
    chosen = sorted(p for p in named & set(found) if includes.sees_mutex(p))
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for path, said in zip(chosen, pool.map(
                lambda p: complaints(found[p]), chosen)):
            if said:
                failed += 1
                print(f"locks: {path}\n{said}", flush=True)
    print(f"locks: {len(chosen)} sources, {failed} with complaints")
    if not chosen and not words:
        sys.exit(f"error: locks: no source of {build} sees {MUTEX}: nothing "
                 "was checked")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
