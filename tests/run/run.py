#!/usr/bin/env python3
"""Runs the phases of phases.py, also after a phase fails, and prints one table
of the results, which out/test/report.json has, too."""

import argparse
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import phases  # pylint: disable=wrong-import-position
import plain_user  # pylint: disable=wrong-import-position
import processes  # pylint: disable=wrong-import-position
import record  # pylint: disable=wrong-import-position
import suite  # pylint: disable=wrong-import-position

LABELS = ("unit", "conformance", "integration", "gradient", "poison", "golden",
          "python", "bench", "attacks", "package", "root", "ci", "deep")
DEPS = os.environ.get("SLUICE_DEPS", os.path.expanduser("~/.cache/sluice"))
MOST_FLAKY = 3
SLOWEST = 20
RED, GREEN = 1, 0


@dataclasses.dataclass
class Result:
    phase: str
    state: str  # passed, failed or skipped
    seconds: float = 0
    note: str = ""
    outcomes: list = dataclasses.field(default_factory=list)

    def count(self, *states):
        if self.outcomes:
            return sum(each.state in states for each in self.outcomes)
        return int(self.state in states)


class Stopped(Exception):
    """A signal asks this process to end."""


class Runner:
    """Runs phases one after the other. Not thread-safe."""

    def __init__(self, out, end_at=None, root=phases.ROOT):
        self.out = out
        self.root = root
        self.end_at = end_at  # time.monotonic(), or None
        self.results = []
        self.logs = set()
        self.reader = suite.Reader()  # reads the output of the phase that runs
        os.makedirs(out, exist_ok=True)
        processes.adopt_orphans()

    def run(self, phase):
        left = self.end_at - time.monotonic() if self.end_at else phase.limit
        if left <= 0:
            self.add(Result(phase.name, "skipped", note="no time was left"))
            return
        limit = min(phase.limit, left)
        print(f"\n== {phase.name} (limit {limit / 60:.0f} min)", flush=True)
        started = time.monotonic()
        self.reader = suite.Reader()
        try:
            run = self.run_command if phase.command else self.run_tests
            result = run(phase, limit)
        except Stopped:
            self.add(Result(phase.name, "failed",
                            time.monotonic() - started, "ended by a signal",
                            list(self.reader.outcomes.values())))
            raise
        except (OSError, subprocess.CalledProcessError, ValueError) as error:
            result = Result(phase.name, "failed", note=str(error))
        result.seconds = time.monotonic() - started
        self.add(result)

    def add(self, result):
        self.results.append(result)
        print(f"== {result.phase}: {result.state}, {result.seconds:.0f} s"
              + (f" ({result.note})" if result.note else ""), flush=True)

    def run_command(self, phase, limit):
        status = self.start(phase.name, phase.command, limit,
                            self.environment(phase))
        if status is None:
            return Result(phase.name, "failed", note=f"limit of {limit:.0f} s")
        return Result(phase.name, "failed" if status else "passed",
                      note=f"status {status}" if status else "")

    def environment(self, phase):
        return {**os.environ, **phase.environment}

    def run_tests(self, phase, limit):
        build = os.path.join(self.root, "build", phase.preset)
        if not is_configured(build):
            return Result(phase.name, "skipped",
                          note=f"build/{phase.preset} is not configured")
        if phase.as_root and "^root$" in phase.select and os.geteuid() != 0:
            return Result(phase.name, "skipped", note="needs root")
        listed = suite.entries(build, phase.select)
        blocked = suite.blocked(build, phase.targets, listed)
        skipped = [suite.Outcome(name, "skipped", output="not built")
                   for name in blocked]
        if len(blocked) == len(listed):
            return Result(phase.name, "skipped" if listed else "failed",
                          note="none of its tests was built" if listed
                          else "no test is selected", outcomes=skipped)
        until = time.monotonic() + limit
        reader = self.reader
        in_time = self.ctest(
            phase, build, limit, os.cpu_count() + 1, reader,
            *(("-E", suite.named(blocked)) if blocked else ()))
        labels = {entry.name: entry.labels for entry in listed}
        again = [name for name, outcome in reader.outcomes.items()
                 if outcome.state == "failed"
                 and not labels.get(name, set()) & suite.NO_SECOND_TRY]
        if again and in_time:
            print(f"-- once more: {' '.join(again)}", flush=True)
            second = suite.Reader()
            in_time = self.ctest(
                phase, build, max(until - time.monotonic(), 1), 1, second,
                "-R", suite.named(again))
            for name in again:
                if name in second.outcomes and \
                        second.outcomes[name].state == "passed":
                    reader.outcomes[name].state = "flaky"
        outcomes = list(reader.outcomes.values())
        missing = set(labels) - set(reader.outcomes) - set(blocked)
        outcomes += [suite.Outcome(name, "failed",
                                   output="the test did not end")
                     for name in sorted(missing)]
        result = Result(phase.name, "passed", outcomes=outcomes + skipped)
        notes = []
        if not in_time:
            notes.append(f"limit of {limit:.0f} s")
        if blocked:
            notes.append(f"{len(blocked)} not built")
        if phase.reports and os.listdir(phase.reports):
            notes.append("reports: " + self.print_reports(phase.reports))
        if notes or result.count("failed"):
            result.state = "failed"
        result.note = ", ".join(notes)
        return result

    def ctest(self, phase, build, limit, jobs, reader, *more):
        """Runs CTest; returns whether it ended in time. `reader` reads CTest's
        output."""
        words = ["ctest", "--test-dir", build, f"-j{jobs}",
                 "--output-on-failure", *phase.select, *more]
        environment = self.environment(phase)
        if phase.under and not subprocess.run(
                [*phase.under, "true"], capture_output=True).returncode:
            words = [*phase.under, *words]
        if phase.reports:
            shutil.rmtree(phase.reports, ignore_errors=True)
            os.makedirs(phase.reports)
            os.chmod(phase.reports, 0o777)
        if os.geteuid() == 0 and not phase.as_root:
            environment["SLUICE_TEST_USER"] = plain_user.USER
            words = plain_user.command(
                words, [self.root, DEPS])
        status = self.start(phase.name, words, limit, environment,
                            reader.read)
        if status and not reader.outcomes:
            raise ValueError(f"ctest ended with status {status}")
        return status is not None

    def print_reports(self, folder):
        names = sorted(os.listdir(folder))
        for name in names:
            with open(os.path.join(folder, name), encoding="utf-8",
                      errors="replace") as file:
                print(file.read())
        return " ".join(names)

    def start(self, name, words, limit, environment, read=None):
        """Runs a command. Returns its exit status, or None if `limit` (seconds)
        ended it. The output is shown, stored, and passed to `read` line by
        line."""
        path = os.path.join(self.out, name.replace(" ", "_") + ".log")
        mode = "a" if name in self.logs else "w"
        self.logs.add(name)
        with open(path, mode, encoding="utf-8") as log, subprocess.Popen(
                words, cwd=self.root, env=environment, text=True,
                errors="replace", stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                start_new_session=True) as process:
            def copy():
                for line in process.stdout:
                    sys.stdout.write(line)
                    sys.stdout.flush()
                    log.write(line)
                    if read:
                        read(line)
            copier = threading.Thread(target=copy)
            copier.start()
            try:
                try:
                    status = process.wait(limit)
                except subprocess.TimeoutExpired:
                    status = None
                    print(f"-- ended at the limit of {limit:.0f} s")
            finally:
                if process.returncode is None:
                    os.kill(process.pid, signal.SIGTERM)
                    time.sleep(1)  # launchers print what they end
                processes.kill_all()
                copier.join()
        return status


