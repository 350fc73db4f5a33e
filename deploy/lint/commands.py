#!/usr/bin/env python3
"""Compile commands for clang's tools: commands.py BUILD OUT.

Writes OUT/compile_commands.json: that of BUILD, with g++'s precompiled headers,
which clang cannot read, replaced by the headers that they were made from.
"""

import json
import os
import re
import shlex
import sys

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
DROP_WITH_VALUE = {"-o", "-MF", "-MT", "-MQ"}
DROP = {"-c", "-MD", "-MMD", "-Winvalid-pch", "-fpch-preprocess"}
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.M)


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def entries(build):
    """Yields the commands of the tree's own C++ sources and of batches of them
    (SLUICE_UNITY), without generated sources."""
    batches = os.path.join(os.path.abspath(build), "unity") + os.sep
    for entry in json.loads(read(os.path.join(build, "compile_commands.json"))):
        path = os.path.relpath(entry["file"], ROOT)
        if entry["file"].endswith(".cc") and (
                entry["file"].startswith(batches) or not path.startswith(
                    (".", "build" + os.sep))):
            yield entry


def sources(entry):
    """Returns the entry's source, or the files that a batch includes, relative
    to the root."""
    path = os.path.relpath(entry["file"], ROOT)
    if os.sep + "unity" + os.sep in path:
        return INCLUDE.findall(read(entry["file"]))
    return [path]


def precompiled(words):
    """Returns the header that CMake precompiles for this command, or None."""
    for i, word in enumerate(words):
        if word == "-include" and "cmake_pch" in words[i + 1]:
            return INCLUDE.findall(read(words[i + 1]))[0]
    return None


def arguments(entry):
    """Returns the flags without launcher, outputs, warnings, source and
    precompiled header."""
    words = shlex.split(entry["command"])
    words = words[next(i for i, word in enumerate(words) if os.path.basename(
        word).startswith(("c++", "g++", "clang++"))) + 1:]
    kept, rest = [], iter(words)
    for word in rest:
        if word in DROP_WITH_VALUE:
            next(rest)
        elif word == "-include":
            header = next(rest)
            if "cmake_pch" not in header:
                kept += [word, header]
        elif word not in DROP and not word.startswith("-W") and (
                word != entry["file"]):
            kept.append(word)
    return kept


def for_clang(entry):
    words = shlex.split(entry["command"])
    header = precompiled(words)
    return {"directory": entry["directory"], "file": entry["file"],
            "arguments": ["clang++", *arguments(entry),
                          *(["-include", header] if header else []),
                          "-Wthread-safety", "-c", entry["file"]]}


def main(build, out):
    os.makedirs(out, exist_ok=True)
    with open(os.path.join(out, "compile_commands.json"), "w",
              encoding="utf-8") as file:
        json.dump([for_clang(entry) for entry in entries(build)], file)


if __name__ == "__main__":
    main(*sys.argv[1:])
