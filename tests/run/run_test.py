#!/usr/bin/env python3
"""Tests run.py: phases that fail, hang or do not build, the reports of a run,
the table of deep tests, and the tiers. The builds here are small, but use the
real Ninja and CTest."""

import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import phases
import record
import run

HERE = os.path.dirname(os.path.abspath(__file__))

# A program is a copied script; `broken` does not build.
LISTS = """
cmake_minimum_required(VERSION 3.25)
project(small LANGUAGES NONE)
enable_testing()
# This glob makes Ninja always plan to run CMake again, as in a real build.
file(GLOB sources CONFIGURE_DEPENDS *.sh)
function(program name)
  add_custom_command(OUTPUT bin/${name} COMMAND
    ${ARGN} ${CMAKE_SOURCE_DIR}/${name}.sh ${CMAKE_BINARY_DIR}/bin/${name}
    COMMENT "Linking CXX executable bin/${name}" DEPENDS ${name}.sh)
  add_custom_target(build_${name} ALL DEPENDS bin/${name})
endfunction()
function(test name labels)
  add_test(NAME ${name} COMMAND LAUNCH ${ARGN})
  set_tests_properties(${name} PROPERTIES LABELS "${labels}"
    ENVIRONMENT SLUICE_TEST_LIMIT=2 TIMEOUT 30)
endfunction()
program(works cp)
program(broken false)
test(passes unit ${CMAKE_BINARY_DIR}/bin/works)
test(fails unit ${CMAKE_BINARY_DIR}/bin/works 1)
test(fails_once unit sh -c "test -e FOLDER/$0 || ! touch FOLDER/$0" once)
test(gradient_fails_once gradient
  sh -c "test -e FOLDER/$0 || ! touch FOLDER/$0" gradient)
test(hangs unit sleep 1000)
test(needs_the_broken unit ${CMAKE_BINARY_DIR}/bin/broken)
test(needs_the_product integration true)
"""


class Small(unittest.TestCase):

    def setUp(self):

        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = folder.name
        # If root runs this test, a plain user runs the tests in the folder.
        os.chmod(self.root, 0o777)
        text = LISTS.replace("LAUNCH", os.path.join(HERE, "launch.py"))
        self.lists = text.replace("FOLDER", self.root)
        for name in "works", "broken", "sluiced":
            self.write(f"{name}.sh", "#!/bin/sh\nexit ${1:-0}\n")
            os.chmod(os.path.join(self.root, f"{name}.sh"), 0o755)

    def write(self, name, text):
        with open(os.path.join(self.root, name), "w",
                  encoding="utf-8") as file:
            file.write(text)

    def configure(self, sluiced="program(sluiced cp)"):
        self.write("CMakeLists.txt", self.lists + sluiced)
        subprocess.run(["cmake", "-S", self.root, "-B",
                        os.path.join(self.root, "build/small"), "-G", "Ninja"],
                       check=True, capture_output=True)
        os.makedirs(os.path.join(self.root, "build/small/bin"))

    def run_phases(self, *listed, end_at=None):
        runner = run.Runner(os.path.join(self.root, "out"), end_at, self.root)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            for phase in listed:
                runner.run(phase)
            run.print_table(runner.results)
        self.printed = printed.getvalue()
        return {result.phase: result for result in runner.results}, runner

    def states(self, result):
        return {each.name: each.state for each in result.outcomes}


def command(name, *words, limit=60):
    return phases.Phase(name, "test", limit, command=words)


BUILD = command("build", "ninja", "-C", "build/small", "-k", "0")
TESTS = phases.tests("tests", "test", 60, "small")


class Phases(Small):

    def test_all_phases_run_after_a_failure(self):
        self.configure()
        results, runner = self.run_phases(
            command("first", "false"), BUILD, TESTS, command("last", "true"))
        self.assertEqual({name: each.state for name, each in results.items()},
                         {"first": "failed", "build": "failed",
                          "tests": "failed", "last": "passed"})
        self.assertEqual(self.states(results["tests"]), {
            "passes": "passed", "fails": "failed", "fails_once": "flaky",
            "gradient_fails_once": "failed", "hangs": "failed",
            "needs_the_broken": "skipped", "needs_the_product": "passed"})
        self.assertIn("flaky: fails_once (tests)", self.printed)
        self.assertIn("limit of 2 s", self.printed)
        self.assertEqual(self.printed.splitlines()[-1],
                         "4 passed, 5 failed, 1 skipped")
        self.assertTrue(run.is_red(runner.results))

    def test_a_product_that_does_not_build_skips_tests_that_start_it(self):
        self.configure("program(sluiced false)")
        results, _ = self.run_phases(BUILD, TESTS)
        states = self.states(results["tests"])
        self.assertEqual(states["needs_the_product"], "skipped")

    def test_a_product_that_a_phase_does_not_build_skips_no_test(self):
        self.configure("program(sluiced false)")
        results, _ = self.run_phases(
            command("build", "ninja", "-C", "build/small", "build_works"),
            phases.tests("tests", "test", 60, "small", "-R", "passes|product",
                         targets=("build_works",)))
        self.assertEqual(self.states(results["tests"]), {
            "passes": "passed", "needs_the_product": "passed"})

    def test_a_phase_that_hangs_is_ended_with_its_processes(self):
        results, _ = self.run_phases(
            command("hangs", "sh", "-c", "setsid sleep 1006 & wait", limit=1),
            command("next", "true"))
        self.assertEqual(results["hangs"].note, "limit of 1 s")
        self.assertEqual(results["next"].state, "passed")
        self.assertNotEqual(
            subprocess.run(["pgrep", "-fx", "sleep 1006"],
                           capture_output=True).returncode, 0)

    def test_a_phase_without_time_is_skipped_and_the_run_is_red(self):
        results, runner = self.run_phases(command("late", "true"),
                                          end_at=time.monotonic())
        self.assertEqual(results["late"].state, "skipped")
        self.assertTrue(run.is_red(runner.results))

    def test_tests_of_a_build_that_is_not_configured_are_skipped(self):
        results, _ = self.run_phases(TESTS)
        self.assertEqual(results["tests"].state, "skipped")
        self.assertIn("not configured", results["tests"].note)

    def test_a_report_of_a_sanitizer_fails_its_phase(self):
        self.configure()
        reports = os.path.join(self.root, "reports")
        os.mkdir(reports)
        phase = phases.tests(
            "tests", "test", 60, "small", "-R", "passes", reports=reports,
            under=("sh", "-c", f'"$@"; echo race >{reports}/race.1', "sh"))
        results, _ = self.run_phases(BUILD, phase)
        self.assertEqual(results["tests"].state, "failed")
        self.assertIn("race.1", results["tests"].note)


