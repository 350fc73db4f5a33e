#!/usr/bin/env python3
"""Every removed check of an answer, push, release and call is found:
defects_test.py BUILD.

Makes a copy of each source of the cuda table with one thing removed, links the
tests of the table with it, and expects one of them to fail on the fake driver:
a rule broken, a race, an object left, an error not told, or wrong data. What no
test finds is in SURVIVORS with the reason; one that is found after all is a
mistake there.
"""

import concurrent.futures
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.abspath(os.path.join(HERE, "../.."))
FOLDER = "kernels/device/cuda"
SOURCES = ["address_space.cc", "contexts.cc", "cuda_driver.cc",
           "cuda_streams.cc", "memory.cc"]

# (source, function it is in, what was removed) -> why nothing can tell.
SURVIVORS = {
    ("memory.cc", "ProbeHost", "check cuDeviceGetAttribute"):
        "an attribute that cannot be asked reads as 0: memfds either way",
    ("memory.cc", "CreateMemfd",
     "check BindToNode(fd, size, where.ordinal));"):
        "a machine with one NUMA node binds nothing",
}

# What a mutant loses: (name, start of the statement, what stands instead).
# The pattern ends before the opening bracket; the statement ends with ");".
STATEMENTS = [
    ("call", r"SLUICE_CUDA", lambda text: ""),
    ("call", r"SLUICE_RETURN_IF_ERROR(?=\(library_->ToStatus)",
     lambda text: ""),
    ("check", r"SLUICE_CUDA", lambda text: unchecked(text)),
    ("check", r"SLUICE_RETURN_IF_ERROR", lambda text: ignored(text)),
    ("push", r"SLUICE_ASSIGN_OR_RETURN(?=\(const auto scope)",
     lambda text: ""),
    ("push", r"const auto scope = Enter", lambda text: ""),
    ("call", r"(?:f\.|library_->functions\(\)\.)cu\w+", lambda text: ";"),
    ("status", r"status\.Update", lambda text: ignored(text)),
    ("call", r"(?<=[ )] )(?:Unpin|UnmapOne|Release)(?=\([^;]*\)\.IgnoreError)",
     lambda text: ";"),
    ("call", r"const Result result = library_->functions\(\)\.cu\w+",
     lambda text: "const Result result = kSuccess;"),
]


def inside(text):
    """What is between the outermost brackets of a statement."""
    return text[text.index("(") + 1:text.rindex(")")]


def split(arguments):
    """Top-level commas."""
    parts, depth, quoted = [""], 0, False
    for before, c in zip(" " + arguments, arguments):
        if c == '"' and before != "\\":
            quoted = not quoted
        if not quoted:
            depth += c in "([{"
            depth -= c in ")]}"
            if c == "," and depth == 0:
                parts.append("")
                continue
        parts[-1] += c
    return parts


def unchecked(text):
    library, function, _, *arguments = split(inside(text))
    return (f"({library})->functions().{function.strip()}"
            f"({', '.join(arguments)});")


def ignored(text):
    return f"({inside(text)}).IgnoreError();"


def end_of(text, start):
    """Behind the ';' of the statement that starts at `start`; 0: it is none."""
    depth, at, quoted = 0, start, False
    while depth >= 0:
        c = text[at]
        if c == '"' and text[at - 1] != "\\":
            quoted = not quoted
        if not quoted:
            depth += c in "([{"
            depth -= c in ")]}"
            if c == ";" and depth == 0:
                return at + 1
        at += 1
    return 0


def function_at(text, position):
    """The function's name; a lambda's is that of what it is in."""
    names = re.findall(r"^(?:\w[^\n;={]*?[ &*])?((?:\w+::)?~?\w+)\(",
                       text[:position], re.M)
    return names[-1].split("::")[-1] if names else "?"


def read(source):
    with open(os.path.join(ROOT, FOLDER, source), encoding="utf-8") as file:
        return file.read()


def mutants(source):
    """(function, what, mutated text): the n-th alike is numbered."""
    text = read(source)
    seen = {}
    for kind, pattern, replace in STATEMENTS:
        for match in re.finditer(pattern, text):
            line = text[text.rindex("\n", 0, match.start()) + 1:match.start()]
            end = end_of(text, match.start())
            if end == 0 or not re.fullmatch(r"\s*((if|for) \(.*\) )?", line):
                continue  # part of an expression
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


