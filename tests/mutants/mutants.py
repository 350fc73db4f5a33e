#!/usr/bin/env python3
"""Measures how many defects the tests find. A seed draws single-statement
mutants from all production code, in proportion to the lines of each folder. The
tests that reach a mutant run until one fails: first tests that share a word
with the mutant's path, then short tests that reach few mutants. Mutants that no
test finds are listed.

All mutants are built at once, each behind a switch (mutant schemata; Untch,
Offutt and Harrold 1993): SLUICE_MUTANT=N turns mutant N on. One run of each
test records which mutants it reaches; for Python, which cases reach them. Unit
tests run first, then Python's, then integration tests, each kind only on the
mutants that are not found yet. A run continues an earlier run of the same draw.
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time

import sites

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "tests/run"))
import suite  # noqa: E402

LEAST_FOUND = 0.85
CASES = 10  # the most cases of a Python test that run for a mutant
KINDS = [suite.OWN_PROGRAM_ONLY, {"python"}, {"integration", "attacks"}]
TESTS = ["-LE", "^(root|deep|bench|package)$",
         "-E", "^(layers|lint|mutants)_|^run_(launch|plain_user|run)$"]


def git(*words):
    return subprocess.run(["git", "-C", ROOT, *words], check=True,
                          capture_output=True, text=True).stdout


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


class Draw:
    """The drawn sites, each on its own line. A mutant's number is the index of
    its site in `drawn`."""

    def __init__(self, count, seed, room):
        self.drawn = []
        self.rooms = collections.defaultdict(list)
        lines = collections.Counter()
        for path in git("ls-files", *sites.PRODUCTION).split():
            if not path.startswith(room):
                continue
            text = read(path)
            lines[os.path.dirname(path)] += text.count("\n")
            self.rooms[os.path.dirname(path)] += sites.of(path, text)
        if not lines:
            sys.exit(f"error: mutants: --room {room}: no folder with "
                     "production code begins with this")
        chosen = random.Random(seed)
        for found in self.rooms.values():
            chosen.shuffle(found)
        for room in chosen.choices(sorted(lines), k=count,
                                   weights=[lines[r] for r in sorted(lines)]):
            self.add(room)

    def add(self, room, at=None):
        """Draws another site of the room and appends it, or replaces number
        `at`."""
        taken = {(site.path, site.line) for site in self.drawn}
        while self.rooms[room]:
            site = self.rooms[room].pop()
            if (site.path, site.line) not in taken:
                break
        else:
            sys.exit(f"error: mutants: {room} has no more lines to change: "
                     "give a smaller --count")
        if at is None:
            self.drawn.append(site)
        else:
            self.drawn[at] = site

    def build(self, tree):
        """Builds all mutants in a clone. Replaces mutants that do not compile
        or cause warnings."""
        shutil.rmtree(tree, ignore_errors=True)
        subprocess.run(["git", "clone", "-q", ROOT, tree], check=True)
        shutil.copy(os.path.join(HERE, "sluice_mutant.py"),
                    os.path.join(tree, "client/python"))
        stale = {site.path for site in self.drawn}
        while stale:
            for path in stale:
                mine = [(i, site) for i, site in enumerate(self.drawn)
                        if site.path == path]
                with open(os.path.join(tree, path), "w",
                          encoding="utf-8") as file:
                    file.write(sites.planted(path, read(path), mine))
            done = subprocess.run(
                [os.path.join(tree, "dev"), "build", "release", "--keep-going",
                 "--target", "all", "--target", "ci_programs"],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            wrong = {(path, int(line)) for path, line in re.findall(
                r"(?:^|[ /])((?:client|daemon|kernels|planner|proto)/"
                r"\S+?\.(?:cc|h)):(\d+):\d+: "
                r"(?:fatal error|error|note: in expansion of macro)",
                done.stdout, re.MULTILINE)}
            bad = [i for i, site in enumerate(self.drawn)
                   if (site.path, site.line) in wrong]
            if done.returncode and not bad:
                sys.exit("error: mutants: the build failed:\n"
                         f"{done.stdout[-3000:]}")
            stale = {self.drawn[i].path for i in bad}
            for i in bad:
                self.add(os.path.dirname(self.drawn[i].path), i)
                stale.add(self.drawn[i].path)
            print(f"mutants: {len(bad)} do not compile", flush=True)


def run(entry, limit, **more):
    """Runs the test; returns whether it passes, and its seconds."""
    started = time.monotonic()
    status = subprocess.run(
        entry.command, cwd=entry.folder, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, **entry.environment, **more,
             "SLUICE_TEST_LIMIT": str(limit), "GTEST_FAIL_FAST": "1",
             "PYTEST_ADDOPTS": "-x"}).returncode
    if status < 0:  # Ctrl-C ends the launchers, too
        raise KeyboardInterrupt
    return status == 0, time.monotonic() - started


def look(entry, folder):
    """Runs the test with all mutants off. Returns which mutants it reaches
    (for Python also the cases that reach each), its seconds, and whether it
    passes."""
    here = os.path.join(folder, "reached", entry.name)
    shutil.rmtree(here, ignore_errors=True)
    os.makedirs(here)
    passed, seconds = run(entry, 900, SLUICE_MUTANTS_REACHED=here)
    reached = {number: read(os.path.join(here, number)).splitlines()
               for number in os.listdir(here)}
    return {"name": entry.name, "seconds": seconds, "passed": passed,
            "reached": reached}


def cases_of(entry, look, number):
    """Returns the entry to run. A Python test runs at most CASES of the cases
    that reach the mutant: those that reach the fewest mutants."""
    reach = collections.Counter(case for each in look["reached"].values()
                                for case in each)
    cases = sorted(look["reached"][number], key=reach.get)[:CASES]
    if not cases or "" in cases:  # "" is recorded while a module is imported
        return entry
    files = [word for word in entry.command if word.endswith("_test.py")]
    return dataclasses.replace(entry, command=[
        word for word in entry.command if word not in files] + [
        file + case[len(name):] for case in cases
        for name in [case.partition("::")[0]]
        for file in files if file.endswith("/" + name)])


def judge(name, site, tests, budget):
    """Runs tests until one finds the mutant, for at most `budget` seconds.
    Returns the mutant's row. `tests` has a (row of `look`, entry) for each test
    that reaches the mutant."""
    number = name.split()[0]
    row = {"name": name, "site": str(site), "room": os.path.dirname(
        site.path), "said": "survived" if tests else "not reached", "by": []}
    words = set(re.split(r"[/._]", site.path))

    def order(test):
        return (-len(words.intersection(test[1].name.split("_"))),
                test[0]["seconds"] * len(test[0]["reached"]))
    spent = 0.0
    for look, entry in sorted(tests, key=order):
        if spent + look["seconds"] > budget:
            continue
        passed, took = run(cases_of(entry, look, number),
                           30 + 3 * look["seconds"], SLUICE_MUTANT=number)
        spent += took
        row["by"].append(entry.name)
        if not passed:
            return {**row, "said": "found", "by": [entry.name],
                    "seconds": round(took)}
    return row


def remembered(path, work, keys, arguments):
    """Calls `work` for each of the `arguments` in parallel, unless `path` has
    the argument's row from an earlier run. Returns all rows by key."""
    rows = {}
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            rows = {row["name"]: row for row in map(json.loads, file)}
    with open(path, "a", encoding="utf-8") as file, \
            concurrent.futures.ThreadPoolExecutor(os.cpu_count() + 1) as pool:
        for done in concurrent.futures.as_completed(
                [pool.submit(work, *words) for key, words in zip(
                    keys, arguments, strict=True) if key not in rows]):
            try:
                row = done.result()
            except KeyboardInterrupt:
                pool.shutdown(cancel_futures=True)
                raise
            rows[row["name"]] = row
            file.write(json.dumps(row) + "\n")
            file.flush()
            print("mutants:", row.get("site", row["name"]), row.get(
                "said", f"reaches {len(row.get('reached', []))}"), flush=True)
    return rows