class Report(Small):

    def test_only_a_run_on_the_same_commit_resumes_from_a_report(self):
        path = os.path.join(self.root, "report.json")
        _, runner = self.run_phases(command("good", "true"),
                                    command("bad", "false"))
        run.write_report(runner.results, path, "1234")
        with open(path, encoding="utf-8") as file:
            report = json.load(file)
        self.assertEqual([each["failed"] for each in report["phases"]], [0, 1])
        self.assertEqual(list(run.read_report(path, "1234")), ["good"])
        self.assertEqual(run.read_report(path, "5678"), {})
        self.assertEqual(run.read_report(path, "1234+"), {})

    def test_three_flaky_tests_pass_and_four_do_not(self):
        result = run.Result("tests", "passed", outcomes=[
            run.suite.Outcome(f"t{i}", "flaky") for i in range(3)])
        self.assertFalse(run.is_red([result]))
        result.outcomes.append(run.suite.Outcome("t3", "flaky"))
        self.assertTrue(run.is_red([result]))


class Record(Small):

    def test_rows_of_tests_that_did_not_run_are_kept(self):
        path = os.path.join(self.root, "DEEP.md")
        names = {"attacks", "demo", "walk"}
        record.record(path, names, {"demo": ("failed", 9.6),
                                    "gone": ("passed", 1)}, "0123456789")
        record.record(path, names, {"walk": ("passed", 3)}, "abcdef0123")
        rows = record.read(path)
        self.assertEqual(set(rows), names)
        self.assertEqual(rows["attacks"].result, "not run")
        self.assertEqual((rows["demo"].commit, rows["demo"].seconds,
                          rows["demo"].result), ("01234567", "10", "failed"))
        self.assertEqual((rows["walk"].commit, rows["walk"].result),
                         ("abcdef01", "passed"))
        record.record(path, {"walk"}, {}, "0")  # a build that lacks tests
        self.assertEqual(record.read(path), rows)

    def test_a_phase_is_recorded_without_a_configured_build(self):
        os.makedirs(os.path.join(self.root, "tests"))
        run.record_deep([run.Result("clang-tidy", "passed", 5)], self.root, "0")
        rows = record.read(os.path.join(self.root, "tests/DEEP.md"))
        self.assertEqual(rows["clang-tidy"].result, "passed")

    def test_only_deep_tests_and_deep_phases_are_recorded(self):
        self.lists = self.lists.replace("test(hangs unit", "test(slow deep")
        self.configure()
        os.makedirs(os.path.join(self.root, "tests"))
        os.rename(os.path.join(self.root, "build/small"),
                  os.path.join(self.root, "build/release"))
        results = [
            run.Result("demo", "passed", 5),
            run.Result("lint", "passed", 5),
            run.Result("tests", "failed", outcomes=[
                run.suite.Outcome("slow", "failed", 2),
                run.suite.Outcome("passes", "passed", 1)])]
        run.record_deep(results, self.root, "0123456789")
        rows = record.read(os.path.join(self.root, "tests/DEEP.md"))
        self.assertEqual(rows["slow"].result, "failed")
        self.assertEqual(rows["demo"].result, "passed")
        self.assertEqual(rows["mutants"].result, "not run")
        self.assertFalse({"lint", "passes"} & set(rows))


class Filtered(Small):

    def test_a_deep_test_is_selected_by_its_name(self):
        self.lists = self.lists.replace("test(hangs unit", "test(slow deep")
        self.configure()
        os.rename(os.path.join(self.root, "build/small"),
                  os.path.join(self.root, "build/release"))
        runner = run.Runner(os.path.join(self.root, "out"), root=self.root)
        started = []
        runner.run = started.append
        run.run_filtered(runner, ["slow"], deep=True)
        self.assertEqual([phase.name for phase in started],
                         ["setup", "build", "build for ci", "tests"])


class Tiers(unittest.TestCase):

    def test_each_tier_includes_the_tiers_before_it(self):
        sizes = [len(phases.of_tier(tier)) for tier in phases.TIERS]
        self.assertEqual(sizes, sorted(set(sizes)))
        self.assertEqual(phases.of_tier("deep"), list(phases.PHASES))


if __name__ == "__main__":
    sys.exit(unittest.main())
