"""One run of CTest: which entries can run, and each entry's result."""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import tempfile

# Tests with these labels run only once: a wrong gradient, a race, or a process
# that an attacker crashed must not pass at a second try.
NO_SECOND_TRY = {"gradient", "poison", "races", "attacks", "sanitize"}
# Tests with these labels start only their own program; all others also start
# programs of the product.
OWN_PROGRAM_ONLY = {"unit", "golden", "conformance", "gradient", "poison"}
PRODUCT = re.compile(r"(^|/)(sluice[^/]*|libsluice[^/]*|verify)$")

LINE = re.compile(r"^\s*\d+/\d+ Test\s+#\d+: (\S+) \.*\s*"
                  r"(Passed|\*\*\*.*?)\s+([\d.]+) sec\s*$")


@dataclasses.dataclass
class Outcome:
    name: str
    state: str  # passed, failed, flaky, skipped
    seconds: float = 0
    output: str = ""


@dataclasses.dataclass
class Entry:
    name: str
    labels: set
    command: list
    folder: str = "."
    environment: dict = dataclasses.field(default_factory=dict)


def entries(build, select):
    """Returns the tests that CTest would run."""
    listed = subprocess.run(
        ["ctest", "--test-dir", build, "--show-only=json-v1", *select],
        check=True, capture_output=True, text=True)
    found = []
    for test in json.loads(listed.stdout)["tests"]:
        properties = {p["name"]: p["value"]
                      for p in test.get("properties", [])}
        found.append(Entry(
            test["name"], set(properties.get("LABELS", [])),
            test.get("command", []), properties.get("WORKING_DIRECTORY", "."),
            dict(each.split("=", 1)
                 for each in properties.get("ENVIRONMENT", []))))
    return found


def not_built(build, targets):
    """Returns the programs and libraries, relative to `build`, that Ninja
    would link for `targets`. After a failed build these are missing or
    outdated."""
    # Reads a copy of build.ninja, because Ninja would only plan to regenerate
    # the original.
    with tempfile.NamedTemporaryFile(dir=build, suffix=".ninja") as file:
        shutil.copy(os.path.join(build, "build.ninja"), file.name)
        plan = subprocess.run(
            ["ninja", "-C", build, "-f", file.name, "-n", "-k", "0", *targets],
            capture_output=True, text=True)
    if plan.returncode:
        raise ValueError((plan.stdout + plan.stderr).strip().splitlines()[-1])
    return set(re.findall(r"\] Linking \S+ (?:executable|shared library|"
                          r"shared module) (\S+)", plan.stdout))


def blocked(build, targets, listed):
    """Returns the names of the entries that need a program of `targets` that
    was not built."""
    missing = not_built(build, targets)
    if not missing:
        return []
    paths = {os.path.join(os.path.realpath(build), path) for path in missing}
    no_product = any(PRODUCT.search(path) for path in missing)
    return [entry.name for entry in listed
            if paths & {os.path.realpath(word) for word in entry.command}
            or no_product and not entry.labels & OWN_PROGRAM_ONLY]


def named(names):
    """Returns a regular expression for CTest that matches exactly these names.
    """
    return "^(" + "|".join(map(re.escape, names)) + ")$"


class Reader:
    """Reads CTest's output line by line."""

    def __init__(self):
        self.outcomes = {}
        self.failed = None  # the failed test that prints the next lines

    def read(self, line):
        match = LINE.match(line)
        if not match:
            if self.failed and not re.match(r"^\s+Start\s+\d+: ", line):
                self.failed.output += line
            return
        name, said, seconds = match.groups()
        state = {"Passed": "passed", "***Skipped": "skipped"}.get(
            said, "failed")
        outcome = Outcome(name, state, float(seconds))
        self.outcomes[name] = outcome
        self.failed = outcome if state == "failed" else None
