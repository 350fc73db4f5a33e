#!/usr/bin/env python3
"""clang's thread safety analysis: locks.py BUILD [--tests] [--besides DIR]…

Compiles, without output, the sources of BUILD that include proto/base/mutex.h;
no other source can touch a guarded member or hold a lock. Tests are left out
without --tests.
Any warning is an error.

--besides: a build by clang with -Wthread-safety and -Werror. Sources that it
has compiled since the last change of a header are left out here.
"""

import argparse
import collections
import concurrent.futures
import os
import shlex
import subprocess
import sys
import tempfile

from commands import (
    INCLUDE,
    ROOT,
    arguments,
    entries,
    precompiled,
    read,
    sources,
)

MUTEX = "proto/base/mutex.h"
CLANG = ["-Wthread-safety", "-Werror"]
# A precompiled header is made if at least this many sources use it.
SHARED = 3


def sees_mutex(path, known):
    """Returns whether `path` (in the tree) includes MUTEX, perhaps by other
    headers. `known` is a cache."""
    if path == MUTEX:
        return True
    if path not in known:
        known[path] = False  # so that a cycle of includes ends here
        full = os.path.join(ROOT, path)
        known[path] = os.path.exists(full) and any(
            sees_mutex(header, known) for header in INCLUDE.findall(read(full)))
    return known[path]


def said(entry, *words, text=""):
    """Returns clang's output if it failed, else "". `text` is clang's input."""
    run = subprocess.run(["clang++", *words, *CLANG], input=text, text=True,
                         check=False, capture_output=True,
                         cwd=entry["directory"])
    return run.stdout + run.stderr if run.returncode else ""


def complaints(entry, paths, made):
    """Returns the warnings for `paths`, compiled as one source with the
    entry's flags. `made`: the result of precompile()."""
    key = key_of(entry)
    header = made[key].result() if key in made else (
        ["-include", key[0]] if key[0] else [])
    return said(entry, "-fsyntax-only", *key[1], *header, "-x", "c++", "-",
                text="".join(f'#include "{path}"\n' for path in paths))


def key_of(entry):
    """Returns (precompiled header or None, arguments). Entries with the same
    key can share a precompiled header."""
    return (precompiled(shlex.split(entry["command"])),
            tuple(arguments(entry)))


def precompile(chosen, folder, pool, shared=SHARED):
    """Precompiles the headers that at least `shared` of `chosen` share. Returns
    {key: future of the arguments that make clang use the header}. A header
    with warnings is included as text, so that its sources report them."""
    count = collections.Counter(key_of(entry) for entry, _ in chosen)

    def make(entry, path):
        header, flags = key_of(entry)
        text = said(entry, "-x", "c++-header", *flags, header, "-o", path,
                    "-fpch-instantiate-templates")
        return ["-include", header] if text else ["-include-pch", path]

    entry_of = {key_of(entry): entry for entry, _ in chosen}
    return {key: pool.submit(make, entry_of[key],
                             os.path.join(folder, f"{number}.pch"))
            for number, key in enumerate(count)
            if key[0] and count[key] >= shared}


def mtime(path):
    try:
        return os.stat(path).st_mtime
    except FileNotFoundError:
        return 0


def newest_header():
    listed = subprocess.run(["git", "ls-files", "-z", "*.h"], check=True,
                            capture_output=True, text=True, cwd=ROOT)
    return max((mtime(os.path.join(ROOT, path))
                for path in listed.stdout.split("\0") if path), default=0)


def analysed(build, since):
    """Returns the sources that `build` has already compiled with this analysis
    after their last change and after the time `since`."""
    done = set()
    for entry in entries(build):
        words = shlex.split(entry["command"])
        made = mtime(os.path.join(entry["directory"],
                                  words[words.index("-o") + 1]))
        if set(CLANG) <= set(words):
            done |= {path for path in sources(entry) if made >= max(
                since, mtime(os.path.join(ROOT, path)))}
    return done


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("build")
    parser.add_argument("--tests", action="store_true")
    parser.add_argument("--besides", action="append", default=[])
    given = parser.parse_args()
    since, known, chosen = newest_header(), {}, []
    elsewhere = {path for other in given.besides
                 for path in analysed(other, since)}
    seen, left = set(), set()
    for entry in entries(given.build):
        own = [path for path in sources(entry) if sees_mutex(path, known)
               and (given.tests or not path.startswith("tests/"))]
        seen.update(own)
        paths = [path for path in own if path not in elsewhere]
        if paths:
            chosen.append((entry, paths))
            left.update(paths)
    failed = 0
    with (tempfile.TemporaryDirectory() as folder,
          concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool):
        made = precompile(chosen, folder, pool)
        # Sources with a precompiled header come last, since they wait for it.
        chosen.sort(key=lambda one: key_of(one[0]) in made)
        for (_, paths), text in zip(chosen, pool.map(
                lambda one: complaints(*one, made), chosen)):
            if text:
                failed += 1
                print(f"locks: {' '.join(paths)}\n{text}", flush=True)
    print(f"locks: {len(left)} sources in {len(chosen)} compilations, {failed} "
          f"with complaints; {len(seen - left)} were analysed by a build")
    if not seen:
        sys.exit(f"error: locks: no source of {given.build} sees {MUTEX}: "
                 "nothing was checked")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
