"""Rules inside a layer: rooms, folder sizes, names of headers.

A room is a folder of a layer that is cut into several. CMake sees one target
there, so the arrows between its rooms are kept here.
"""

import os
import re

# Room -> rooms of the same layer that it may include. A layer's own folder
# (client/train) is its front, above all its rooms, unless it is listed.
ROOMS = {
    "client/copy": [],
    "client/session": ["client/copy"],
    "client/torch/memory": [],
    # What the rooms above it need: exceptions, the precompiled header.
    "client/torch": ["client/torch/memory"],
    "client/torch/ranks": ["client/torch"],
    "client/torch/backend": ["client/torch", "client/torch/memory"],
    "client/torch/math": ["client/torch", "client/torch/backend"],
    "client/torch/stream": ["client/torch", "client/torch/memory",
                            "client/torch/ranks", "client/torch/backend",
                            "client/torch/math"],
    "client/torch/baseline": ["client/torch", "client/torch/memory",
                              "client/torch/ranks", "client/torch/backend",
                              "client/torch/math"],
    "client/torch/run": ["client/torch", "client/torch/memory",
                         "client/torch/ranks", "client/torch/backend",
                         "client/torch/math", "client/torch/stream", "client/torch/baseline"],
    # Who a client is, and which GPUs it may use.
    "daemon/service/identity": [],
    "daemon/service/log": [],
    # The loop, threads beside it, and their place among the machine's others.
    "daemon/service/threads": [],
    "client/train/watch": [],
    "client/train/launch": ["client/train/watch"],
    "client/train/data": ["client/train/launch"],
    # Weights in one flat buffer, and AdamW over it.
    "client/train/optimizer": [],
    # One micro-batch by each method, and what a rank works on.
    "client/train/step": ["client/train/launch", "client/train/optimizer",
                          "client/train/watch"],
    "client/train/checkpoint": ["client/train/launch",
                                "client/train/optimizer",
                                "client/train/step"],
    "client/train/check": ["client/train/launch", "client/train/optimizer",
                           "client/train/step"],
}
LAYERS = ["client/torch", "client/train", "client", "daemon/service"]  # the inner ones first

MAX_SOURCES = 22
# Folders of client/torch and client/train that are layers, not rooms.
NO_ROOMS = ["client/torch/cuda"]

# Headers named after their subject, which no class of theirs is called by.
SUBJECTS = {
    "client/torch/ranks/ulysses.h",  # a method's name
    "client/torch/stream/chunk_io.h",
    "client/train/data/batch.h",
    "client/train/launch/process.h",
    "daemon/runtime/runtime_dir.h",
    "planner/stream/shapes.h",
    "planner/swap/lp.h",  # LinearProgram
    "proto/base/units.h",
}
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"')
DEFINITION = re.compile(
    r"^(class|struct)\s+(?:[A-Z]+_[A-Z_]+(?:\([^)]*\))?\s+)?(\w+)[^;{(]*\{",
    re.M)


def layer_of(path):
    for layer in LAYERS:
        if path.startswith(layer + "/"):
            return layer
    return None


def includes(text):
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            yield number, match.group(1)


def check_rooms(files):
    """files: {path: text} of C++ sources and headers."""
    for path, text in files.items():
        room = os.path.dirname(path)
        if room not in ROOMS:
            inner = layer_of(path) in ("client/torch", "client/train")
            if inner and room not in LAYERS and room not in NO_ROOMS:
                yield (f"{path}: room {room} is not in ROOMS of "
                       "tests/layers/check_rooms.py: add what it may include")
            continue
        for number, header in includes(text):
            other = os.path.dirname(header)
            if layer_of(header) != layer_of(path) or other == room:
                continue
            if other not in ROOMS[room]:
                yield (f"{path}:{number}: room {room} must not include "
                       f"{header}; it may include: "
                       f"{', '.join(ROOMS[room]) or 'none'}")


def check_folder_sizes(paths):
    counts = {}
    for path in paths:
        if path.endswith(".cc"):
            folder = os.path.dirname(path)
            counts[folder] = counts.get(folder, 0) + 1
    for folder, count in sorted(counts.items()):
        if count > MAX_SOURCES:
            yield (f"{folder}: {count} .cc files, at most {MAX_SOURCES}: cut "
                   "it into rooms")


def words_of_class(name):
    return {singular(w.lower())
            for w in re.findall(r"[A-Z]+(?![a-z])|[A-Z][a-z0-9]*", name)}


def singular(word):
    return word[:-1] if word.endswith("s") and len(word) > 2 else word


def file_name_of(name):
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower() + ".h"


def check_header_names(files):
    """A header that defines classes shares a word with one of them, and no
    class is defined beside the header that bears its name."""
    for path, text in files.items():
        if not path.endswith(".h") or path.startswith("tests/"):
            continue
        found = DEFINITION.findall(text)
        folder, base = os.path.split(path)
        for kind, name in found:
            home = f"{folder}/{file_name_of(name)}"
            if kind == "class" and home != path and home in files:
                yield f"{path}: class {name} belongs in {home}"
        if not any(kind == "class" for kind, _ in found) or path in SUBJECTS:
            continue
        stem = {singular(w) for w in base[:-2].split("_")}
        if not any(stem & (words_of_class(name) | {name.lower()})
                   for _, name in found):
            names = ", ".join(name for _, name in found)
            yield f"{path}: named after none of what it defines ({names})"
