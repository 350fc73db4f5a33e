#!/usr/bin/env python3
"""Lists all tests, one per line with the first tier that runs it:
inventory.py BUILD_DIR [PYTHON]

  ctest    tier  entry
  gtest    tier  program Suite.Case
  script   tier  path Class.test_name
  pytest   tier  path::test_name       (needs PYTHON with pytest and torch)

Compare the lists of two commits by `diff` or `comm` to find lost tests. All
programs must be built (targets all, ci_programs, deep_programs).
"""

import ast
import json
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
TIERS = ("test", "ci", "deep")


def tier_of(labels):
    return "deep" if {"deep", "bench"} & labels else \
        "ci" if "ci" in labels else "test"


def gtest_cases(program, arguments, environment):
    """Returns Suite.Case of each case that the filter selects."""
    listed = subprocess.run(
        [program, "--gtest_list_tests",
         *(word for word in arguments if word.startswith("--gtest_filter"))],
        env={**os.environ, **environment}, capture_output=True, text=True)
    suite, found = "", []
    for line in listed.stdout.splitlines():
        name = line.split("#")[0].rstrip()
        if name and not name.startswith(" "):
            suite = name if name.endswith(".") else ""
        elif name and suite:
            found.append(suite + name.strip())
    return found


def script_cases(path):
    """Returns Class.test_name of each case of a unittest file, without running
    it."""
    with open(path, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    return [f"{node.name}.{each.name}" for node in tree.body
            if isinstance(node, ast.ClassDef) for each in node.body
            if isinstance(each, ast.FunctionDef)
            and each.name.startswith("test")]


def pytest_cases(python, path, environment):
    listed = subprocess.run(
        [python, "-m", "pytest", "-q", "--collect-only", "-p",
         "no:cacheprovider", path], cwd=os.path.dirname(path),
        capture_output=True, text=True, env={
            **os.environ, **environment,
            "PYTHONPATH": os.path.join(ROOT, "client/python")})
    return [line.split("::", 1)[1] for line in listed.stdout.splitlines()
            if "::" in line]


def is_program(path):
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"\x7fELF"
    except OSError:
        return False


class Inventory:

    def __init__(self, python):
        self.python = python
        self.tiers = {}  # (kind, name): tier
        self.collected = {}  # (path, environment): pytest's ids

    def add(self, tier, kind, *names):
        for name in names:
            known = self.tiers.get((kind, name), "deep")
            self.tiers[kind, name] = min(tier, known, key=TIERS.index)

    def read(self, test):
        properties = {p["name"]: p["value"]
                      for p in test.get("properties", [])}
        tier = tier_of(set(properties.get("LABELS", [])))
        self.add(tier, "ctest", test["name"])
        words = [word for word in test.get("command", [])
                 if os.path.basename(word) != "launch.py"]
        if words and is_program(words[0]) and words[0].startswith(
                os.path.realpath(sys.argv[1])):
            environment = dict(each.split("=", 1)
                               for each in properties.get("ENVIRONMENT", [])
                               if each.startswith("GTEST_FILTER"))
            program = os.path.basename(words[0])
            self.add(tier, "gtest", *(
                f"{program} {case}" for case in gtest_cases(
                    words[0], words[1:], environment)))
        deep = tuple(each for each in properties.get("ENVIRONMENT", [])
                     if each.startswith("SLUICE_DEEP"))
        for word in words[1:]:
            if word.endswith("_test.py") and os.path.isfile(word):
                self.read_script(tier, word, words, deep)

    def read_script(self, tier, path, words, environment):
        name = os.path.relpath(path, ROOT)
        if name.startswith("tests/python/"):
            key = path, environment
            if self.python and key not in self.collected:
                self.collected[key] = pytest_cases(
                    self.python, path, dict(
                        each.split("=") for each in environment))
            self.add(tier, "pytest", *(
                f"{name}::{each}" for each in self.collected.get(key, ())))
            return
        cases = script_cases(path)
        # An entry's command may name the tests that it runs.
        chosen = [case for case in cases if case in words]
        self.add(tier, "script", *(
            f"{name} {case}" for case in chosen or cases))


def main():
    listed = subprocess.run(
        ["ctest", "--test-dir", sys.argv[1], "--show-only=json-v1"],
        check=True, capture_output=True, text=True)
    inventory = Inventory(sys.argv[2] if sys.argv[2:] else "")
    for test in json.loads(listed.stdout)["tests"]:
        inventory.read(test)
    for (kind, name), tier in sorted(inventory.tiers.items()):
        print(f"{kind}\t{tier}\t{name}")


if __name__ == "__main__":
    main()
