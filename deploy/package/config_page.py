#!/usr/bin/env python3
"""config_page.py README VERSION OUT: writes the man page sluiced.toml(5) from
the section Configuration of daemon/README.md: its table of keys and its text.
"""

import re
import sys

from man_page import escaped

HEAD = """\
.SH NAME
sluiced.toml \\- configuration of sluiced
.SH SYNOPSIS
.B sluiced \\-\\-config /etc/sluice/sluiced.toml
.SH DESCRIPTION"""
TAIL = """\
.SH FILES
/etc/sluice/sluiced.toml
.SH EXAMPLES
.nf
[device]
driver = "auto"

[budgets]
principal_gpu_bytes = "40GiB"
.fi
.SH SEE ALSO
.BR sluiced (8),
.BR sluicectl (1)"""


def plain(markdown):
    """Returns the text without links, code marks and bold."""
    text = re.sub(r"\[([^][]*)\]\([^)]*\)", r"\1", markdown)
    return re.sub(r"`|\*\*", "", text).replace("…", "...").strip()


def section_of(readme):
    return readme.split("\n## Configuration\n")[1].split("\n## ")[0]


def keys_of(section):
    """Yields (key and table, default, description) of each row of the
    table."""
    for line in section.splitlines():
        if line.startswith("| `["):
            yield [plain(cell) for cell in line[1:-1].split("|")]


def parts_of(readme, version):
    section = section_of(readme)
    blocks = re.split(r"\n\n+", section.strip())
    at = next(i for i, block in enumerate(blocks) if block.startswith("| key"))
    yield f'.TH SLUICED.TOML 5 "" "Sluice {version}"'
    yield HEAD
    yield from paragraphs(blocks[:at])
    yield ".SH KEYS"
    for key, default, says in keys_of(section):
        yield f".TP\n.B {escaped(key)}\n{escaped(says)}"
        if default:
            yield f".br\nDefault: {escaped(default)}"
    yield ".SH NOTES"
    yield from paragraphs(blocks[at + 1:])
    yield TAIL


def paragraphs(blocks):
    for block in blocks:
        yield ".PP\n" + escaped(plain(" ".join(block.split())))


def main():
    readme, version, out = sys.argv[1:]
    with open(readme, encoding="utf-8") as file:
        text = file.read()
    with open(out, "w", encoding="utf-8") as file:
        for part in parts_of(text, version):
            file.write(part + "\n")


if __name__ == "__main__":
    main()
