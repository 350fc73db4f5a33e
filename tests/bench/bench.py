#!/usr/bin/env python3
"""Runs the benchmarks and prints one table: bench.py --bin DIR [NAME…].

With --against REV the builds of REV and of this tree take turns, and each row
is judged (against.py). programs.py says what a benchmark is.
"""

import argparse
import json
import sys
import time

import against
import programs

EXAMPLES = """examples:
  ./dev bench                          all of them, once, with their targets
  ./dev bench ipc grant --json out.json
  ./dev bench --against main           have my changes made anything slower?
  ./dev bench --against HEAD~3 --rounds 9 planner
  ./dev bench gpu --call 1 --json gpu.json
"""


def verdict(entry):
    if entry["value"] is None:
        return "FAILED"
    if entry["target"] is None:
        return ""
    met = (entry["value"] <= entry["target"] if entry["better"] == "lower"
           else entry["value"] >= entry["target"])
    return "met" if met else "MISSED"


def number(value):
    if value is None:
        return "none"
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
    parser = argparse.ArgumentParser(
        prog="./dev bench", description=__doc__.splitlines()[0],
        epilog=EXAMPLES, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME",
                        help="one of " + ", ".join(programs.KNOWN) +
                        "; default: all but\ngpu and ablation, with --against "
                        "all but " +
                        ", ".join(programs.LONG))
    parser.add_argument("--bin", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--jobs", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--json", metavar="FILE", help="write the rows here")
    parser.add_argument(
        "--against", metavar="REV",
        help="build this commit under build/against/, run both builds in\n"
        "turns; exit status 1 if a row has become slower")
    parser.add_argument("--rounds", type=int, default=7, metavar="N",
                        help="with --against: runs of each build; default 7")
    parser.add_argument("--call", type=int, choices=(1, 2, 3),
                        help="gpu: only this one of its three calls of at most "
                        "five minutes;\nthe first has the deciding figures")
    parser.add_argument("--dry-run", action="store_true",
                        help="gpu: run each step with tiny sizes, Python on "
                        "the CPU")
    arguments = parser.parse_args()
    if (arguments.call or arguments.dry_run) and arguments.names != ["gpu"]:
        raise programs.Usage("only the benchmark gpu takes --call and --dry-run"
                             ": ./dev bench gpu --dry-run")
    for name in arguments.names:
        if name not in programs.KNOWN:
            raise programs.Usage(f"no benchmark '{name}'; there are: "
                                 + " ".join(programs.KNOWN))
    if arguments.rounds < 1:
        raise programs.Usage(f"--rounds {arguments.rounds}: must be at least "
                             "1; 7 tell a regression from noise")
    # Before anything is measured, checks that the file can be written.
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8"):
            pass
    return arguments


def of_gpu(arguments):
    """Returns the flags that are passed on to bench-gpu (gpu.py)."""
    return ((["--call", str(arguments.call)] if arguments.call else [])
            + (["--dry-run"] if arguments.dry_run else []))


def run_once(arguments, names):
    entries, failed = [], []
    for name in names:
        started = time.monotonic()
        print(f"bench: {name} …", file=sys.stderr, flush=True)
        try:
            entries += programs.run(
                arguments.bin, name, sys.stderr,
                *(of_gpu(arguments) if name == "gpu" else ()))
        except (programs.Failed, OSError) as error:
            print(f"error: bench: {name}: {error}", file=sys.stderr)
            failed.append(name)
        print(f"bench: {name}: {time.monotonic() - started:.0f} s",
              file=sys.stderr)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(entries, file, indent=2)
            file.write("\n")
    show(entries)
    failed += [each["name"] for each in entries if each["value"] is None]
    return 1 if failed or not entries else 0


def main():
    try:
        arguments = parse_arguments()
        names = arguments.names or programs.DEFAULT
        if arguments.against:
            if not arguments.names:
                names = [n for n in names if n not in programs.LONG]
            return against.main(arguments, names)
        return run_once(arguments, names)
    except programs.Usage as error:
        print(f"error: bench: {error}", file=sys.stderr)
        return 2
    except (programs.Failed, OSError) as error:
        print(f"error: bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
