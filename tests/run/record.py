"""Keeps the last result of each deep test and phase in tests/DEEP.md. Each
run with `--record` replaces only the rows of tests that it ran."""

import dataclasses
import os
import re
import time

HEAD = """# Deep tests

`./dev test --deep --record` and runs of parts (`./dev test --record NAME`)
write this table: the last result of each test of the tier `deep`, and of each
phase of that tier that is no CTest run.

| test or phase | date | commit | seconds | result |
|---|---|---|---|---|
"""
ROW = re.compile(r"^\| (.+?) \| (.*?) \| (.*?) \| (.*?) \| (.*?) \|$", re.M)


@dataclasses.dataclass
class Row:
    date: str = ""
    commit: str = ""
    seconds: str = ""
    result: str = "not run"


def read(path):
    """Returns the rows by name, or {} if the file is missing."""
    if not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as file:
        body = file.read().partition("|---|")[2]
    return {name: Row(*fields) for name, *fields in ROW.findall(body)}


def record(path, names, ran, commit):
    """Writes a row for each of `names` and of the file's rows, which may be of
    tests that this build lacks. `ran` maps names to (state, seconds); other
    names keep their rows."""
    rows = read(path)
    names = names | set(rows)
    for name, (state, seconds) in ran.items():
        rows[name] = Row(time.strftime("%Y-%m-%d"), commit[:8],
                         f"{seconds:.0f}", state)
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(HEAD)
        for name in sorted(names):
            row = rows.get(name, Row())
            file.write(f"| {name} | {row.date} | {row.commit} | {row.seconds} "
                       f"| {row.result} |\n")
    os.replace(path + ".new", path)