class Build:
    def __init__(self, build):
        self.build = build
        with open(os.path.join(build, "compile_commands.json"),
                  encoding="utf-8") as file:
            self.commands = {os.path.basename(e["file"]): e
                             for e in json.load(file)
                             if os.path.dirname(e["file"]).endswith(FOLDER)}
        self.links = {name: self.link_of(name)
                      for name in ("cuda_table_test", "conformance_test")}

    def link_of(self, program):
        listed = subprocess.run(
            ["ninja", "-C", self.build, "-t", "commands", f"bin/{program}"],
            capture_output=True, text=True, check=True).stdout
        last = listed.strip().splitlines()[-1]
        return re.sub(r"^: && | && :$", "", last).replace(
            f"-o bin/{program}", "MUTANT -o PROGRAM")

    def compile(self, source, text, folder):
        """An object of the source with this text."""
        entry = self.commands[source]
        copy = os.path.join(folder, source)
        with open(copy, "w", encoding="utf-8") as file:
            file.write(text)
        words = shlex.split(entry["command"])
        compiler = next(i for i, w in enumerate(words) if w.endswith("c++"))
        flags = [w for w in words[compiler + 1:]
                 if w.startswith(("-D", "-I", "-std", "-f", "-isystem"))]
        out = os.path.join(folder, "mutant.o")
        run = subprocess.run(
            [words[compiler], *flags, "-w", "-O0", "-c", copy, "-o", out],
            cwd=entry["directory"], capture_output=True, text=True,
            check=False)
        if run.returncode != 0:
            raise RuntimeError(f"{source} does not compile:\n{run.stderr}")
        return out

    def link(self, program, mutant, folder):
        out = os.path.join(folder, program)
        line = self.links[program].replace("MUTANT", mutant).replace(
            "PROGRAM", out)
        run = subprocess.run(line, shell=True, cwd=self.build,
                             capture_output=True, text=True, check=False)
        if run.returncode != 0:
            raise RuntimeError(f"{program} does not link:\n{run.stderr}")
        return out


def fails(program, *arguments, **environment):
    """Whether a test fails; one that hangs does. One that crashes leaves its
    node behind, so the node is ours."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as node:
        environment["SLUICE_FAKE_CUDA_NODE"] = node
        try:
            return subprocess.run(
                [program, *arguments], env={**os.environ, **environment},
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                stdin=subprocess.DEVNULL, timeout=60,
                check=False).returncode != 0
        except subprocess.TimeoutExpired:
            return True


def found(build, source, text):
    with tempfile.TemporaryDirectory() as folder:
        mutant = build.compile(source, text, folder)
        if fails(build.link("cuda_table_test", mutant, folder)):
            return True
        suite = build.link("conformance_test", mutant, folder)
        return any(
            fails(suite, "--gtest_filter=*/cuda",
                  LD_LIBRARY_PATH=os.path.join(build.build, "fake_cuda"),
                  SLUICE_FAKE_CUDA=f"host_numa={host_numa},jitter_us=3000")
            for host_numa in (0, 1))


def main():
    build = Build(os.path.abspath(sys.argv[1]))
    wanted = sys.argv[2:]
    cases = [(source, *mutant) for source in SOURCES
             for mutant in mutants(source)
             if not wanted or source in wanted]
    wrong, survived = [], set()
    # What is found must be the removal.
    for source in wanted or SOURCES:
        if found(build, source, read(source)):
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
                wrong.append(f"found, and listed as a survivor: {key}")
    known = {(s, w, t) for s, w, t, _ in cases}
    if not wanted:
        wrong += [f"no such removal: {key}" for key in SURVIVORS
                  if key not in known]
    print(f"{len(cases)} removals, {len(cases) - len(survived)} found, "
          f"{len(survived & set(SURVIVORS))} survive with a reason")
    for line in wrong:
        print(line)
    sys.exit(1 if wrong or not cases else 0)


if __name__ == "__main__":
    main()
