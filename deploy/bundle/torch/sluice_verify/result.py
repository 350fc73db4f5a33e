"""The result of a check. This module does not import torch, because one check
finds out whether torch exists."""

from __future__ import annotations

import json
import os


class Failure(Exception):
    """Ends a check as failed; its text is the reason, one line for users."""


class Result:
    """The result of one check, written in the format of verify/check.h. The
    result of a failed check has what the check found before it failed.

    Attributes:
        expected: the condition for passing, one line.
        value: the findings for the report, which the check adds.
    """

    def __init__(self, expected: str) -> None:
        self.expected = expected
        self.value: dict = {}

    def write(self, path: str, reason: str | None) -> None:
        """Writes the file atomically. `reason` None: the check passed."""
        told = dict(status="passed" if reason is None else "failed",
                    value=self.value, expected=self.expected,
                    reason=reason or "")
        with open(path + ".new", "w", encoding="utf-8") as file:
            json.dump(told, file)
        os.replace(path + ".new", path)


def in_one_line(error: Exception) -> str:
    """Returns the type and first line, which in torch says what happened."""
    lines = filter(None, (line.strip() for line in str(error).splitlines()))
    return f"{type(error).__name__}: {next(lines, 'it says no more')}"


def say(line: str) -> None:
    """Prints the check's progress, which shows where a killed check was."""
    print(line, flush=True)
