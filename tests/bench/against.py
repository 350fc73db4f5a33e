"""./dev bench --against REV: compares the present build with the build of REV.

REV is unpacked and built under build/against/, with the preset and compiler
cache of build/release. That folder is only read. The programs of the two builds
take turns, and the order changes in each round, so that a drift of the
machine's speed favours neither. A benchmark with a row that looks slower is run
for another `rounds` rounds and judged by all of its rounds.
"""

import json
import math
import os
import subprocess
import sys
import time

import compare
import programs

PRESET = "release"


def git(*arguments):
    return subprocess.run(["git", *arguments], capture_output=True, text=True,
                          check=False)


def resolve(revision):
    found = git("rev-parse", "--verify", "--quiet", revision + "^{commit}")
    if found.returncode != 0:
        raise programs.Usage(
            f"--against '{revision}': no such commit; give a branch, a tag or "
            "a hash (`git log --oneline` lists them)")
    return found.stdout.strip()


class Revision:
    """The tree of a commit under build/against/, and its build."""

    def __init__(self, name, commit, jobs):
        self.name = name
        self.commit = commit
        self.jobs = jobs
        self.folder = os.path.join("build", "against", commit[:12])
        self.build = os.path.join(self.folder, "build", PRESET)
        self.bin = os.path.abspath(os.path.join(self.build, "bin"))

    def step(self, what, arguments, log):
        print(f"bench: {self.name}: {what} (log: {log})", file=sys.stderr,
              flush=True)
        with open(log, "w", encoding="utf-8") as file:
            status = programs.finish(arguments, stdout=file, stderr=file)
        if status != 0:
            raise programs.Failed(f"{self.name}: {what} failed, see {log}")

    def configure(self):
        if not os.path.exists(os.path.join(self.folder, "unpacked")):
            os.makedirs(self.folder, exist_ok=True)
            self.step("unpacking", [
                "sh", "-c", 'git archive "$1" | tar -x -C "$2"', "sh",
                self.commit, self.folder], self.folder + ".log")
            with open(os.path.join(self.folder, "unpacked"), "w",
                      encoding="utf-8"):
                pass
        if not os.path.exists(os.path.join(self.build, "build.ninja")):
            deps = os.environ["SLUICE_DEPS"]
            self.step("configuring", [
                "cmake", "--preset", PRESET, "-S", self.folder,
                f"-DSLUICE_PYTHON_PACKAGES={deps}/python",
                f"-DSLUICE_PYTHON={deps}/venv/bin/python"],
                self.folder + ".configure.log")

    def targets(self):
        listing = subprocess.run(
            ["ninja", "-C", self.build, "-t", "targets", "all"],
            capture_output=True, text=True, check=True).stdout
        return {line.split(":")[0] for line in listing.splitlines()}

    def compile(self, wanted):
        started = time.monotonic()
        self.step("building " + ", ".join(wanted), [
            "ninja", "-C", self.build, "-j", str(self.jobs), *wanted],
            self.folder + ".build.log")
        print(f"bench: {self.name}: built, "
              f"{time.monotonic() - started:.0f} s", file=sys.stderr)


def shared(names, revision_targets, revision):
    """Returns the benchmarks of `names` that the revision can build. Prints the
    benchmarks that the revision cannot build or that only the revision has."""
    kept = [n for n in names
            if set(programs.targets(n)) <= revision_targets]
    for name in names:
        if name not in kept:
            print(f"bench: {name}: {revision.name} lacks it: not compared",
                  file=sys.stderr)
    own = {t[len("bench-"):] for t in revision_targets
           if t.startswith("bench-") and "/" not in t and "." not in t}
    for name in sorted(own - set(programs.KNOWN)):
        print(f"bench: {name}: only {revision.name} has it: not compared",
              file=sys.stderr)
    return kept


def measure(comparison, sides, numbers, log):
    """Runs the rounds `numbers`. `sides` has (name, folder of programs) of the
    revision and of the present build."""
    for number in numbers:
        found = {}
        for name, folder in sides if number % 2 else reversed(sides):
            started = time.monotonic()
            found[name] = programs.run(folder, comparison.bench, log)
            print(f"bench: {comparison.bench}, round {number} of "
                  f"{numbers[-1]}, {name}: "
                  f"{time.monotonic() - started:.1f} s", file=sys.stderr,
                  flush=True)
        comparison.add(*(found[name] for name, _ in sides))


