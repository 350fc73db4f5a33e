"""Parses a program's --help for its man page and completions."""

import dataclasses
import re
import subprocess

COLUMN = 30  # where descriptions start


@dataclasses.dataclass
class Entry:
    spec: str  # "-h,--help", "--job TEXT", "evict", "JOB TEXT REQUIRED"
    says: str

    @property
    def names(self):
        return self.spec.split()[0].split("=")[0].split(",")

    @property
    def takes_a_value(self):
        return len(self.spec.split()) > 1


@dataclasses.dataclass
class Command:
    words: list  # ["sluicectl", "budget", "set"]
    says: str = ""
    usage: str = ""
    sections: dict = dataclasses.field(default_factory=dict)
    examples: list = dataclasses.field(default_factory=list)
    children: list = dataclasses.field(default_factory=list)

    @property
    def name(self):
        return " ".join(self.words)

    @property
    def options(self):
        return [entry for entries in self.sections.values()
                for entry in entries if entry.spec.startswith("-")]

    def everything(self):
        """Returns the command and all its subcommands."""
        found = [self]
        for child in self.children:
            found += child.everything()
        return found


def parse(words, text):
    command = Command(words)
    section = None
    lines = text.splitlines()
    for number, line in enumerate(lines):
        header = re.fullmatch(r"(\S.*):", line)
        if line.startswith("Usage: "):
            command.usage = line.removeprefix("Usage: ")
        elif line == "Examples:":
            command.examples = lines[number + 1:]
            break
        elif header:
            section = command.sections.setdefault(header[1], [])
        elif section is None:
            command.says = f"{command.says} {line}".strip()
        elif line.startswith(" " * COLUMN):
            section[-1].says = f"{section[-1].says} {line.strip()}".strip()
        elif line.strip():
            section.append(Entry(line[:COLUMN].strip(), line[COLUMN:].strip())
                           if line[COLUMN - 1:COLUMN] in ("", " ")
                           else Entry(line.strip(), ""))
    return command


def read(program, words):
    said = subprocess.run([program, *words[1:], "--help"], text=True,
                          capture_output=True, check=True).stdout
    command = parse(words, said)
    # The printed usage has the program's path; the man page needs its name.
    command.usage = command.usage.replace(program, words[0])
    for entry in command.sections.get("Subcommands", []):
        command.children.append(read(program, words + entry.names))
    return command
