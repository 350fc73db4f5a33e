#!/usr/bin/env python3
"""The tests as a plain user: plain_user.py BUILD_DIR [--names]

What root may hides defects: without CAP_SYS_RESOURCE the kernel counts the
descriptors that are on their way, without CAP_CHOWN a folder is another's. So
root runs as nobody all that can run that way, with a folder of its own for what
each test writes, and is told how many were left out, and why. Who is not root
runs nothing here: ctest's run was a plain user's.

--names prints only their names, one a line, so that ctest runs the others.
"""

import concurrent.futures
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time

NOBODY = 65534
LEFT_OUT = {"root": "they start other users", "deep": "they are long",
            "bench": "they measure", "poison": "they are of the dev build",
            "package": "they write into the build's folder",
            "python": "their environment is in root's home",
            "gradient": "they compute, and ask nothing of the system"}
UNREADABLE = "torch or a script's environment is in root's home"
BUILDS = "they write into the build's folder"


def properties(test):
    return {p["name"]: p["value"] for p in test.get("properties", [])}


def reachable(path):
    """May any user open it?"""
    path = os.path.realpath(path)
    while path != "/":
        needed = 0o1 if os.path.isdir(path) else 0o4
        if not os.stat(path).st_mode & needed:
            return False
        path = os.path.dirname(path)
    return True


def runs_as_anybody(command):
    if not reachable(command[0]):
        return False
    listed = subprocess.run(["ldd", command[0]], capture_output=True, text=True)
    libraries = [word for word in listed.stdout.split() if word[0] == "/"]
    scripts = [word for word in command[1:] if os.path.isfile(word)]
    return "not found" not in listed.stdout and all(
        reachable(path) for path in libraries + scripts)


def reason_to_leave_out(test):
    for label in properties(test).get("LABELS", []):
        if label in LEFT_OUT:
            return LEFT_OUT[label]
    if os.path.basename(test["command"][0]) == "cmake":
        return BUILDS
    # Programs that the test starts: sluice-train needs torch, for example.
    started = properties(test).get("REQUIRED_FILES", [])
    commands = [test["command"], *([program] for program in started)]
    return None if all(map(runs_as_anybody, commands)) else UNREADABLE


def runs_alone(test, workers):
    """As under ctest -j."""
    known = properties(test)
    return known.get("RUN_SERIAL") or known.get("PROCESSORS", 1) >= workers > 1


def passed(known, code, printed):
    """As ctest judges: what it looks for in the text goes before the code."""
    def finds(name):
        return any(re.search(each, printed) for each in known.get(name, []))
    if finds("FAIL_REGULAR_EXPRESSION"):
        return False
    if "PASS_REGULAR_EXPRESSION" in known:
        return finds("PASS_REGULAR_EXPRESSION")
    return code in (0, known.get("SKIP_RETURN_CODE", 0))


def run(test, folder):
    """None, or what it printed when it failed."""
    known = properties(test)
    own = tempfile.mkdtemp(dir=folder)
    os.chown(own, NOBODY, NOBODY)
    environment = {**os.environ, "TMPDIR": own, "HOME": own, "USER": "nobody",
                   **dict(entry.split("=", 1)
                          for entry in known.get("ENVIRONMENT", []))}
    try:
        done = subprocess.run(
            test["command"], cwd=own, env=environment, user=NOBODY,
            group=NOBODY, extra_groups=[], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=known.get("TIMEOUT", 600), errors="replace", text=True)
    except subprocess.TimeoutExpired as error:
        return f"{error}"
    return None if passed(known, done.returncode, done.stdout) else done.stdout


def choose(build):
    """The tests that run here, and how many do not for each reason."""
    listed = subprocess.run(
        ["ctest", "--test-dir", build, "--show-only=json-v1"],
        check=True, capture_output=True, text=True)
    tests = json.loads(listed.stdout)["tests"]
    missing = [test["name"] for test in tests if "command" not in test]
    if missing:
        sys.exit(f"error: {len(missing)} tests are not built, such as "
                 f"{missing[0]}: build all of {build} first")
    chosen, reasons = [], {}
    for test in tests:
        reason = reason_to_leave_out(test)
        if reason is None:
            chosen.append(test)
        else:
            reasons[reason] = reasons.get(reason, 0) + 1
    # As ctest does where it knows no times.
    chosen.sort(key=lambda test: -properties(test).get("COST", 0))
    return chosen, reasons


def main():
    build, only_names = sys.argv[1], "--names" in sys.argv[2:]
    if os.geteuid() != 0:
        if not only_names:
            print("plain user: the tests that ran were a plain user's")
        return 0
    chosen, reasons = choose(build)
    if only_names:
        print("\n".join(test["name"] for test in chosen))
        return 0
    started = time.monotonic()
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        workers = min(2, os.cpu_count() or 1)
        alone = [test for test in chosen if runs_alone(test, workers)]
        beside = [test for test in chosen if test not in alone]
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            results = itertools.chain(
                pool.map(lambda test: run(test, folder), beside),
                map(lambda test: run(test, folder), alone))
            for test, output in zip(beside + alone, results):
                if output is not None:
                    failed.append(test["name"])
                    print(f"plain user: {test['name']} failed:\n{output}")
    print(f"plain user: {len(chosen) - len(failed)} of {len(chosen)} tests "
          f"passed as nobody, {time.monotonic() - started:.0f} s; left out:")
    for reason, count in sorted(reasons.items(), key=lambda entry: -entry[1]):
        print(f"  {count:3} {reason}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
