#!/usr/bin/env python3
"""Checks the source tree against the layer table: check_tree.py ROOT.

Each rule is a function: third-party headers are included only in the folders
that own them; an include never goes up a layer; a new tensor states its device;
clang can check every lock; Sluice's own races are not hidden from
ThreadSanitizer; no file names a machine, its paths or its mirrors; no line
of code is over 80 columns; every top-level and layer folder has a README.md;
the top level has no unknown entry.
check_rooms.py: includes between the rooms of a layer.
check_shape.py: classes in one source each, no circles of folders.
check_contracts.py: metrics, columns of `sluicectl status`, keys of the
snapshot, messages and RPCs are in a README.
Prints one line per violation and exits 1 if there is any.
"""

import os
import re
import subprocess
import sys

import check_contracts
import check_rooms
import check_shape

# Header family -> (pattern of the include, folders that may include it). A
# folder stands for itself and all folders below it. Files of tests/ may include
# every family. `None` means everywhere.
FAMILIES = {
    # Only client/torch/backend knows which attention and merge a device has.
    # deploy/bundle launches a merge to see which memory a GPU can read.
    "attention": (r"ATen/ops/_\w*(flash|efficient|cudnn|dot_product)\w*att"
                  r"ention\w*\.h$|kernels/ops/(merge|gpu_kernels)\.h$",
                  ["client/torch/backend", "kernels/ops",
                   "deploy/bundle/verify/rules"]),
    "torch": (r"(torch|ATen|c10|caffe2)/", ["client/torch", "client/train"]),
    "gloo": (r"gloo/", ["client/torch"]),
    "grpc": (r"grpc(pp)?/|.*\.grpc\.pb\.h$",
             ["proto/admin", "daemon/service", "daemon", "client/ctl"]),
    "protobuf": (r"google/protobuf/|.*\.pb\.h$",
                 ["proto", "daemon/service", "daemon/state", "client"]),
    "prometheus": (r"prometheus/", ["daemon/metrics"]),
    "clp": (r"(coin/)?Clp\w*\.(h|hpp)$", ["planner"]),
    "cbc": (r"(Cbc|Cgl|Coin|Osi)\w*\.(h|hpp)$|coin/", ["planner"]),
    "zlib": (r"zlib\.h$", ["daemon/state"]),
    "glpk": (r"glpk\.h$", ["tests"]),
    "toml++": (r"toml(\+\+|plusplus)/|toml\.hpp$",
               ["daemon", "planner", "deploy/cmake/archives"]),
    "cli11": (r"CLI/", ["proto/cli", "daemon", "client/ctl", "client/train",
                        "client/examples", "planner/worker", "deploy/bundle"]),
    "json": (r"nlohmann/", ["proto/plan", "planner", "daemon/metrics",
                            "daemon/policy_json.cc", "client/ctl",
                            "client/train", "deploy/bundle"]),
    "cuda": (r"cuda(_runtime|_runtime_api|_fp16|_bf16|Typedefs)?\.h$|nvml\.h$",
             ["kernels", "client/torch/cuda"]),
    "nccl": (r"nccl\.h$", ["client/torch/cuda"]),
    "spdlog": (r"spdlog/", ["daemon", "client/train"]),
    "systemd": (r"systemd/", ["daemon"]),
    "hwloc": (r"hwloc", ["daemon/service", "kernels/device"]),
    "numa": (r"numa(if)?\.h$", ["daemon/service", "kernels/device"]),
    "gtest": (r"(gtest|gmock)/", ["tests"]),
    "benchmark": (r"benchmark/", ["tests"]),
    "absl": (r"absl/", None),
    "fmt": (r"fmt/", None),
    "system": (r"(sys|linux|net|netinet|arpa|asm|bits)/", None),
}

# Folders that must not include the family although a folder above them may.
EXCEPTIONS = {
    "protobuf": ["client/torch", "client/train"],
    "toml++": ["daemon/core", "daemon/service", "daemon/metrics"],
    "cli11": ["daemon/core", "daemon/service", "daemon/metrics"],
    "spdlog": ["daemon/core", "daemon/metrics"],
    "systemd": ["daemon/core", "daemon/metrics"],
    "grpc": ["daemon/core", "daemon/metrics"],
    "cbc": ["planner/worker"],
    "clp": ["planner/worker"],
}