def is_configured(build):
    return os.path.exists(os.path.join(build, "CTestTestfile.cmake"))


def flaky(results):
    return [(result.phase, outcome) for result in results
            for outcome in result.outcomes if outcome.state == "flaky"]


def is_red(results):
    return (not results or len(flaky(results)) > MOST_FLAKY or any(
        result.state == "failed"
        or result.state == "skipped" and result.note != "needs root"
        for result in results))


def print_table(results):
    width = max([len(result.phase) for result in results] + [5])
    print(f"\n{'phase':{width}} seconds  passed  failed skipped")
    for result in results:
        print(f"{result.phase:{width}} {result.seconds:7.0f} "
              f"{result.count('passed', 'flaky'):7} {result.count('failed'):7} "
              f"{result.count('skipped'):7}"
              + (f"  {result.note}" if result.note else ""))
    tests = [outcome for result in results for outcome in result.outcomes]
    slowest = sorted(tests, key=lambda each: -each.seconds)[:SLOWEST]
    if slowest:
        print(f"\nThe {len(slowest)} slowest tests, in seconds:")
        for each in slowest:
            print(f"{each.seconds:8.1f} {each.name}")
    for phase, each in flaky(results):
        print(f"\nflaky: {each.name} ({phase}) failed, then passed:")
        print("".join(each.output.splitlines(True)[-40:]), end="")
    for result in results:
        bad = [each.name for each in result.outcomes if each.state == "failed"]
        if bad or result.state == "failed":
            print(f"\nfailed: {result.phase}: {' '.join(bad) or result.note}")
    if len(flaky(results)) > MOST_FLAKY:
        print(f"\n{len(flaky(results))} tests are flaky, "
              f"the limit is {MOST_FLAKY}")
    total = [sum(result.count(*states) for result in results)
             for states in (("passed", "flaky"), ("failed",), ("skipped",))]
    print(f"\n{sum(result.seconds for result in results):.0f} s in all")
    # The CI service that runs .ci/run reads this form.
    print(f"{total[0]} passed, {total[1]} failed, {total[2]} skipped",
          flush=True)


