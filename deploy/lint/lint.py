#!/usr/bin/env python3
"""clang -Wthread-safety and clang-tidy: lint.py BUILD_DIR SOURCE…

Takes each source's command from BUILD_DIR/compile_commands.json, drops what
clang does not know, and runs clang-tidy with the repository's .clang-tidy and
clang's thread safety analysis switched on. Prints only complaints; exits 1 if
there are any.
"""

import concurrent.futures
import json
import os
import re
import shlex
import subprocess
import sys

# g++ precompiled headers are of no use to clang; the rest are outputs.
DROP_WITH_VALUE = {"-o", "-MF", "-MT", "-MQ"}
DROP = {"-c", "-MD", "-MMD", "-Winvalid-pch", "-fpch-preprocess"}
CLANG = ["-Wthread-safety", "-Wno-unknown-warning-option"]


def precompiled(path):
    """What a header that CMake precompiles includes; of another, nothing."""
    if "cmake_pch" not in path:
        return []
    with open(path, encoding="utf-8") as file:
        return re.findall(r'^#include "([^"]+)"', file.read(), re.M)


def headers_for_clang(path):
    """What clang reads for g++'s `-include path`: of a header that CMake
    precompiles, whose result clang cannot read, what it includes. Only
    client/torch's: others include what they use."""
    if "cmake_pch" not in path:
        return [path]
    return [header for header in precompiled(path)
            if "/client/torch/" in header]


def arguments(entry):
    """The compiler's arguments without outputs and launcher."""
    words = shlex.split(entry["command"])
    start = next(i for i, w in enumerate(words)
                 if os.path.basename(w).startswith(("c++", "g++", "clang++")))
    kept, words = [], iter(words[start + 1:])
    for word in words:
        if word in DROP_WITH_VALUE:
            next(words)
        elif word == "-include":
            for header in headers_for_clang(next(words)):
                kept += [word, header]
        elif word not in DROP:
            kept.append(word)
    return kept


def complaints(entry):
    args = arguments(entry)
    run = subprocess.run(
        ["clang-tidy", "--quiet", entry["file"], "--"] + args + CLANG,
        capture_output=True, text=True, cwd=entry["directory"],
        stdin=subprocess.DEVNULL)
    return run.stdout + run.stderr if run.returncode != 0 else ""


def main():
    build, sources = sys.argv[1], {os.path.abspath(s) for s in sys.argv[2:]}
    with open(os.path.join(build, "compile_commands.json"),
              encoding="utf-8") as file:
        entries = {e["file"]: e for e in json.load(file)}
    chosen = [entries[s] for s in sorted(sources) if s in entries]
    for source in sorted(sources - set(entries)):
        print(f"lint: {os.path.relpath(source)} is not built by this preset")
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = zip(chosen, pool.map(complaints, chosen))
        for done, (entry, found) in enumerate(results, 1):
            print(f"lint: [{done}/{len(chosen)}] "
                  f"{os.path.relpath(entry['file'])}", flush=True)
            if found:
                failed += 1
                print(found)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