# Each solver's headers are included by one file only.
ONE_FILE = ["cbc", "clp"]

TOP_LEVEL = ["daemon", "client", "proto", "kernels", "planner", "deploy",
             "tests"]
TOP_FILES = ["CMakeLists.txt", "CMakePresets.json", "LICENSE", "README.md",
             "dev", "pyproject.toml"]
ANNOTATED_LOCKS = "proto/base/mutex.h"
BARE_LOCK = re.compile(
    r"\bstd::((recursive_|shared_|timed_)*mutex|condition_variable\w*|"
    r"(lock_guard|unique_lock|shared_lock|scoped_lock))\b|"
    r"\babsl::(Mutex\w*|CondVar)\b")
MAKES_TENSOR = re.compile(
    r"\bat::(empty|zeros|ones|full|arange|rand|randn|randint|randperm|eye|"
    r"linspace|scalar_tensor|tensor|from_blob)\(")
# The last group names variables that hold options with a device.
SAYS_WHERE = re.compile(
    r"\bOn(Host)?\(|\boptions\(\)|\b(options|float32|wide|ids)\b")
HOSTS = re.compile(r"^(127\.0\.0\.1|0\.0\.0\.0|localhost|.*\.(example|invalid)"
                   r"|(www\.)?(w3|apache|arxiv|debian|pypi|python)\.org"
                   r"|github\.com|prometheus\.io|json-schema\.org)$")
# What ThreadSanitizer may suppress: races of libraries that are not compiled
# for it (deploy/cmake/SluiceInstrumented.cmake), by their files or namespaces.
SUPPRESSED_RACES = "deploy/lint/races.supp"
OF_A_LIBRARY = re.compile(r"called_from_lib:lib(gpr|grpc)\w*(\+\+)?\w*\.so$|"
                          r"race:(grpc\w*|synchronization_internal)::\w")
HIDES_RACES = re.compile(r"no_sanitize(_thread\b|.*\bthread\b)|"
                         r"NO_SANITIZE_THREAD|__tsan_default_suppressions|"
                         r"ANNOTATE_\w*(IGNORE|BENIGN)\w*", re.I)

# Written with a character class so that this file does not match itself.
MACHINE_PATH = re.compile(r"[/](root|home/\w+|work|Users/\w+)/[\w.]")
URL = re.compile(r"\bhttps?://([\w.-]+\.\w+)")
CPP = (".cc", ".h", ".cu", ".cuh")
NARROW = CPP + (".py", ".js", ".sh", ".html", ".css", ".proto", ".cmake",
                "CMakeLists.txt")
RAW_STRING = re.compile(r'\bR"(\w*)\(.*?\)\1"', re.S)
# Tables that are macros: a row on more lines would need more backslashes.
ONE_ROW_A_LINE = ["tests/fake_cuda/nccl/api.h", "tests/fake_cuda/rules.h"]
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')


def tracked_files(root):
    """Returns the files of the repository, or all files below `root` if it is
    not a repository."""
    git = subprocess.run(
        ["git", "-C", root, "ls-files", "-co", "--exclude-standard"],
        capture_output=True, text=True)
    if git.returncode == 0:
        return [f for f in git.stdout.splitlines()
                if os.path.isfile(os.path.join(root, f))]
    found = []
    for folder, names, files in os.walk(root):
        names[:] = [n for n in names if n not in ("build", "out", ".git")]
        found += [os.path.relpath(os.path.join(folder, f), root)
                  for f in files]
    return sorted(found)


def is_below(path, folder):
    return path == folder or path.startswith(folder + "/")


def includes(text):
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            yield number, match.group(1), "<" in line


def family_of(header):
    for family, (pattern, _) in FAMILIES.items():
        if re.match(pattern, header):
            return family
    return None


