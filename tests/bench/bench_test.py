#!/usr/bin/env python3
"""Tests the benchmark driver's verdicts, refusals and handling of Ctrl-C."""

import contextlib
import io
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
import unittest

import bench
import figures
import programs

HERE = os.path.dirname(os.path.abspath(__file__))


def entry(value, target, better="lower"):
    return {"name": "x", "value": value, "unit": "s", "target": target,
            "better": better, "detail": {}}


def gone(pid):
    """Waits up to 10 s until the process is gone or a zombie; returns whether
    it is."""
    for _ in range(100):
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return True
        except FileNotFoundError:
            return True
        time.sleep(0.1)
    return False


def heed_interrupts():
    """Restores the default SIGINT, because a shell makes its background jobs
    ignore SIGINT, and this test may run in such a job."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Verdict(unittest.TestCase):

    def test_the_verdict_follows_the_better_direction(self):
        self.assertEqual(bench.verdict(entry(1.0, 1.1)), "met")
        self.assertEqual(bench.verdict(entry(1.2, 1.1)), "MISSED")
        self.assertEqual(bench.verdict(entry(1.2, 1.1, "higher")), "met")
        self.assertEqual(bench.verdict(entry(1.0, 1.1, "higher")), "MISSED")
        self.assertEqual(bench.verdict(entry(1.0, None)), "")

    def test_an_incomplete_entry_is_refused(self):
        broken = entry(1, 2)
        del broken["unit"]
        with self.assertRaises(programs.Failed):
            programs.checked(broken, "bench-x")


class Driver(unittest.TestCase):

    def drive(self, script, *arguments):
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "bench-ipc")
            with open(program, "w", encoding="utf-8") as file:
                file.write("#!/bin/sh\n" + script)
            os.chmod(program, stat.S_IRWXU)
            return subprocess.run(
                [sys.executable, os.path.join(HERE, "bench.py"), "--bin",
                 folder, *arguments], capture_output=True, text=True)

    def test_the_driver_prints_a_table(self):
        run = self.drive('echo \'[{"name": "ipc.touched", "value": 1.05, '
                         '"unit": "x", "target": 1.1, "better": "lower", '
                         '"detail": {}}]\' >"$2"\n', "ipc")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertRegex(run.stdout,
                         r"ipc\.touched\s+1\.05\s+x\s+<= 1\.1\s+met")

    def test_a_failing_benchmark_is_an_error(self):
        self.assertEqual(self.drive("exit 3\n", "ipc").returncode, 1)

    def test_a_benchmark_without_an_entry_is_an_error(self):
        run = self.drive("echo '[]' >\"$2\"\n", "ipc")
        self.assertEqual(run.returncode, 1)
        self.assertIn("bench: ipc: its output has no entry", run.stderr)

    def test_a_missing_program_is_an_error_even_if_no_name_is_given(self):
        whole = ('echo \'[{"name": "x", "value": 1, "unit": "s", "target": '
                 'null, "better": "lower", "detail": {}}]\' >"$2"\n')
        self.assertEqual(self.drive(whole, "ipc").returncode, 0)
        run = self.drive(whole)
        self.assertEqual(run.returncode, 1)
        self.assertIn("bench: grant: there is no ", run.stderr)

    def test_an_unknown_name_is_refused(self):
        run = self.drive("exit 0\n", "nonsense")
        self.assertEqual(run.returncode, 2)
        self.assertIn("no benchmark 'nonsense'", run.stderr)

    def test_an_unknown_revision_is_refused_in_one_line(self):
        run = self.drive("exit 0\n", "--against", "no/such/revision")
        self.assertEqual(run.returncode, 2)
        self.assertRegex(run.stderr, "^error: bench: --against 'no/such/"
                         "revision': no such commit.*\n$")

    def test_zero_rounds_are_refused(self):
        run = self.drive("exit 0\n", "--against", "HEAD", "--rounds", "0")
        self.assertEqual(run.returncode, 2)
        self.assertIn("--rounds 0: must be at least 1", run.stderr)

    def test_ctrl_c_ends_a_benchmarks_own_children(self):
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "bench-ipc")
            with open(program, "w", encoding="utf-8") as file:
                file.write("#!/bin/sh\nsleep 300 &\necho $! >&2\nwait\n")
            os.chmod(program, stat.S_IRWXU)
            with subprocess.Popen(
                    [sys.executable, os.path.join(HERE, "bench.py"), "--bin",
                     folder, "ipc"], stderr=subprocess.PIPE, text=True,
                    preexec_fn=heed_interrupts) as run:
                self.assertIn("bench: ipc", run.stderr.readline())
                started = int(run.stderr.readline())
                run.send_signal(signal.SIGINT)
                self.assertIn("interrupted", run.stderr.read())
            self.assertEqual(run.returncode, 130)
            self.assertTrue(gone(started))

    def test_ctrl_c_ends_a_benchmark_that_is_being_started(self):
        code = ("import os, signal, sys, programs\n"
                "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
                "def press():\n"
                "    sys.stdout.write(f'{os.getpid()}\\n')\n"
                "    sys.stdout.flush()\n"
                "    os.kill(os.getppid(), signal.SIGINT)\n"
                "try:\n"
                "    programs.finish(['sleep', '300'], preexec_fn=press)\n"
                "except KeyboardInterrupt:\n"
                "    sys.exit(130)\n")
        run = subprocess.run(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True,
            timeout=30, env={**os.environ, "PYTHONPATH": HERE}, check=False)
        self.assertEqual(run.returncode, 130)
        self.assertTrue(gone(int(run.stdout)))


class Figures(unittest.TestCase):
    def run_script(self, text):
        with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
            script.write(text)
            script.flush()
            with contextlib.redirect_stdout(io.StringIO()):
                return figures.printed_by(script.name)

    def test_figures_are_what_a_script_printed(self):
        self.assertEqual(self.run_script("print('ended 2 s')"), "ended 2 s\n")

    def test_a_failing_script_has_no_figures(self):
        with self.assertRaisesRegex(SystemExit, "ended with status 3"):
            self.run_script("print('ended 2 s'); raise SystemExit(3)")

    def test_no_file_is_written_if_a_figure_is_missing(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "rows.json")
            with self.assertRaisesRegex(SystemExit, "did not print: y"):
                figures.write([entry(1, 2)], ["x", "y"], path)
            self.assertFalse(os.path.exists(path))


if __name__ == "__main__":
    unittest.main()
