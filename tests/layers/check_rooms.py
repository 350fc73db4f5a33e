"""Rules for the rooms of a layer.

A room is a folder of a layer that is divided into several folders. CMake has
one target for the layer, so the allowed includes between its rooms are listed
here.
"""

import os
import re

# Room -> rooms of the same layer that it may include. A layer's own folder
# (client/train) may include all its rooms, unless it is listed.
ROOMS = {
    "client/copy": [],
    "client/session": ["client/copy"],
    "client/torch/memory": [],
    # Has the C++ exceptions and the precompiled header that other rooms need.
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
                         "client/torch/math", "client/torch/stream",
                         "client/torch/baseline"],
    # Finds a client's identity, and which GPUs the client may use.
    "daemon/service/identity": [],
    "daemon/service/log": [],
    # Has the event loop and the other threads, with scheduling priorities.
    "daemon/service/threads": [],
    "client/train/watch": [],
    "client/train/launch": ["client/train/watch"],
    "client/train/data": ["client/train/launch"],
    # Has the weights in one flat buffer, and AdamW, which updates the weights.
    "client/train/optimizer": [],
    # Computes one micro-batch by each method, and has the tensors of a rank.
    "client/train/step": ["client/train/launch", "client/train/optimizer",
                          "client/train/watch"],
    "client/train/checkpoint": ["client/train/launch",
                                "client/train/optimizer",
                                "client/train/step"],
    "client/train/check": ["client/train/launch", "client/train/optimizer",
                           "client/train/step"],
}
# Inner layers first.
LAYERS = ["client/torch", "client/train", "client", "daemon/service"]

# Folders of client/torch and client/train that are layers, not rooms.
NO_ROOMS = ["client/torch/cuda"]
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"')


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
    """Yields violations; files: {path: text} of C++ sources and headers."""
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