def table(rows, equivalent):
    """Prints the table; returns whether enough mutants were found."""
    rooms = collections.defaultdict(collections.Counter)
    for row in rows:
        said = row["said"]
        if said != "found":
            same = re.sub(r":\d+:", ":", row["site"], count=1) in equivalent
            said = "equivalent" if same else said
            print(f"{said}: {row['site']} ({len(row['by'])} tests)")
        for room in row["room"], "all":
            rooms[room][said] += 1
    print(f"\n{'room':30} found  of  %")
    for room, counts in sorted(rooms.items()):
        of = sum(counts.values()) - counts["equivalent"]
        print(f"{room:30} {counts['found']:5} {of:3} "
              f"{100 * counts['found'] / max(of, 1):3.0f}")
    of = rooms["all"].total() - rooms["all"]["equivalent"]
    return rooms["all"]["found"] >= LEAST_FOUND * of


def main():
    parser = argparse.ArgumentParser(
        prog="./dev mutants", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    head = git("rev-parse", "--short=8", "HEAD").strip()
    parser.add_argument("--seed", help="of the draw; default: the commit",
                        default=head)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--room", default="", help="draw only from folders "
                        "that begin with this, such as daemon/core")
    parser.add_argument("--tests", default="", metavar="REGEX",
                        help="run only tests that match; others may find "
                        "the mutants that these miss")
    parser.add_argument("--budget", type=float, default=300, metavar="SECONDS",
                        help="limit on the time that tests of one kind take "
                        "for a mutant (%(default)g)")
    given = parser.parse_args()
    folder = os.path.join(ROOT, "build/mutants", "-".join(
        [*dict.fromkeys([head, given.seed]), str(given.count),
         *given.room.split("/")]))
    tree = os.path.join(folder, "tree")
    draw = Draw(given.count, given.seed, given.room)
    os.makedirs(folder, exist_ok=True)
    known = os.path.join(folder, "sites.json")
    if os.path.exists(known):
        with open(known, encoding="utf-8") as file:
            draw.drawn = [sites.Site(**site) for site in json.load(file)]
    else:
        draw.build(tree)
        with open(known, "w", encoding="utf-8") as file:
            json.dump([vars(site) for site in draw.drawn], file, indent=1)
    entries = suite.entries(os.path.join(tree, "build/release"), [
        *TESTS, *(["-R", given.tests] if given.tests else [])])
    left, judged = dict(enumerate(draw.drawn)), {}
    for k, kind in enumerate(KINDS):
        mine = [entry for entry in entries if entry.labels & kind]
        looked = remembered(os.path.join(folder, "tests.jsonl"), look,
                            [entry.name for entry in mine],
                            [(entry, folder) for entry in mine])
        said = remembered(
            os.path.join(folder, "judged.jsonl"), judge,
            [f"{number} {k}" for number in left],
            [(f"{number} {k}", site, [
                (looked[entry.name], entry) for entry in mine
                if looked[entry.name]["passed"]
                and str(number) in looked[entry.name]["reached"]],
              given.budget)
             for number, site in left.items()])
        for number in [*left]:
            row, before = said[f"{number} {k}"], judged.get(number)
            judged[number] = row if before is None or row["by"] else before
            if row["said"] == "found":
                del left[number]
    same = read("tests/mutants/equivalent.txt").splitlines()
    return 0 if table(judged.values(), same) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