def write_report(results, path, commit):
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump({
            "version": 1, "commit": commit,
            "date": time.strftime("%Y-%m-%d"),
            "red": is_red(results),
            "phases": [{
                "phase": result.phase, "state": result.state,
                "seconds": round(result.seconds, 1),
                "passed": result.count("passed", "flaky"),
                "failed": result.count("failed"),
                "skipped": result.count("skipped"), "note": result.note,
                "tests": [{"name": each.name, "state": each.state,
                           "seconds": each.seconds,
                           **({"output": each.output[-20000:]}
                              if each.state in ("failed", "flaky") else {})}
                          for each in result.outcomes],
            } for result in results]}, file, indent=1)
    os.replace(path + ".new", path)


def read_report(path, commit):
    """Returns the phases of an earlier run on `commit` that passed."""
    try:
        with open(path, encoding="utf-8") as file:
            report = json.load(file)
    except (OSError, ValueError):
        return {}
    if report["commit"] != commit or "+" in commit:
        return {}
    return {each["phase"]: Result(
        each["phase"], each["state"], each["seconds"], each["note"],
        [suite.Outcome(test["name"], test["state"], test["seconds"],
                       test.get("output", "")) for test in each["tests"]])
            for each in report["phases"] if each["state"] == "passed"}


def record_deep(results, root, commit):
    """Writes the results of the tier `deep` to tests/DEEP.md."""
    deep = {phase.name for phase in phases.PHASES
            if phase.tier == "deep" and phase.command}
    build = os.path.join(root, "build/release")
    listed = suite.entries(build, ("-L", "^deep$")) if is_configured(
        build) else []
    tests = {entry.name for entry in listed}
    ran = {result.phase: (result.state, result.seconds)
           for result in results if result.phase in deep}
    ran |= {each.name: (each.state, each.seconds)
            for result in results for each in result.outcomes
            if each.name in tests and each.state != "skipped"}
    record.record(os.path.join(root, "tests/DEEP.md"), deep | tests, ran,
                  commit)


def commit_of(root):
    """Returns the commit's hash, with a + if the tree has changes. Ignores
    tests/DEEP.md, which each run with --record changes."""
    def git(*words):
        return subprocess.run(["git", "-C", root, *words], capture_output=True,
                              text=True).stdout.strip()
    changes = git("status", "--porcelain", "--", ".", ":!tests/DEEP.md")
    return git("rev-parse", "HEAD") + ("+" if changes else "")


class Parser(argparse.ArgumentParser):

    def error(self, message):
        self.exit(2, f"error: test: {message}\n")


