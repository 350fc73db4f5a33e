#!/usr/bin/env python3
"""Every test of training is on the fake CUDA driver too, or told why not:
check_fakes.py ROOT BUILD.

A test of training has the label gradient or poison, or is a whole run of
sluice-train (train_NAME; those of one library are train_NAME_test). It is there
when there is a test NAME_on_fake_cuda, or when it runs on the fakes itself;
else it is in the table "Only on sim" of tests/fake_cuda/README.md.
Prints one line per violation and exits 1 if there is any.
"""

import json
import pathlib
import re
import subprocess
import sys

README = "tests/fake_cuda/README.md"
HEADING = "### Only on sim"
LABELS = {"gradient", "poison"}
ON_FAKES = "_on_fake_cuda"


def told(readme):
    """Name -> reason, of the table; a row may have several names."""
    _, _, section = readme.partition(HEADING + "\n")
    section = re.split("(?m)^#", section)[0]
    rows = re.findall(r"(?m)^\| (`.*?`) \| (.*) \|$", section)
    return {name: reason for names, reason in rows
            for name in re.findall(r"`(\w+)`", names)}


def of_training(name, labels):
    return bool(LABELS & set(labels)) or (
        name.startswith("train_") and not name.endswith("_test"))


def check(tests, readme, cmake):
    """tests: name -> (labels, environment as one text); cmake: all
    CMakeLists.txt of tests/, as a preset has not every test."""
    reasons = told(readme)
    for name, (labels, environment) in sorted(tests.items()):
        if not of_training(name, labels):
            continue
        there = "/fake_cuda" in environment or name + ON_FAKES in tests
        if there and name in reasons:
            yield f"{README}: {name} is on the fakes, but in '{HEADING}'"
        if not there and not reasons.get(name, "").strip():
            yield (f"{README}: {name} is not on the fakes: add {name}"
                   f"{ON_FAKES}, or a row with the reason to '{HEADING}'")
    for name in sorted(reasons):
        if not re.search(rf"\b{name.removeprefix('train_')}\b", cmake):
            yield f"{README}: '{HEADING}' has {name}, and there is no such test"


def tests_of(build):
    listed = json.loads(subprocess.run(
        ["ctest", "--test-dir", build, "--show-only=json-v1"], check=True,
        stdout=subprocess.PIPE, text=True).stdout)
    tests = {}
    for test in listed["tests"]:
        properties = {p["name"]: p["value"] for p in test["properties"]}
        tests[test["name"]] = (properties.get("LABELS", []),
                               "\n".join(properties.get("ENVIRONMENT", [])))
    return tests


def main(root, build):
    with open(f"{root}/{README}", encoding="utf-8") as file:
        readme = file.read()
    cmake = "\n".join(path.read_text(encoding="utf-8") for path in
                      pathlib.Path(root, "tests").rglob("CMakeLists.txt"))
    violations = list(check(tests_of(build), readme, cmake))
    print("\n".join(violations))
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
