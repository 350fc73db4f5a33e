#!/usr/bin/env python3
"""man_page.py PROGRAM SECTION VERSION OUT: writes a man page from the
program's --help."""

import os
import sys

import help_text


def escaped(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text[:1] in (".", "'") else text


def entries_of(command):
    for title, entries in command.sections.items():
        if title == "Subcommands":
            continue  # written as COMMANDS
        yield f'.PP\n{escaped(title)}:'
        for entry in entries:
            yield f".TP\n.B {escaped(entry.spec)}\n{escaped(entry.says)}"


def examples_of(command):
    yield ".PP\n.nf"
    yield from map(escaped, command.examples)
    yield ".fi"


def parts_of(command, section, version):
    name = command.words[0]
    says = command.says.removeprefix(name + ": ")
    summary = says.split(". ")[0].rstrip(".")
    yield f'.TH {name.upper()} {section} "" "Sluice {version}"'
    yield f".SH NAME\n{escaped(name)} \\- {escaped(summary)}"
    yield f".SH SYNOPSIS\n.B {escaped(command.usage)}"
    yield f".SH DESCRIPTION\n{escaped(says)}"
    yield from entries_of(command)
    if command.children:
        yield ".SH COMMANDS"
    for each in command.everything()[1:]:
        yield f".SS {escaped(each.name)}\n{escaped(each.says)}"
        yield f".PP\n.B {escaped(each.usage)}"
        yield from entries_of(each)
        yield from examples_of(each)
    yield ".SH EXAMPLES"
    yield from examples_of(command)


def main():
    program, section, version, out = sys.argv[1:]
    command = help_text.read(program, [os.path.basename(program)])
    with open(out, "w", encoding="utf-8") as file:
        for part in parts_of(command, section, version):
            file.write(part + "\n")


if __name__ == "__main__":
    main()
