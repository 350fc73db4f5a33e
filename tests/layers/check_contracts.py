"""Rules for what other processes see: metrics, messages, RPCs.

Each is in the table of its folder's README.md, and each RPC is called.
"""

import re

METRICS = "daemon/metrics/README.md"
LABELS = {"sluice_job"}  # label names, not metrics
MESSAGES = "proto/README.md"
RPCS = "proto/admin/README.md"


def table_words(readme):
    """Every `word` of the tables, without labels in braces."""
    words = set()
    for line in readme.splitlines():
        if line.startswith("|"):
            words |= {w.split("{")[0] for w in re.findall(r"`([^`]+)`", line)}
    return words


def check_metrics(files, readme):
    """files: {path: text}; both directions."""
    made = set()
    for path, text in files.items():
        if path.startswith("daemon/metrics/") and path.endswith((".cc", ".h")):
            made |= set(re.findall(r'"(sluice_[a-z0-9_]+)"', text))
    made -= LABELS
    told = {w for w in table_words(readme) if w.startswith("sluice_")}
    for name in sorted(made - told):
        yield f"{METRICS}: the metric {name} is in no table"
    for name in sorted(told - made):
        yield f"{METRICS}: there is no metric {name}"


def messages_of(session_proto):
    """Every message that a Request, a Reply or an Event can be."""
    for name in ("Request", "Reply", "Event"):
        body = re.search(rf"^message {name} {{(.*?)^}}", session_proto,
                         re.M | re.S).group(1)
        yield from re.findall(r"^\s+(\w+) \w+ = \d+;", body, re.M)


def check_messages(session_proto, readme):
    told = table_words(readme)
    for name in messages_of(session_proto):
        if name not in told:
            yield f"{MESSAGES}: the message {name} is in no table"
        # What a row is about is the first word of its cell: of two rows one
        # is older than the other.
        rows = re.findall(rf"^\| (?:rank|daemon)[^|]*\|[^|`]*`{name}`",
                          readme, re.M)
        if len(rows) > 1:
            yield f"{MESSAGES}: the message {name} has {len(rows)} rows"


def check_rpcs(admin_proto, readme, files):
    """A test is no caller: it keeps nothing alive. The next daemon is one."""
    told = table_words(readme)
    callers = "\n".join(t for p, t in files.items()
                        if p.startswith(("client/", "daemon/check_")))
    for name in re.findall(r"^\s*rpc (\w+)\(", admin_proto, re.M):
        if name not in told:
            yield f"{RPCS}: the RPC {name} is in no table"
        if not re.search(rf"::Stub::{name}\b|stub\.{name}\(", callers):
            yield f"proto/admin/admin.proto: nobody calls the RPC {name}"
