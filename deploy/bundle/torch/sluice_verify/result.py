"""What a check says. It knows no torch: one of the checks is whether there is
any."""

from __future__ import annotations

import json
import os


class Failure(Exception):
    """A check's end; its text is the reason, one line for people."""


class Result:
    """The result of one check, in the form of the kit's programs: what was
    found so far, also where it fails.

    Attributes:
        expected: what passing means, one line.
        value: of the report; a check adds to it.
    """

    def __init__(self, expected: str) -> None:
        self.expected = expected
        self.value: dict = {}

    def write(self, path: str, reason: str | None) -> None:
        """`reason` None: it passed. The file is there whole, or not."""
        told = dict(status="passed" if reason is None else "failed",
                    value=self.value, expected=self.expected,
                    reason=reason or "")
        with open(path + ".new", "w", encoding="utf-8") as file:
            json.dump(told, file)
        os.replace(path + ".new", path)


def in_one_line(error: Exception) -> str:
    """Torch's have many, of which the first says what it is."""
    lines = filter(None, (line.strip() for line in str(error).splitlines()))
    return f"{type(error).__name__}: {next(lines, 'it says no more')}"


def say(line: str) -> None:
    """Prints the check's progress, which tells where an ended check was."""
    print(line, flush=True)
