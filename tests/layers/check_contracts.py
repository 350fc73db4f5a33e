"""Rules for what other processes and people see: metrics, columns of `sluicectl
status`, keys of the snapshot, protocol messages and RPCs.

Each must be in a README.md, and each RPC must have a caller.
"""

import re

METRICS = "daemon/metrics/README.md"
STATS = "daemon/core/stats.h"
LABELS = {"sluice_job"}  # label names, not metrics
COLUMNS = "client/ctl/README.md"
STATUS = "client/ctl/status/render.cc"
SNAPSHOT = "daemon/README.md"
SNAPSHOT_KEYS = "daemon/metrics/snapshot_json.cc"
MESSAGES = "proto/README.md"
RPCS = "proto/admin/README.md"


def table_words(readme):
    """Returns every `word` of the tables, without labels in braces."""
    words = set()
    for line in readme.splitlines():
        if line.startswith("|"):
            words |= {w.split("{")[0] for w in re.findall(r"`([^`]+)`", line)}
    return words


def check_metrics(files, readme):
    """Every metric in the code is in a table of the README, and vice versa.
    files: {path: text}."""
    made = set()
    for path, text in files.items():
        if (path.startswith("daemon/metrics/") and path.endswith((".cc", ".h"))
                or path == STATS):
            made |= set(re.findall(r'"((?:sluice|process)_[a-z0-9_]+)"', text))
    made -= LABELS
    told = {w for w in table_words(readme)
            if w.startswith(("sluice_", "process_"))}
    for name in sorted(made - told):
        yield f"{METRICS}: the metric {name} is in no table"
    for name in sorted(told - made):
        yield f"{METRICS}: there is no metric {name}"


def section(readme, title):
    """Returns the text from this heading to the next, or "" without the
    heading."""
    return readme.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def columns_of(render):
    """Yields the headings of each table that the source defines."""
    for table in re.findall(r"Table table\(\s*\{(.*?)\}\);", render, re.S):
        yield [title.lstrip(">") for title in re.findall(r'"([^"]*)"', table)]


def check_columns(render, readme):
    """Every column of the tables of `sluicectl status`, `jobs` and `budget` is
    in a row of the README. The columns of a row are all in one table."""
    rows = [re.findall(r"`([A-Z/ ]+)`", line.split("|")[1])
            for line in readme.splitlines() if line.startswith("| `")]
    tables = list(columns_of(render))
    for table in tables:
        # A row that describes columns shared by two tables counts for both.
        told = {c for row in rows if set(row) <= set(table) for c in row}
        for column in table:
            if column not in told:
                yield (f"{COLUMNS}: no row tells the column {column} of the "
                       f"table {table[0]}")
    for row in rows:
        if row and not any(set(row) <= set(table) for table in tables):
            yield f"{COLUMNS}: no table has the columns {', '.join(row)}"


def check_snapshot(code, readme):
    """Every key of the snapshot is in the README's block, and vice versa; the
    block begins with the key "generation"."""
    made = {key for pair in re.findall(
        r'\["([a-z_0-9]+)"\]|\{"([a-z_0-9]+)",', code) for key in pair if key}
    block = re.search(r'^    \{"generation".*?(?=^$)', readme, re.M | re.S)
    told = set(re.findall(r'"([a-z_0-9]+)"',
                          block.group(0))) if block else set()
    for key in sorted(made - told):
        yield f"{SNAPSHOT}: the snapshot's key {key} is not in its block"
    for key in sorted(told - made):
        yield f"{SNAPSHOT}: the snapshot has no key {key}"


def messages_of(session_proto):
    """Yields every message that a Request, a Reply or an Event can contain."""
    for name in ("Request", "Reply", "Event"):
        body = re.search(rf"^message {name} {{(.*?)^}}", session_proto,
                         re.M | re.S).group(1)
        yield from re.findall(r"^\s+([A-Z]\w+) \w+ = \d+;", body, re.M)


def check_messages(session_proto, readme):
    told = table_words(readme)
    for name in messages_of(session_proto):
        if name not in told:
            yield f"{MESSAGES}: the message {name} is in no table"
        # A row describes the first `word` of its second cell, and may name
        # further messages. If two rows describe one, a row is outdated.
        rows = re.findall(rf"^\| (?:rank|daemon)[^|]*\|[^|`]*`{name}`",
                          readme, re.M)
        if len(rows) > 1:
            yield f"{MESSAGES}: the message {name} has {len(rows)} rows"


def check_rpcs(admin_proto, readme, files):
    """Every RPC is in a table and has a caller. Tests are no callers.
    daemon/checks.cc is one: a new daemon asks the one that serves."""
    told = table_words(readme)
    callers = "\n".join(t for p, t in files.items()
                        if p.startswith(("client/", "daemon/check")))
    for name in re.findall(r"^\s*rpc (\w+)\(", admin_proto, re.M):
        if name not in told:
            yield f"{RPCS}: the RPC {name} is in no table"
        if not re.search(rf"::Stub::{name}\b|stub\.{name}\(", callers):
            yield f"proto/admin/admin.proto: no program calls the RPC {name}"
