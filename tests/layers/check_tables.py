#!/usr/bin/env python3
"""Checks that what others rely on stands in a README's table:
check_tables.py ROOT.

Every metric of daemon/metrics, every message of the session socket and every
call of the administrators' service; and no call without a caller in sluicectl.
Prints a line a violation and exits 1 if there is any."""

import os
import re
import sys


def documented_metrics(readme):
    """Names in backticks; `_suffix` stands for a name before it in its row,
    of which it replaces the end."""
    names = set()
    for row in readme.splitlines():
        full = ""
        for name in re.findall(r"`(_?\w+)[^`]*`", row):
            if name.startswith("_"):
                parts = full.split("_")
                names.update("_".join(parts[:i]) + name
                             for i in range(1, len(parts) + 1))
            else:
                full = name
                names.add(name)
    return names


def metrics(source):
    return re.findall(r'"((?:sluice|process)_\w+)"', source)


def messages(proto):
    """Of the oneofs of Request, Reply and Event."""
    for block in re.findall(r"^message (?:Request|Reply|Event) {(.*?)^}", proto,
                            re.S | re.M):
        yield from re.findall(r"^\s+([A-Z]\w+) \w+ = \d+;", block, re.M)


def calls(proto):
    return re.findall(r"^\s+rpc (\w+)\(", proto, re.M)


def check(read):
    """`read` gives a file's text."""
    known = documented_metrics(read("daemon/metrics/README.md"))
    for name in metrics(read("daemon/metrics/prometheus_text.cc")):
        if name not in known:
            yield f"daemon/metrics/README.md: metric {name} is missing"
    table = read("proto/README.md")
    for name in messages(read("proto/session.proto")):
        if f"`{name}`" not in table:
            yield f"proto/README.md: message {name} is missing"
    admin, callers = read("proto/admin/README.md"), read("client/ctl/admin.cc")
    for name in calls(read("proto/admin/admin.proto")):
        if f"`{name}`" not in admin:
            yield f"proto/admin/README.md: call {name} is missing"
        if f"stub->{name}(" not in callers:
            yield f"proto/admin/admin.proto: nobody calls {name}"


def main():
    def read(path):
        with open(os.path.join(sys.argv[1], path), encoding="utf-8") as file:
            return file.read()

    problems = list(check(read))
    print("\n".join(problems) or "every table is whole")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