def check_third_party(files):
    """Yields includes of third-party headers outside of their folders; files:
    {path: text} of C++ sources and headers."""
    homes = {}
    for path, text in files.items():
        used = {}
        for number, header, angled in includes(text):
            family = family_of(header)
            if family:
                used[family] = number
                homes.setdefault(family, set()).add(path)
                yield from check_family(path, number, header, family)
            elif angled and "/" in header:
                yield (f"{path}:{number}: <{header}> is of no family known to "
                       "tests/layers/check_tree.py: add it with its folders")
        if "torch" in used and "protobuf" in used:
            yield (f"{path}:{used['torch']}: torch carries an old copy of "
                   "protobuf's headers: never both in one file")
        yield from check_public_header(path, used)
    for family in ONE_FILE:
        own = {p for p in homes.get(family, ()) if not is_below(p, "tests")}
        if len(own) > 1:
            yield f"{family} belongs in one file, is in {sorted(own)}"


def check_family(path, number, header, family):
    folders = FAMILIES[family][1]
    if folders is None or path.startswith("tests/"):
        return
    allowed = any(is_below(path, f) for f in folders)
    refused = any(is_below(path, f) for f in EXCEPTIONS.get(family, ()))
    if not allowed or refused:
        yield (f"{path}:{number}: {header} ({family}) belongs in "
               f"{', '.join(folders)}")


def check_public_header(path, used):
    if path.endswith(".h") and os.path.dirname(path) in (
            "client", "client/session", "client/copy"):
        if "protobuf" in used and not path.endswith("_internal.h"):
            yield (f"{path}:{used['protobuf']}: client's public headers are "
                   "free of protobuf")


def arguments(text, at):
    """Returns the text between the parenthesis at `at` and its closing one."""
    depth = 0
    for end in range(at, len(text)):
        depth += {"(": 1, ")": -1}.get(text[end], 0)
        if depth == 0:
            return text[at + 1:end]
    return text[at + 1:]


def check_placement(files):
    """Yields new tensors that state no device (client/torch/placement.h)."""
    for path, text in files.items():
        if not path.startswith(("client/torch/", "client/train/")):
            continue
        for call in MAKES_TENSOR.finditer(text):
            if not SAYS_WHERE.search(arguments(text, call.end() - 1)):
                number = text.count("\n", 0, call.start()) + 1
                yield (f"{path}:{number}: {call.group()}...) says no device: "
                       "give it On(device, type) or OnHost(type) of "
                       "client/torch/placement.h")


def check_locks(files):
    for path, text in files.items():
        if path == ANNOTATED_LOCKS:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            found = BARE_LOCK.search(line.split("//")[0])
            if found:
                yield (f"{path}:{number}: {found.group()}: use the annotated "
                       f"ones of {ANNOTATED_LOCKS}, which clang can check")


def check_prints(files):
    """Yields calls of fmt::print, which throws if a stream is closed or its
    disk is full: the exception would end the program."""
    for path, text in files.items():
        for number, line in enumerate(text.splitlines(), 1):
            if path.endswith(CPP) and not path.startswith("tests/") and (
                    "fmt::print" in line.split("//")[0]):
                yield (f"{path}:{number}: fmt::print throws on a full disk: "
                       "use std::fputs or std::fprintf")


def check_races(files):
    """Checks that Sluice's own races are not hidden from ThreadSanitizer."""
    for path, text in files.items():
        for number, line in enumerate(text.splitlines(), 1):
            if path == SUPPRESSED_RACES:
                rule = line.split("#")[0].strip()
                if rule and not OF_A_LIBRARY.match(rule):
                    yield (f"{path}:{number}: {rule}: only a library's races "
                           "are suppressed; mend ours")
            elif path.endswith((".cc", ".h")):
                found = HIDES_RACES.search(line.split("//")[0])
                if found:
                    yield (f"{path}:{number}: {found.group()} hides races: "
                           "mend them")


def layer_table(cmake):
    """Returns (uses, folders) from the text of
    deploy/cmake/SluiceLayers.cmake."""
    uses = {}
    for name, value in re.findall(r"^set\(SLUICE_LAYER_([a-z_]+) ([^)]*)\)",
                                  cmake, re.M):
        uses[name] = [u for u in value.replace('"', "").split() if u]
    block = re.search(r"set\(SLUICE_LAYER_FOLDERS([^)]*)\)", cmake).group(1)
    return uses, dict(pair.split("=") for pair in block.split())


