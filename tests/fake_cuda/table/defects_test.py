#!/usr/bin/env python3
"""defects_test.py BUILD: removes each check, push, release and call from the
cuda table, one at a time, and expects the table's tests to detect the removal.

Links the table's tests with the changed source, and expects one of them to fail
on the fake driver: by a broken rule, a race, a leaked object, an unreported
error, or wrong data. SURVIVORS lists the removals that no test detects, with
the reason. An entry of SURVIVORS that a test does detect is an error.
"""

import concurrent.futures
import os
import re
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from mutants import (
    Build,
    bracket_end,
    end_of,
    function_at,
    inside,
    read,
    run,
    split,
)

FOLDER = "kernels/device/cuda"
SOURCES = ["address_space.cc", "contexts.cc", "cuda_driver.cc",
           "library.cc", "memory.cc"]

# (source, enclosing function, what was removed) -> why no test can detect it.
SURVIVORS = {
    ("memory.cc", "ProbeHost", "check cuDeviceGetAttribute"):
        "an attribute that cannot be read is 0: memfds are used either way",
    ("memory.cc", "CreateMemfd", "check bound);"):
        "a machine with one NUMA node binds nothing",
    ("memory.cc", "BindToNode", "if bound == 0"): "the same",
    ("memory.cc", "CreateMemfd", "if range == MAP_FAILED"):
        "the kernel refuses it only if no addresses are left",
    ("memory.cc", "CreateMemfd", "call munmap"):
        "no test uses up all addresses",
    ("address_space.cc", "Map",
     "if mmap(address, size.size(), PROT_NONE, MAP_SHARED | MAP_FIXED, "
     "memory->memfd().get(), 0) == MAP_FAILED"):
        "inside its own reservation it fails only if the kernel has no memory",
    ("address_space.cc", "UnmapOne",
     "if mmap(address, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | "
     "MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED"): "the same",
    ("address_space.cc", "Release",
     "if munmap(address, reservation.size.size()) != 0"): "the same",
    ("address_space.cc", "AllowOurs",
     "if mprotect(address, size.size(), PROT_READ | PROT_WRITE) != 0"):
        "the same",
    ("memory.cc", "CreateMemfd",
     "if fallocate(fd.get(), 0, 0, size.count()) != 0"):
        "no test takes all of a machine's memory",
    ("memory.cc", "CreateMemfd",
     "if fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | "
     "F_SEAL_SEAL) != 0"): "a new memfd always accepts its seals",
    ("memory.cc", "Export", "if fcntl(fd, F_SETFD, FD_CLOEXEC) != 0"):
        "an open descriptor always accepts the flag",
    ("memory.cc", "CheckMemfd", "if fstat(fd.get(), &status) != 0"):
        "a descriptor whose seals were read also has a size",
    ("cuda_driver.cc", "FindGpus", "if gpus.empty()"):
        "without a GPU cuInit fails already",
}

# What a mutant removes: (name, pattern of a statement's start, function that
# returns the statement's replacement). The pattern ends before the statement's
# opening bracket.
STATEMENTS = [
    ("call", r"SLUICE_CUDA(?=\()", lambda text: ""),
    ("call", r"SLUICE_RETURN_IF_ERROR(?=\(library_->ToStatus)",
     lambda text: ""),
    ("check", r"SLUICE_CUDA(?=\()", lambda text: unchecked(text)),
    ("check", r"SLUICE_RETURN_IF_ERROR", lambda text: ignored(text)),
    ("push", r"SLUICE_ASSIGN_OR_RETURN(?=\(const auto scope)",
     lambda text: ""),
    ("push", r"const auto scope = Enter",
     lambda text: "const absl::Status scope;"),
    ("call", r"(?:f\.|functions_\.|library_->functions\(\)\.)cu\w+",
     lambda text: ";"),
    ("status", r"status\.Update", lambda text: ignored(text)),
    ("call", r"(?<=[ )] )(?:Unpin|UnmapOne|Release)(?=\([^;]*\)\.IgnoreError)",
     lambda text: ";"),
    ("call", r"const Result result = library_->functions\(\)\.cu\w+",
     lambda text: "const Result result = kSuccess;"),
]


def unchecked(text):
    library, function, _, *arguments = split(inside(text))
    return (f"({library})->functions().{function.strip()}"
            f"({', '.join(arguments)});")


def ignored(text):
    return f"({inside(text)}).IgnoreError();"


