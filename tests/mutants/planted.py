#!/usr/bin/env python3
"""Removes each statement listed in planted.txt and checks that the test, or
the lock analysis, named there detects that. The statements stand for kinds of
defects that the tests must find."""

import dataclasses
import os
import subprocess
import sys

import mutants
import sites

sys.path.insert(0, os.path.join(mutants.ROOT, "tests/run"))
import inventory
import suite

TREE = os.path.join(mutants.ROOT, "build/mutants/planted/tree")
LOCKS = "locks"


@dataclasses.dataclass(frozen=True)
class Defect:
    test: str
    path: str
    statement: str

    def site(self):
        """Returns the first site of the statement in its file. The site's
        planted line runs the statement unless the switch is on."""
        line, text = next(
            (i + 1, line) for i, line in enumerate(
                mutants.read(self.path).split("\n"))
            if line.strip() == self.statement)
        without = (f"{{ if (!ON) {self.statement} }}"
                   if self.path.endswith(".cc")
                   else f"if not ON: {self.statement}")
        return sites.Site(self.path, line, self.statement, "", text.replace(
            self.statement, without))


class Planted(mutants.Draw):
    def __init__(self, defects):
        self.drawn = [defect.site() for defect in defects]

    def add(self, room, at=None):
        sys.exit(f"error: planted: {self.drawn[at]} does not compile")


def read():
    with open(os.path.join(mutants.HERE, "planted.txt"),
              encoding="utf-8") as file:
        lines = [line.strip() for line in file if not line.startswith("#")]
    return [Defect(test, path, statement) for test, rest in (
                line.split(" ", 1) for line in lines)
            for path, statement in [rest.split(": ", 1)]]


def found_by_tests(defects):
    """Yields (defect, found, the test's tier); found: the test passes with the
    statement and fails without it."""
    for number, defect in enumerate(defects):
        [entry] = suite.entries(os.path.join(TREE, "build/release"),
                                ["-R", f"^{defect.test}$"])
        found = mutants.run(entry, 600)[0] and not mutants.run(
            entry, 600, SLUICE_MUTANT=str(number))[0]
        yield defect, found, inventory.tier_of(entry.labels)


def found_by_analysis(defects):
    """Removes the statements from the tree and runs the lock analysis once.
    Yields, for each defect, whether the analysis names its file."""
    for defect in defects:
        path = os.path.join(TREE, defect.path)
        with open(path, encoding="utf-8") as file:
            text = file.read()
        with open(path, "w", encoding="utf-8") as file:
            file.write(text.replace(defect.statement, "", 1))
    said = subprocess.run(
        [sys.executable, "deploy/lint/locks.py", "build/release"], cwd=TREE,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout
    for defect in defects:
        yield defect, defect.path in said, "ci"


def main():
    defects = read()
    locks = [defect for defect in defects if defect.test == LOCKS]
    others = [defect for defect in defects if defect.test != LOCKS]
    Planted(others).build(TREE)
    missed = 0
    for defect, found, tier in (*found_by_tests(others),
                                *found_by_analysis(locks)):
        missed += not found
        print(f"planted: {'found' if found else 'NOT FOUND'} by {defect.test} "
              f"({tier}): {defect.path}: {defect.statement}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
