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
import tempfile

import lint

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
MUTEX = "proto/base/mutex.h"
CLANG = ["-Wthread-safety", "-Werror"]
# So many sources have to share what clang precompiles for them: of torch's
# headers that takes as long as two sources do without it.
SHARED = 4
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


def said(entry, *words):
    """What clang complains of."""
    run = subprocess.run(["clang++", *words, *CLANG],
                         capture_output=True, text=True,
                         cwd=entry["directory"], stdin=subprocess.DEVNULL,
                         check=False)
    return run.stdout + run.stderr if run.returncode != 0 else ""


def flags_of(entry):
    return [word for word in lint.arguments(entry)
            if not word.startswith("-W") and word != entry["file"]]


def complaints(entry, source=None, header=None):
    """What clang says of the entry's file, or of `source` in its place. `header`
    is what Precompiled has made for it."""
    flags = flags_of(entry)
    if header:
        flags = [*without_includes(flags), "-include-pch", header]
    return said(entry, "-fsyntax-only", *flags, source or entry["file"])


def without_includes(flags):
    at = {i for i, word in enumerate(flags) if word == "-include"}
    return [word for i, word in enumerate(flags)
            if i not in at and i - 1 not in at]


class Precompiled:
    """For clang, the headers that g++ has precompiled: half of what a source
    takes and more. One for each header and set of arguments that enough sources
    share, in a folder that is there as long as they are wanted."""

    def __init__(self, folder):
        self.folder = folder
        self.made = {}  # key -> path
        self.complaints = []  # of the headers themselves: (header, text)

    @staticmethod
    def key(entry):
        """(header, its arguments), or None where there is no such header."""
        words = shlex.split(entry["command"])
        headers = [header for i, word in enumerate(words)
                   if word == "-include"
                   for header in lint.precompiled(words[i + 1])]
        flags = tuple(without_includes(flags_of(entry)))
        return (headers[0], flags) if len(headers) == 1 else None

    def make(self, entries_, pool, shared=SHARED):
        by_key = {}
        for entry in entries_:
            by_key.setdefault(self.key(entry), []).append(entry)
        wanted = [(key, of[0]) for key, of in by_key.items()
                  if key and len(of) >= shared]
        paths = [os.path.join(self.folder, f"{number}.pch")
                 for number in range(len(wanted))]

        def compiled(key, entry, path):
            header, flags = key
            return said(entry, "-x", "c++-header", *flags, header, "-o", path)

        for (key, _), path, text in zip(wanted, paths, pool.map(
                compiled, *zip(*wanted), paths) if wanted else []):
            if text:  # its sources do without
                self.complaints.append((key[0], text))
            else:
                self.made[key] = path

    def of(self, entry):
        return self.made.get(self.key(entry))


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
    with (tempfile.TemporaryDirectory() as folder,
          concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool):
        headers = Precompiled(folder)
        headers.make([found[path] for path in chosen], pool)
        texts = pool.map(
            lambda p: complaints(found[p], header=headers.of(found[p])), chosen)
        for path, text in [*headers.complaints, *zip(chosen, texts)]:
            if text:
                failed += 1
                print(f"locks: {path}\n{text}", flush=True)
    print(f"locks: {len(chosen)} sources, {failed} with complaints; "
          f"{len(seen & elsewhere)} were analysed by a build")
    if not seen and not words:
        sys.exit(f"error: locks: no source of {build} sees {MUTEX}: nothing "
                 "was checked")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
