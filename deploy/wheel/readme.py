"""Extracts the commands and the program that a README's reader types."""

from __future__ import annotations

import pathlib


def _blocks(page: pathlib.Path) -> list[list[str]]:
    """Returns the indented blocks; an empty line does not end one."""
    blocks: list[list[str]] = [[]]
    for line in page.read_text("utf-8").splitlines():
        if line.startswith("    "):
            blocks[-1].append(line[4:])
        elif line.strip():
            if blocks[-1]:
                blocks.append([])
        elif blocks[-1]:
            blocks[-1].append("")
    return [block for block in blocks if block]


def install_lines(page: pathlib.Path) -> list[str]:
    return [line for block in _blocks(page) for line in block
            if line.startswith("pip install ")]


def program(page: pathlib.Path) -> str:
    """Returns the block that streams a model and prints a loss."""
    [found] = [block for block in _blocks(page)
               if any("sluice.stream(" in line for line in block)
               and any("print(" in line for line in block)]
    return "\n".join(found) + "\n"
