#!/usr/bin/env python3
"""Tests ./dev's errors and help texts, and the Python tests' error without an
environment."""

import os
import subprocess
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def dev(*words):
    return subprocess.run([os.path.join(ROOT, "dev"), *words],
                          capture_output=True, text=True, timeout=30)


class BadInput(unittest.TestCase):

    def test_a_wrong_argument_prints_one_line_and_starts_nothing(self):
        for words, says in (
                (["demo", "--quik"], "unrecognized arguments: --quik"),
                (["lint", "--foo"], "only --all"),
                (["format", "a", "b"], "only --all"),
                (["test", "--foo"], "unrecognized arguments: --foo"),
                (["test", "--phase", "no-such"], "no phase 'no-such'"),
                (["fuzz", "no-such"], "no target 'no-such'"),
                (["sanitize", "memory"], "'address' or 'thread', not 'memory'"),
                (["build", "--foo"], "unknown option '--foo'"),
                (["build", "thread"], "release dev wheel asan tsan")):
            with self.subTest(words):
                run = dev(*words)
                self.assertEqual(run.returncode, 2)
                self.assertEqual(run.stdout, "")
                [line] = run.stderr.splitlines()
                self.assertIn(says, line)


class Help(unittest.TestCase):

    def test_commands_print_their_help(self):
        for command, says in (("demo", "--quick"), ("bench", "--against"),
                              ("fuzz", "--seconds"),
                              ("test", "--deep"), ("test", "package"),
                              ("setup", "./dev COMMAND")):
            for flag in ("-h", "--help"):
                run = dev(command, flag)
                self.assertEqual(run.returncode, 0, run.stderr)
                self.assertIn(says, run.stdout)
                self.assertNotIn("--only-parse", run.stdout)


class PythonTests(unittest.TestCase):

    def test_a_missing_environment_fails_and_says_what_to_type(self):
        run = subprocess.run(
            [sys.executable, os.path.join(ROOT, "tests/python/run.py"),
             "/nowhere/bin/python", "memory/arena_test.py"],
            capture_output=True, text=True, timeout=30)
        self.assertEqual(run.returncode, 1)
        [line] = run.stderr.splitlines()
        self.assertTrue(line.startswith("error: no Python of the tests at "))
        self.assertIn("./dev setup python", line)


if __name__ == "__main__":
    unittest.main()