def guards(text):
    """Yields (start, end, replacement) of conditions: `if (wrong) return
    error` becomes never true; `if (right) return fine; return error` always
    true."""
    error = (r"return (?:(?:ErrnoStatus|absl::\w+Error)\(|"
             r"context\.status\(\)|errno == )|std::string why = ")
    fine = r"(?:return (?:absl::OkStatus\(\)|it->second)|continue);"
    comments = r"(?:\s*//[^\n]*\n)*"
    for match in re.finditer(r"^ *if \(", text, re.M):
        start, end = match.end(), bracket_end(text, match.end() - 1)
        # In a macro each line ends in a backslash.
        behind = text[end:].replace("\\\n", "\n")
        if re.match(rf"\s*{{?{comments}\s*{error}", behind):
            yield start, end - 1, "false"
        elif re.match(rf"\s*{{?\s*{fine}\s*}}?\s*{error}", behind):
            yield start, end - 1, "true"


def mutants(source):
    """Yields (function, what, mutated text); equal entries are numbered."""
    text = read(f"{FOLDER}/{source}")
    seen = {}
    for kind, pattern, replace in STATEMENTS:
        for match in re.finditer(pattern, text):
            line = text[text.rindex("\n", 0, match.start()) + 1:match.start()]
            end = end_of(text, match.start())
            if end == 0 or not re.fullmatch(r"\s*((if|for) \(.*\) )?", line):
                continue  # the call is part of an expression
            statement = text[match.start():end]
            called = re.search(r"\bcu[A-Z]\w+", statement)
            name = called.group() if called else " ".join(
                re.sub(r"^\w+\(", "", statement).split())[:40]
            where = function_at(text, match.start())
            what = f"{kind} {name}"
            number = seen[where, what] = seen.get((where, what), 0) + 1
            if number > 1:
                what += f" #{number}"
            yield (where, what,
                   text[:match.start()] + replace(statement) + text[end:])
    # munmap is no function of the driver, so STATEMENTS does not match it.
    for match in re.finditer(r"\bmunmap(?=\()", text):
        yield (function_at(text, match.start()), "call munmap",
               f"{text[:match.start()]}0"
               f"{text[bracket_end(text, match.end()):]}")
    for start, end, instead in guards(text):
        condition = text[start:end]
        # Calls in the condition are still made.
        yield (function_at(text, start), "if " + " ".join(condition.split()),
               f"{text[:start]}(static_cast<void>({condition}), {instead})"
               f"{text[end:]}")


def fails(program, *arguments, **environment):
    """Returns whether a test fails; a test that hangs counts as failed."""
    return run(program, *arguments, **environment)[0] != 0


def found(build, source, text):
    with tempfile.TemporaryDirectory() as folder:
        mutant = build.compile(f"{FOLDER}/{source}", text, folder)
        # The library's own tests need no driver.
        programs = ["cuda_test"] if source == "library.cc" else []
        for program in [*programs, "cuda_table_test"]:
            if fails(build.link(program, mutant, folder)):
                return True
        suite = build.link("conformance_test", mutant, folder)
        return any(
            fails(suite, "--gtest_filter=*/cuda",
                  LD_LIBRARY_PATH=os.path.join(build.build, "fake_cuda"),
                  SLUICE_FAKE_CUDA=f"host_numa={host_numa},jitter_us=3000")
            for host_numa in (0, 1))


def main():
    build = Build(sys.argv[1],
                  ("cuda_test", "cuda_table_test", "conformance_test"))
    wanted = sys.argv[2:]
    cases = [(source, *mutant) for source in SOURCES
             for mutant in mutants(source)
             if not wanted or source in wanted]
    wrong, survived = [], set()
    # The unchanged source must pass, so that failures come from the removal.
    for source in wanted or SOURCES:
        if found(build, source, read(f"{FOLDER}/{source}")):
            sys.exit(f"error: {source} fails with nothing removed")
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = pool.map(lambda c: found(build, c[0], c[3]), cases)
        for (source, where, what, _), seen in zip(cases, results):
            key = (source, where, what)
            if not seen:
                survived.add(key)
            if not seen and key not in SURVIVORS:
                wrong.append(f"not found: {key}")
            if seen and key in SURVIVORS:
                wrong.append(f"found, but listed in SURVIVORS: {key}")
    known = {(s, w, t) for s, w, t, _ in cases}
    if not wanted:
        wrong += [f"listed in SURVIVORS, but no such removal: {key}"
                  for key in SURVIVORS if key not in known]
    print(f"{len(cases)} removals, {len(cases) - len(survived)} found, "
          f"{len(survived & set(SURVIVORS))} survive with a reason")
    for line in wrong:
        print(line)
    sys.exit(1 if wrong or not cases else 0)


if __name__ == "__main__":
    main()