def closure(uses, layer):
    seen, queue = set(), list(uses[layer])
    while queue:
        name = queue.pop()
        if name not in seen:
            seen.add(name)
            queue += uses[name]
    return seen


def layer_of(path, folders):
    fits = [f for f in folders if is_below(path, f)]
    return folders[max(fits, key=len)] if fits else None


def check_layers(files, cmake):
    uses, folders = layer_table(cmake)
    for path, text in files.items():
        layer = layer_of(path, folders)
        if layer is None:
            continue
        allowed = closure(uses, layer) | {layer}
        for number, header, _ in includes(text):
            other = layer_of(header, folders)
            if other and other not in allowed:
                yield (f"{path}:{number}: layer '{layer}' must not include "
                       f"{header} of layer '{other}'")


def check_machine(files):
    for path, text in files.items():
        for number, line in enumerate(text.splitlines(), 1):
            if MACHINE_PATH.search(line):
                yield f"{path}:{number}: a path of one machine: {line.strip()}"
            for host in URL.findall(line):
                if not HOSTS.match(host):
                    yield f"{path}:{number}: names the host {host}"


def check_width(files):
    """Checks that no line has over 80 columns, raw strings of C++ aside."""
    for path, text in files.items():
        if not path.endswith(NARROW) or path in ONE_ROW_A_LINE:
            continue
        if path.endswith(CPP):
            text = RAW_STRING.sub(lambda m: "\n" * m[0].count("\n"), text)
        for number, line in enumerate(text.split("\n"), 1):
            if len(line) > 80:
                yield f"{path}:{number}: {len(line)} columns, over 80"


def check_readmes(paths, folders):
    wanted = set(TOP_LEVEL)
    wanted |= {f for f in folders if any(is_below(p, f) for p in paths)}
    for folder in sorted(wanted):
        if folder + "/README.md" not in paths:
            yield f"{folder}/README.md is missing: it is the design page"


def check_top_level(paths):
    found = {p.split("/", 1)[0] for p in paths}
    wanted = set(TOP_LEVEL + TOP_FILES)
    for name in sorted(found - wanted):
        if not name.startswith("."):
            yield f"{name} does not belong at the top level"
    for name in sorted(wanted - found):
        yield f"{name} is missing at the top level"


def check(root):
    paths = tracked_files(root)
    texts = {}
    for path in paths:
        with open(os.path.join(root, path), "rb") as file:
            data = file.read()
        if b"\0" not in data and path != "LICENSE":
            texts[path] = data.decode("utf-8", "replace")
    code = {p: t for p, t in texts.items()
            if p.endswith((".cc", ".h", ".cu", ".cuh", ".c"))}
    cmake = texts["deploy/cmake/SluiceLayers.cmake"]
    problems = list(check_third_party(code))
    problems += check_layers(code, cmake)
    problems += check_locks(code)
    problems += check_prints(code)
    problems += check_placement(code)
    problems += check_races(texts)
    problems += check_machine(texts)
    problems += check_width(texts)
    problems += check_top_level(paths)
    problems += check_readmes(set(paths), layer_table(cmake)[1])
    problems += check_rooms.check_rooms(code)
    problems += check_shape.check_classes(code)
    problems += check_shape.check_circles(code)
    problems += check_contracts.check_metrics(
        code, texts[check_contracts.METRICS])
    problems += check_contracts.check_columns(
        texts[check_contracts.STATUS],
        check_contracts.section(texts[check_contracts.COLUMNS],
                                "Status, number by number"))
    problems += check_contracts.check_snapshot(
        texts[check_contracts.SNAPSHOT_KEYS], texts[check_contracts.SNAPSHOT])
    problems += check_contracts.check_messages(
        texts["proto/session.proto"], texts[check_contracts.MESSAGES])
    problems += check_contracts.check_rpcs(
        texts["proto/admin/admin.proto"], texts[check_contracts.RPCS], code)
    return problems, len(code)


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: check_tree.py ROOT")
    problems, count = check(sys.argv[1])
    for problem in problems:
        print(problem)
    if count == 0:
        sys.exit("no sources found: nothing was checked")
    print(f"{count} sources, {len(problems)} violations")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