def arguments(words):
    names = [phase.name for phase in phases.PHASES]
    parser = Parser(
        prog="./dev test", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="FILTER is a label (" + " ".join(LABELS) + ") or a part of a "
        "test's name.\nPhases: " + ", ".join(names) + ".\n\nexamples:\n"
        "  ./dev test                      format, linters, build, all tests "
        "of the first tier\n"
        "  ./dev test unit                 one label\n"
        "  ./dev test core_test            tests whose names contain this\n"
        "  ./dev test --ci                 what .ci/run runs\n"
        "  ./dev test --deep --resume      continue where the last run ended\n"
        "  ./dev test --phase TSan         one phase\n"
        "  ./dev test --record each_wait   a deep test; its row in "
        "tests/DEEP.md")
    parser.add_argument("filters", nargs="*", metavar="FILTER")
    tier = parser.add_mutually_exclusive_group()
    tier.add_argument("--ci", dest="tier", action="store_const", const="ci",
                      default="test", help="also sanitizers, all fakes, "
                      "packages, fuzzers")
    tier.add_argument("--deep", dest="tier", action="store_const",
                      const="deep", help="also tests that take hours")
    tier.add_argument("--quick", dest="filters", action="append_const",
                      const="unit", help="the same as the filter unit")
    parser.add_argument("--phase", action="append", default=[],
                        metavar="NAME",
                        help="run only this phase; may be repeated")
    parser.add_argument("--resume", action="store_true", help="skip phases "
                        "that passed on this commit in the last run")
    parser.add_argument("--record", action="store_true", help="write results "
                        "of deep tests to tests/DEEP.md; needs a clean tree")
    parser.add_argument("--end-after", type=float, metavar="MINUTES",
                        help="end after this time and print the table")
    given = parser.parse_args(words)
    for name in given.phase:
        if name not in names:
            parser.error(f"no phase '{name}'; there are: " + ", ".join(names))
    return given


def filtered(filters, deep, *excluded):
    """Returns CTest's arguments for the tests that match `filters` and have no
    label of `excluded`. `deep` also selects the tier deep. All excluded labels
    form one -LE, because CTest excludes only tests that match every -LE."""
    labels = [f"^{word}$" for word in filters if word in LABELS]
    names = [word for word in filters if word not in LABELS]
    select = []
    if not deep and not {"deep", "bench"} & set(filters):
        excluded += ("deep",)
    if excluded:
        select += ["-LE", f"^({'|'.join(excluded)})$"]
    if labels:
        select += ["-L", "|".join(labels)]
    if names:
        select += ["-R", "|".join(names)]
    return select


def run_filtered(runner, filters, deep):
    """Builds and runs the tests that `filters` select: as a plain user, and
    those of the label root as root."""
    by_name = {phase.name: phase for phase in phases.PHASES}
    runner.run(by_name["setup"])
    runner.run(by_name["build"])
    select = filtered(filters, deep)
    build = os.path.join(runner.root, "build/release")
    labels = {label for entry in suite.entries(build, select)
              for label in entry.labels}
    if labels & {"ci", "deep"}:
        runner.run(by_name["build for ci"])  # it builds both tiers' programs
    if labels:
        plain = phases.tests("tests", "test", 7200, "release",
                             *filtered(filters, deep, "root"))
        if suite.entries(build, plain.select):
            runner.run(plain)
    if "root" in labels:
        runner.run(phases.tests("tests of root", "test", 7200, "release",
                                *select, "-L", "^root$", as_root=True))
    if not labels:
        runner.add(Result("tests", "failed", note="no test is selected by "
                          + " ".join(filters)))


def run_phases(runner, given, report, commit):
    earlier = read_report(report, commit) if given.resume else {}
    for phase in phases.of_tier("deep" if given.phase else given.tier):
        if given.phase and phase.name not in given.phase:
            continue
        if phase.name in earlier:
            runner.results.append(earlier[phase.name])
            print(f"== {phase.name}: passed before")
            continue
        runner.run(phase)
        write_report(runner.results, report, commit)


def main():
    given = arguments(sys.argv[1:])
    processes.default_signals()

    def stop(number, _):
        raise Stopped(number)
    for number in signal.SIGINT, signal.SIGTERM:
        signal.signal(number, stop)
    end_at = given.end_after and time.monotonic() + given.end_after * 60
    runner = Runner(os.path.join(phases.ROOT, "out/test"), end_at)
    report = os.path.join(runner.out, "report.json")
    commit = commit_of(phases.ROOT)
    if given.record and "+" in commit:
        print("error: test: --record needs a tree without changes, so that "
              "the commit names what was tested", file=sys.stderr)
        return 2
    status = None
    try:
        if given.filters:
            run_filtered(runner, given.filters, given.tier == "deep")
        else:
            run_phases(runner, given, report, commit)
    except Stopped as stopped:
        status = 128 + stopped.args[0]
    print_table(runner.results)
    write_report(runner.results, report, commit)
    if given.record:
        record_deep(runner.results, phases.ROOT, commit)
    if status:
        return status
    return RED if is_red(runner.results) else GREEN


if __name__ == "__main__":
    sys.exit(main())
