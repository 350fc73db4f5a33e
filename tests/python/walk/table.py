"""Writes the table as Markdown and JSON."""

from __future__ import annotations

import collections
import dataclasses
import json

from . import judge, kinds
from .judge import Row

_ORDER = (
    judge.WRONG, judge.FAILED, judge.EXACT, judge.BUILT, judge.REFUSED,
    judge.UNBUILT,
)


def counts(rows: list[Row]) -> dict[str, int]:
    """Returns the number of rows with each verdict that occurs."""
    found = collections.Counter(row.verdict for row in rows)
    return {verdict: found[verdict] for verdict in _ORDER if found[verdict]}


def decoder_only_unbuilt(rows: list[Row]) -> int:
    return sum(
        row.verdict == judge.UNBUILT and row.kind in kinds.DECODER_ONLY
        for row in rows
    )


def summary(rows: list[Row]) -> str:
    """Returns one line: `189 names: 120 exact, …`."""
    parts = ", ".join(f"{n} {verdict}" for verdict, n in counts(rows).items())
    return (
        f"{len(rows)} names: {parts}; "
        f"{decoder_only_unbuilt(rows)} decoder-only unbuilt"
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _line(row: Row) -> str:
    worst = ""
    if row.difference is not None:
        worst = f"`{row.worst}` {row.difference:.1e} ({row.ratio:.2f})"
    reason = "; ".join(filter(None, (row.whole, row.reason)))
    if row.remedy and row.remedy not in reason:
        reason = f"{reason}; {row.remedy}"
    cells = (
        f"`{row.name}`", row.model_class, row.kind, row.verdict, worst, reason
    )
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def markdown(rows: list[Row], version: str, command: str) -> str:
    """Returns the table of `rows`, with its counts and the command that made
    it."""
    by_kind = collections.Counter((row.kind, row.verdict) for row in rows)
    found = list(counts(rows))
    lines = [
        f"# Causal language models of transformers {version}",
        "",
        f"Made by `{command}` in `tests/python`; README.md says what each",
        "column means. " + summary(rows) + ".",
        "",
        "| kind | " + " | ".join(found) + " |",
        "|---" * (len(found) + 1) + "|",
    ]
    for kind in sorted({row.kind for row in rows}):
        figures = " | ".join(str(by_kind[kind, v] or "") for v in found)
        lines.append(f"| {kind} | {figures} |")
    lines += [
        "",
        "| name | class | kind | verdict | worst parameter | reason |",
        "|---|---|---|---|---|---|",
        *(_line(row) for row in sorted(rows, key=lambda row: row.name)),
    ]
    return "\n".join(lines) + "\n"


def updated(known: str, rows: list[Row]) -> str:
    """Returns the table `known` with `rows` in place of the rows of the same
    names, and with new counts."""
    lines = known.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("| name"))
    new = {row.name: _line(row) for row in rows}
    body = [new.get(line.split("`")[1], line) for line in lines[at + 2:]]
    every = [Row(*(cell.strip(" `") for cell in line.split(" | ")[:2]),
                 *(cell.strip() for cell in line.split(" | ")[2:4]))
             for line in (line.removeprefix("| ") for line in body)]
    head, command = lines[0].rsplit(" ", 1)[1], known.split("`")[1]
    counted = markdown(every, head, command).splitlines()
    end = next(i for i, line in enumerate(counted)
               if line.startswith("| name"))
    return "\n".join([*counted[:end + 2], *body]) + "\n"


def as_json(rows: list[Row], version: str) -> str:
    """Returns all that is known of each row as JSON, for tools."""
    return json.dumps(
        {
            "transformers": version,
            "counts": counts(rows),
            "rows": [dataclasses.asdict(row) for row in rows],
        },
        indent=1,
    )
