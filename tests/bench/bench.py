#!/usr/bin/env python3
"""Runs the benchmarks, prints one table: bench.py --bin DIR [NAME…].

A benchmark is a program bench-NAME in DIR that takes `--json FILE` and writes
a list of {"name", "value", "unit", "target", "better", "detail"} into it;
what it compares, it measures side by side in the one run. `better` is "lower"
or "higher"; `target` may be null: then the figure is only shown.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

KNOWN = ["ipc", "grant", "attention", "overlap", "planner"]
FIELDS = {"name", "value", "unit", "target", "better", "detail"}


def checked(entry, origin):
    missing = FIELDS - set(entry)
    if missing:
        raise ValueError(f"{origin}: an entry lacks {sorted(missing)}")
    if entry["better"] not in ("lower", "higher"):
        raise ValueError(f"{origin}: better is '{entry['better']}', must be "
                         "lower or higher")
    return entry


def verdict(entry):
    if entry["target"] is None:
        return ""
    met = (entry["value"] <= entry["target"] if entry["better"] == "lower"
           else entry["value"] >= entry["target"])
    return "met" if met else "MISSED"


def run(binary):
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        subprocess.run([binary, "--json", out.name], check=True,
                       stdin=subprocess.DEVNULL, stdout=sys.stderr)
        with open(out.name, encoding="utf-8") as file:
            entries = json.load(file)
    if not entries:
        raise ValueError(f"{binary}: wrote no entry")
    return [checked(entry, os.path.basename(binary)) for entry in entries]


def number(value):
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def rows(entries):
    for entry in entries:
        sign = "<=" if entry["better"] == "lower" else ">="
        target = ("" if entry["target"] is None
                  else f"{sign} {number(entry['target'])}")
        yield (entry["name"], number(entry["value"]), entry["unit"], target,
               verdict(entry))


def show(entries):
    table = [("benchmark", "value", "unit", "target", "verdict"),
             *rows(entries)]
    widths = [max(len(row[i]) for row in table) for i in range(5)]
    for name, value, unit, target, judged in table:
        print(f"{name:<{widths[0]}}  {value:>{widths[1]}}  "
              f"{unit:<{widths[2]}}  {target:<{widths[3]}}  {judged}".rstrip())


def parse_arguments():
    parser = argparse.ArgumentParser(prog="./dev bench",
                                     description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME",
                        help="of " + ", ".join(KNOWN) + "; default: all")
    parser.add_argument("--bin", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--json", metavar="FILE", help="write the list here")
    arguments = parser.parse_args()
    for name in arguments.names:
        if name not in KNOWN:
            parser.exit(2, f"error: no benchmark '{name}'; there are: "
                        f"{' '.join(KNOWN)}\n")
    return arguments


def main():
    arguments = parse_arguments()
    entries, failed = [], []
    for name in arguments.names or KNOWN:
        binary = os.path.join(arguments.bin, "bench-" + name)
        if not os.path.exists(binary):
            print(f"error: bench: {name}: there is no {binary}",
                  file=sys.stderr)
            failed.append(name)
            continue
        started = time.monotonic()
        print(f"bench: {name} …", file=sys.stderr, flush=True)
        try:
            entries += run(binary)
        except (subprocess.CalledProcessError, ValueError, OSError) as error:
            print(f"error: bench: {name}: {error}", file=sys.stderr)
            failed.append(name)
        print(f"bench: {name}: {time.monotonic() - started:.0f} s",
              file=sys.stderr)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(entries, file, indent=2)
            file.write("\n")
    show(entries)
    return 1 if failed or not entries else 0


if __name__ == "__main__":
    sys.exit(main())
