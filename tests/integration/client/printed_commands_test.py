#!/usr/bin/env python3
"""printed_commands_test.py ROOT BIN PROGRAM…: checks that each command of a
PROGRAM in a text exists.

Texts are what C++ files have between double quotes, also in comments, and the
indented blocks and `code` of Markdown files. The words of a command that name
subcommands are looked up in the program's --help, and its flags in the --help
of the program and of these subcommands. If sluice-train is a PROGRAM, each flag
in a C++ file must be in the --help of a PROGRAM or of sluice-worker. Each flag
in a --help must have a description."""

import functools
import os
import re
import subprocess
import sys

# Flags in these files that are in no --help: most are of the system's programs,
# which the comments beside the files name.
OF_THE_SYSTEM = {
    "client/ctl/bundle/support_bundle.cc":  # journalctl
        {"--unit", "--no-pager", "--lines"},
    # systemctl, prlimit, nvidia-smi, apt-get
    "client/ctl/doctor/checks.cc":
        {"--now", "--pid", "--memlock", "--nofile", "--query-gpu",
         "--format", "--only-upgrade"},
    "client/ctl/doctor/read_facts.cc":  # systemctl, nvidia-smi
        {"--property", "--query-gpu"},
    "deploy/bundle/verify/doctor.cc": {"--query-gpu"},  # nvidia-smi
    "deploy/bundle/verify/suite.cc": {"--gtest"},
    # verify passes these to the processes of its checks. Its --help omits them.
    "deploy/bundle/verify/check.h": {"--check", "--tenant"},
    "deploy/bundle/verify/check_process.cc": {"--work", "--busy"},
    # verify passes these to the kit's Python.
    "deploy/bundle/verify/torch.cc": {"--result", "--socket"},
}
FOLDERS = ["daemon", "client", "proto", "planner", "kernels", "deploy"]
LITERAL = re.compile(r'R"(\w*)\((.*?)\)\1"|"((?:[^"\\\n]|\\.)*)"', re.S)
# A command ends where the surrounding prose continues.
ENDS = re.compile(r"[`;)|<>&]|\n|#|\s(?:and|or|lists|prints|measures)\s|$")


@functools.lru_cache(None)
def help_of(binary, *words):
    run = subprocess.run([binary, *words, "--help"], capture_output=True,
                         text=True, timeout=60)
    assert run.returncode == 0, (binary, words, run.stderr)
    return run.stdout


def subcommands(text):
    block = re.search(r"^Subcommands:\n(.*?)(?:\n\n|\Z)", text, re.S | re.M)
    return re.findall(r"^  ([a-z-]+)", block.group(1), re.M) if block else []


def literals(text):
    """Yields the string literals. Adjacent literals are joined. Escaped
    newlines and quotes are replaced, except in raw literals."""
    joined, end = "", None
    for match in LITERAL.finditer(text):
        between = text[end:match.start()] if end is not None else "x"
        if between.strip():
            yield joined
            joined = ""
        if match.group(3) is None:
            joined += match.group(2)
        else:
            joined += match.group(3).replace("\\n", "\n").replace('\\"', '"')
        end = match.end()
    yield joined


def markdown(text):
    for block in re.findall(r"(?:^(?:    .*)?\n)+", text, re.M):
        yield block
    yield from re.findall(r"`([^`]+)`", text)


def texts(root):
    files = subprocess.run(["git", "-C", root, "ls-files", *FOLDERS,
                            "README.md"], capture_output=True, text=True,
                           check=True).stdout.split("\n")
    for path in files:
        if path.endswith((".cc", ".h")):
            with open(os.path.join(root, path), encoding="utf-8") as file:
                yield from ((path, t) for t in literals(file.read()))
        elif path.endswith(".md"):
            with open(os.path.join(root, path), encoding="utf-8") as file:
                yield from ((path, t) for t in markdown(file.read()))


def commands(text, programs):
    text = re.sub(r"\\\n\s*", " ", text)  # continued lines
    for match in re.finditer(r"(?<![\w/.-])(%s) (?=[-a-z])" %
                             "|".join(programs), text):
        rest = text[match.end():]
        yield match.group(1), rest[:ENDS.search(rest).start()]


def check(binary, rest):
    """Returns what is wrong with `rest`, the words after the program's name, or
    None. Prose that only names the program ("sluicectl knows") is no command.
    """
    words = rest.split()
    chosen, flags = [], []
    known = subcommands(help_of(binary))
    for word in words:
        if word.startswith("-"):
            flags.append(word.split("=")[0].rstrip(".,:'\""))
        elif not flags and word.rstrip(".,:'") in known:
            chosen.append(word.rstrip(".,:'"))
            known = subcommands(help_of(binary, *chosen))
        elif not flags:
            break
    if not chosen and not flags:
        return None
    # Prose may name a program's flag without the subcommand that has the flag.
    have = help_of(binary) + (help_of(binary, *chosen) if chosen else
                              whole_help(binary))
    for at in range(1, len(chosen)):
        have += help_of(binary, *chosen[:at])
    # Flags may precede the subcommand.
    for word in words:
        if word in known and word not in chosen:
            chosen.append(word)
            known = subcommands(help_of(binary, *chosen))
            have += help_of(binary, *chosen)
    for flag in flags:
        if flag not in ("-", "--") and not re.search(
                r"(?<![\w-])%s(?![\w-])" % re.escape(flag), have):
            return f"{flag} is no flag of {' '.join(chosen)}"
    return None


def whole_help(binary, *words):
    text = help_of(binary, *words)
    for name in subcommands(text):
        text += whole_help(binary, *words, name)
    return text


def unknown_flags(text, have):
    if "var(--" in text:  # an HTML page with CSS variables
        return
    for flag in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", text):
        if not re.search(
                r"(?<![\w-])%s(?![\w-])" % re.escape(flag), have):
            yield flag


def undescribed(text):
    """Yields the flags of a --help that have no description beside them or on
    the next line, and flags that contain a brace."""
    lines = text.split("\n")
    for line, next_line in zip(lines, lines[1:]):
        found = re.match(r"  (-[^\s]+)(?: [A-Z]+\S*)?(?: REQUIRED)?(  .*)?$",
                         line.rstrip())
        if found and not found.group(2) and not next_line.startswith(" " * 20):
            yield found.group(1)
        if found and "{" in found.group(1):
            yield found.group(1)


def main():
    root, folder, programs = sys.argv[1], sys.argv[2], sys.argv[3:]
    have = "".join(whole_help(os.path.join(folder, p))
                   for p in [*programs, "sluice-worker"])
    count = 0
    wrong = [f"{program} --help: {flag} has no description"
             for program in programs
             for flag in undescribed(whole_help(os.path.join(folder,
                                                             program)))]
    for path, text in texts(root):
        if path.endswith((".cc", ".h")) and "sluice-train" in programs:
            wrong += [f"{path}: no program has {flag}"
                      for flag in unknown_flags(text, have)
                      if flag not in OF_THE_SYSTEM.get(path, ())]
        for program, rest in commands(text, programs):
            count += 1
            problem = check(os.path.join(folder, program), rest)
            if problem:
                wrong.append(f"{path}: {program} {rest}: {problem}")
    print("\n".join(wrong))
    print(f"{count} printed commands, {len(wrong)} wrong")
    sys.exit(1 if wrong or count < 40 else 0)


if __name__ == "__main__":
    main()