def alternate(names, sides, rounds, comparisons, log):
    """Measures each benchmark with both builds in turns and appends it to
    `comparisons`, which keep the finished rounds after Ctrl-C. Returns the
    benchmarks that failed."""
    failed = []
    for name in names:
        comparison = compare.Comparison(name)
        comparisons.append(comparison)
        try:
            measure(comparison, sides, range(1, rounds + 1), log)
            if comparison.suspicious():
                print(f"bench: {name}: a row looks slower: {rounds} rounds "
                      "more", file=sys.stderr, flush=True)
                measure(comparison, sides, range(rounds + 1, 2 * rounds + 1),
                        log)
        except (programs.Failed, OSError) as error:
            print(f"error: bench: {name}: {error} (its output: {log.name})",
                  file=sys.stderr)
            failed.append(name)
    return failed


def figure(value):
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def times(value):
    return "inf" if math.isinf(value) else f"{value:.3f}"


def show(comparisons, sides):
    table = [("benchmark", sides[0][0], sides[1][0], "unit", "ratio",
              "lower", "upper", "verdict")]
    for comparison in comparisons:
        for row in comparison.rows():
            found = row["ratio"]
            table.append((
                f"{row['bench']}: {row['name']}",
                figure(compare.quantile(row["before"], 0.5)),
                figure(compare.quantile(row["after"], 0.5)), row["unit"],
                times(found["median"]), times(found["lower"]),
                times(found["upper"]), row["verdict"]))
    widths = [max(len(row[i]) for row in table) for i in range(8)]
    for row in table:
        cells = [f"{cell:<{widths[i]}}" if i in (0, 3, 7)
                 else f"{cell:>{widths[i]}}" for i, cell in enumerate(row)]
        print("  ".join(cells).rstrip())
    for comparison in comparisons:
        rounds = len(comparison.rounds)
        for name, before, after in comparison.incomplete():
            print(f"{comparison.bench}: {name}: in {before} of {rounds} "
                  f"rounds of {sides[0][0]}, in {after} of {sides[1][0]}")


def judge(comparisons):
    rows = [row for c in comparisons for row in c.rows()]
    slower = [row for row in rows if row["verdict"] == "SLOWER"]
    rule = (f"median ratio > {compare.MEDIAN_LIMIT} and lower quartile > "
            f"{compare.LOWER_QUARTILE_LIMIT}")
    return slower, (f"{len(slower) or 'no'} row{'s'[:len(slower) != 1]} of "
                    f"{len(rows)} with {rule}")


def without_infinities(value):
    """Replaces infinities by None, because JSON has no infinity."""
    if isinstance(value, dict):
        return {k: without_infinities(v) for k, v in value.items()}
    return None if isinstance(value, float) and math.isinf(value) else value


def write_json(path, revision, comparisons, verdict, complete):
    rows = [without_infinities(r) for c in comparisons for r in c.rows()]
    missing = [{"bench": c.bench, "name": name, "rounds": len(c.rounds),
                "before": before, "after": after} for c in comparisons
               for name, before, after in c.incomplete()]
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"against": revision.commit, "complete": complete,
                   "judgement": verdict, "rows": rows,
                   "not_in_every_round": missing}, file, indent=2)
        file.write("\n")


def main(arguments, names):
    """Returns the exit status: 0; 1 if a row has regressed or a benchmark
    failed; 130 after Ctrl-C."""
    revision = Revision(arguments.against, resolve(arguments.against),
                        arguments.jobs)
    revision.configure()
    names = shared(names, revision.targets(), revision)
    if not names:
        raise programs.Failed("no benchmark is in both builds")
    revision.compile([t for n in names for t in programs.targets(n)])
    sides = ((arguments.against, revision.bin),
             ("present", os.path.abspath(arguments.bin)))
    comparisons, failed, complete = [], [], False
    try:
        with open(os.path.join("build", "against", "runs.log"), "w",
                  encoding="utf-8") as log:
            failed = alternate(names, sides, arguments.rounds, comparisons,
                               log)
        complete = not failed
    except KeyboardInterrupt:
        print("bench: interrupted; rows measured so far:",
              file=sys.stderr)
    slower, verdict = judge(comparisons)
    show(comparisons, sides)
    print(verdict)
    if arguments.json:
        write_json(arguments.json, revision, comparisons, verdict, complete)
    if not complete and not failed:
        return 130
    return 1 if slower or failed else 0
