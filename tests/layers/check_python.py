"""Rules of the Python package: which module may import which.

An import inside a function or under TYPE_CHECKING is free: at run time it
makes no circle when the package is loaded.
"""

import re

PACKAGE = "client/python/sluice/"

# A module imports only what stands before it. `__init__` stands above all.
ORDER = [
    "errors", "arguments", "_guard", "ranges", "in_flight", "slack",
    "host_tensor",
    "kinds",
    # The native half: library, daemon, session, memory.
    "_native", "daemon", "handle", "leased", "waiting", "session", "computing",
    "copies",
    "books", "slabs", "slots", "arena",
    # One layer, chunk by chunk.
    "precision",
    "intervals",
    "masks",
    "calls",
    "randomness",
    "linears",
    "replay",
    "setting",
    "rows",
    "gpu_blocks",
    "whole_scores",
    "blocks",
    "scoring",
    "attention",
    "board",
    "ranks",
    "exchange",
    "agreement",
    "changes",
    "chunk_size",
    "dealt",
    "policy",
    "products",
    "tape",
    "measured",
    "progress",
    "hidden",
    "side",
    "spared",
    "step",
    "chunked",
    "layer",
    "buffer_masks",
    "written_out",
    "sdpa",
    "captured",
    "trial",
    "tables",
    "probe",
    "patch",
    "adapters.registry",
    "adapters.padded",
    "adapters.stand_in",
    "adapters.shared",
    "adapters.routers",
    "adapters.units",
    "adapters.wanted",
    "adapters.held",
    "adapters.part",
    "adapters.ends_calls",
    "adapters.ends",
    "adapters.ends_trial",
    "adapters.decoders",
    "adapters.whole_calls",
    "adapters.dealing",
    "adapters.dealing_trial",
    "adapters.absent",
    "adapters.logprobs",
    "adapters.head_loss",
    "adapters.head_routers",
    "adapters.head",
    "adapters.head_trial",
    "adapters.packed",
    "settings",
    "adapters.hf",
    "adapters.layers",
    "planned",
    "streamed",
    "streaming",
    # Before a run.
    "adapters.verdict", "doctor", "desk", "__main__",
]

# A session needs no torch, and a streamed layer no transformers: what knows
# transformers is its adapters, and the commands that load a model.
TORCHLESS = {"errors", "arguments", "_guard", "ranges", "_native", "daemon", "handle",
             "leased", "waiting", "session", "desk"}
TRANSFORMERS = ("adapters.", "doctor")
NO_TRANSFORMERS = {"adapters.layers", "adapters.stand_in", "adapters.units",
                   "adapters.whole_calls"}

NAMED = re.compile(r"^(\s*)from sluice(?:\.([\w.]+))? import (\(?[^#\n]*)")
PLAIN = re.compile(r"^(\s*)import ([\w.]+)")
FROM = re.compile(r"^(\s*)from ([\w.]+) import")


def module_of(path):
    """"adapters.hf" of client/python/sluice/adapters/hf.py; "" of the
    package's own __init__.py; None of another file."""
    if not path.startswith(PACKAGE) or not path.endswith(".py"):
        return None
    name = path[len(PACKAGE):-3].replace("/", ".")
    return re.sub(r"(^|\.)__init__$", "", name)


def imports(text):
    """(line, module of this package) of what is imported on loading."""
    for number, line in enumerate(text.splitlines(), 1):
        named, plain = NAMED.match(line), PLAIN.match(line)
        if named and not named.group(1):
            folder, names = named.group(2), named.group(3)
            if folder in (None, "adapters"):
                prefix = "adapters." if folder else ""
                for name in re.findall(r"\w+(?= as )|\w+", re.sub(
                        r" as \w+", "", names)):
                    yield number, prefix + name
            else:
                yield number, folder
        elif plain and not plain.group(1) and (
                plain.group(2).startswith("sluice.")):
            yield number, plain.group(2).removeprefix("sluice.")


def foreign(text):
    """(line, top package) of every import, wherever it stands."""
    for number, line in enumerate(text.splitlines(), 1):
        match = FROM.match(line) or PLAIN.match(line)
        if match:
            yield number, match.group(2).split(".")[0]


def check_python(files):
    """files: {path: text} of the tree."""
    for path, text in files.items():
        module = module_of(path)
        if module is None:
            continue
        for number, package in foreign(text):
            if package == "torch" and module in TORCHLESS:
                yield f"{path}:{number}: {module} does without torch"
            if package == "transformers" and (
                    not module.startswith(TRANSFORMERS)
                    or module in NO_TRANSFORMERS):
                yield (f"{path}:{number}: transformers is imported in "
                       "sluice/adapters and by the commands only")
        if module in ("", "adapters"):
            continue
        if module not in ORDER:
            yield (f"{path}: {module} is not in ORDER of "
                   "tests/layers/check_python.py: add it above what it "
                   "imports")
            continue
        for number, other in imports(text):
            if other not in ORDER[:ORDER.index(module)]:
                yield (f"{path}:{number}: {module} must not import {other}: "
                       "ORDER of tests/layers/check_python.py")
