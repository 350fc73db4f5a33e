#!/usr/bin/env python3
"""Every test of training also runs on the fake CUDA driver, or has a reason
why not: check_fakes.py ROOT BUILD.

A test of training has the label gradient or poison, or is a whole run of
sluice-train (train_NAME; train_NAME_test tests one library). It runs on the
fakes if there is a test NAME_on_fake_cuda, or if it uses the fakes itself.
Otherwise it must be in the table "Only on sim" of tests/fake_cuda/README.md. A
test that runs only some of its cases on the fakes must run all of them with
--deep, as NAME_whole_on_fake_cuda, or be in the table "Only in part" with the
selection of cases in its command. A case that the source skips on the fakes
must be in that table, too. Prints one line per violation and exits 1 if there
is any.
"""

import json
import pathlib
import re
import subprocess
import sys
import typing

README = "tests/fake_cuda/README.md"
HEADING = "### Only on sim"
IN_PART = "### Only in part"
LABELS = {"gradient", "poison"}
ON_FAKES = "_on_fake_cuda"
WHOLE = "_whole" + ON_FAKES


class Test(typing.NamedTuple):
    labels: list
    environment: str  # NAME=VALUE pairs as one text
    command: list


def section(readme, heading):
    _, _, behind = readme.partition(heading + "\n")
    return re.split("(?m)^#", behind)[0]


def told(readme):
    """Returns name -> reason of the table "Only on sim". A row may have several
    names."""
    rows = re.findall(r"(?m)^\| (`.*?`) \| (.*) \|$",
                      section(readme, HEADING))
    return {name: reason for names, reason in rows
            for name in re.findall(r"`(\w+)`", names)}


def told_in_part(readme):
    """Returns (name, selected or skipped cases) -> reason of the table "Only in
    part"."""
    rows = re.findall(r"(?m)^\| `(\w+)` \| `([^`]+)` \| (.*) \|$",
                      section(readme, IN_PART))
    return {(name, cases): reason for name, cases, reason in rows}


def selected(command):
    """Returns what selects some of a program's cases, or "" if it runs all."""
    for word in command:
        if word.startswith("--gtest_filter="):
            return word.partition("=")[2]
    scripts = [i for i, word in enumerate(command) if word.endswith(".py")]
    return " ".join(command[scripts[0] + 1:]) if scripts else ""


def skipped(source):
    """Yields SUITE.CASE of the cases that a test's source skips on CUDA."""
    cases = re.split(r"(?m)^(?=TEST\w*\()", source)[1:]
    for case in cases:
        if re.search(r"if \(OnCuda\(\)\) GTEST_SKIP", case):
            yield ".".join(re.match(r"TEST\w*\((\w+),\s*(\w+)\)",
                                    case).groups())


def in_part(tests, readme, sources):
    """Yields violations of the rules for tests that run in part. sources: test
    NAME -> the text of NAME.cc."""
    reasons = told_in_part(readme)
    known = set()
    for name, test in sorted(tests.items()):
        if not name.endswith(ON_FAKES) or name.endswith(WHOLE):
            continue
        base = name.removesuffix(ON_FAKES)
        whole = tests.get(base + WHOLE)
        cases = selected(test.command)
        left_out = {case: "leave it in"
                    for case in skipped(sources.get(base, ""))}
        if cases:
            known.add((base, cases))
            if whole is None:
                left_out[cases] = f"add {base}{WHOLE} with the label deep"
            elif selected(whole.command) or "deep" not in whole.labels:
                yield f"{base}{WHOLE}: not all of {base}, or not deep"
        known |= {(base, case) for case in left_out}
        for case, instead in left_out.items():
            if not reasons.get((base, case), "").strip():
                yield (f"{README}: {base} is there without some of its cases "
                       f"({case}): {instead}, or a row with the reason to "
                       f"'{IN_PART}'")
    for name, cases in sorted(reasons):
        # The preset of this build may lack the test.
        if name + ON_FAKES in tests and (name, cases) not in known:
            yield (f"{README}: '{IN_PART}' has {cases} of {name}, but the "
                   "fakes no longer leave them out")


def of_training(name, labels):
    # The poisoned or whole form of a test is covered if the test itself is.
    if name.endswith(("_poisoned", "_whole")):
        return False
    return bool(LABELS & set(labels)) or (
        name.startswith("train_") and not name.endswith("_test"))


def check(tests, readme, cmake, sources):
    """Yields all violations. tests: name -> Test; cmake: all CMakeLists.txt of
    tests/, because a preset does not have every test; sources: as in in_part.
    """
    reasons = told(readme)
    yield from in_part(tests, readme, sources)
    for name, test in sorted(tests.items()):
        if not of_training(name, test.labels):
            continue
        there = "/fake_cuda" in test.environment or name + ON_FAKES in tests
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
        tests[test["name"]] = Test(properties.get("LABELS", []),
                                   "\n".join(properties.get("ENVIRONMENT", [])),
                                   # The command without tests/run/launch.py.
                                   test.get("command", [])[1:])
    return tests


def main(root, build):
    with open(f"{root}/{README}", encoding="utf-8") as file:
        readme = file.read()
    folder = pathlib.Path(root, "tests")
    cmake = "\n".join(path.read_text(encoding="utf-8") for path in
                      folder.rglob("CMakeLists.txt"))
    sources = {path.stem: path.read_text(encoding="utf-8") for path in
               folder.rglob("*_test.cc")}
    violations = list(check(tests_of(build), readme, cmake, sources))
    print("\n".join(violations))
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
