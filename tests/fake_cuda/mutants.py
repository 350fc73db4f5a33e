"""Builds copies of a source with something removed, and runs the programs that
test it. The caller decides what is removed and which test must fail."""

import json
import os
import re
import shlex
import subprocess
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.abspath(os.path.join(HERE, "../.."))


def inside(text):
    """Returns the text between the outermost parentheses of a statement."""
    return text[text.index("(") + 1:text.rindex(")")]


def split(arguments):
    """Splits arguments at their top-level commas."""
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


def end_of(text, start):
    """Returns the position after the ';' of the statement that starts at
    `start`, or 0 if no statement starts there."""
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


def bracket_end(text, start):
    """Returns the position after the bracket that closes the one at `start`.
    """
    depth, at = 1, start + 1
    while depth > 0:
        depth += (text[at] in "([{") - (text[at] in ")]}")
        at += 1
    return at


def function_at(text, position):
    """Returns the name of the function at `position`, which may be defined in
    a class; a lambda counts as part of its enclosing function."""
    names = re.findall(r"^(?:  (?!if|for|while|switch|return|SLUICE))?"
                       r"(?:\w[^\n;={]*?[ &*])?((?:\w+::)?~?\w+)\("
                       r"(?=[^;{}]*(?:\{\}[^;{}]*)*\{)",
                       text[:position], re.M)
    return names[-1].split("::")[-1] if names else "?"


def read(path):
    """Returns a file's text; `path` is relative to the repository."""
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


class Build:
    """The compile command of each source, and the link command of each of
    `programs`, as a build folder recorded them."""

    def __init__(self, build, programs):
        self.build = os.path.abspath(build)
        with open(os.path.join(self.build, "compile_commands.json"),
                  encoding="utf-8") as file:
            self.commands = {os.path.relpath(e["file"], ROOT): e
                             for e in json.load(file)}
        self.links = {name: self.link_of(name) for name in programs}

    def link_of(self, program):
        listed = subprocess.run(
            ["ninja", "-C", self.build, "-t", "commands", f"bin/{program}"],
            capture_output=True, text=True, check=True).stdout
        last = listed.strip().splitlines()[-1]
        return re.sub(r"^: && | && :$", "", last).replace(
            f"-o bin/{program}", "MUTANT -o PROGRAM")

    def compile(self, source, text, folder, precompiled=False):
        """Compiles `text` in place of `source`; returns the object file. With
        `precompiled` it uses the build's flags and precompiled header, else
        flags for a fast compilation."""
        entry = self.commands[source]
        copy = os.path.join(folder, os.path.basename(source))
        with open(copy, "w", encoding="utf-8") as file:
            file.write(text)
        out = os.path.join(folder, "mutant.o")
        words = shlex.split(entry["command"])
        compiler = next(i for i, w in enumerate(words) if w.endswith("c++"))
        if precompiled:
            flags = words[compiler + 1:words.index("-o")]
        else:
            flags = [w for w in words[compiler + 1:]
                     if w.startswith(("-D", "-I", "-std", "-f", "-isystem"))]
            flags.append("-O0")
        run = subprocess.run(
            [words[compiler], *flags, "-w", "-c", copy, "-o", out],
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


def run(program, *arguments, timeout=60, **environment):
    """Returns (exit status, all output), or (None, "") if the program hung.
    Each call makes and removes a node's folder: a program that crashes leaves
    its own behind."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as node:
        environment["SLUICE_FAKE_CUDA_NODE"] = node
        try:
            done = subprocess.run(
                [program, *arguments], env={**os.environ, **environment},
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL, timeout=timeout, text=True,
                errors="replace", check=False)
            return done.returncode, done.stdout
        except subprocess.TimeoutExpired:
            return None, ""
