"""A run always reports what it will do, where it is, and what a signal does.
"""

import json
import os
import pty
import re
import select
import signal
import subprocess
import time
import unittest

import harness

# Each step takes some ten seconds, so that a test can act during one.
SLOW = "--layers 4 --hidden 64 --heads 4 --ffn 96 --chunk 64 --seq-len 24000"


class Watch(harness.TrainTest):
    def on_terminal(self, *arguments):
        """Starts a run with a terminal as its stderr. Returns the run and
        `read(what)`, which waits until `what` has been written and returns all
        output so far."""
        ours, theirs = pty.openpty()
        self.addCleanup(os.close, ours)
        process = self.start(
            [harness.TRAIN, "train", *arguments, "--data", self.text],
            stdout=subprocess.PIPE, stderr=theirs)
        os.close(theirs)
        seen = ""

        def read(what, limit_s=120):
            nonlocal seen
            end = time.monotonic() + limit_s
            while not re.search(what, seen):
                self.assertLess(time.monotonic(), end, (what, seen))
                if select.select([ours], [], [], 0.2)[0]:
                    try:
                        seen += os.read(ours, 4096).decode()
                    except OSError:  # the other side is closed
                        self.assertRegex(seen, what)
            return seen

        return process, read

    def test_a_run_says_what_it_is_and_how_long_a_step_takes(self):
        for method, expects in (("sluice", True), ("recompute", False)):
            with self.subTest(method):
                code, out, err = self.run_train(
                    *harness.MODEL, "--private", "--seq-len", "500",
                    "--ranks", "2", "--steps", "6", "--data", self.text,
                    "--method", method, "--json", "--log-jsonl",
                    self.path(method))
                self.assertEqual(code, 0, err)
                json.loads(out)  # stdout contains nothing else
                self.assertRegex(err, r"model .* parameters: llama, 2 layers")
                self.assertRegex(err, r"plan .*recomputed" if not expects
                                 else r"plan .*: layer_input")
                self.assertRegex(err, r"memory +GPU 0: .*iB of .*iB leased")
                log = harness.lines_of(self.path(method))
                if expects:
                    self.assertRegex(err, r"about .* expected \(compute ")
                    self.assertRegex(err, r"step 1 took .*were expected")
                    self.assertGreater(log[0]["expected_seconds"], 0)
                    # Other work on the machine may slow down a step by at most
                    # this factor, and a calibration by any factor.
                    ratio = min(line["seconds"] / line["expected_seconds"]
                                for line in log[1:])
                    self.assertLess(ratio, 20)
                else:
                    self.assertEqual(log[0]["expected_seconds"], 0)

    def test_a_long_step_shows_progress_and_ctrl_c_says_what_follows(self):
        save = self.path("saved")
        process, read = self.on_terminal(
            *SLOW.split(), "--private", "--ranks", "2", "--hbm", "64MiB",
            "--save", save)
        read(r"step 1/10 +\d+ % +layer \d of 4, chunk \d+ of 375, forward  "
             r"about .* left")
        process.send_signal(signal.SIGINT)
        start = time.monotonic()
        text = read("Ctrl-C: ")
        self.assertLess(time.monotonic() - start, 10)
        self.assertRegex(
            text + read("again to stop at once", 5),
            r"Ctrl-C: finishing step 1 \(about .* left\), then saving to "
            + re.escape(save) + "; press Ctrl-C again to stop at once")
        process.send_signal(signal.SIGINT)
        process.wait(harness.PATIENCE_S)
        self.assertEqual(process.returncode, 130)

    def test_stderr_that_is_no_terminal_gets_progress_lines(self):
        process = self.start(
            [harness.TRAIN, "train", *SLOW.split(), "--private", "--hbm",
             "64MiB", "--data", self.text], stderr=subprocess.PIPE)
        for line in process.stderr:
            self.assertNotIn("\r", line)
            if re.match(r"step 1/10 +\d+ % +layer", line):
                break
        else:
            self.fail("a step of over ten seconds printed no progress")

    def test_a_signal_before_the_first_step_ends_the_run(self):
        save = self.path("saved")
        process, read = self.on_terminal(
            *SLOW.split(), "--private", "--hbm", "64MiB", "--save", save)
        self.wait_until(lambda: self.handles_sigint(process.pid),
                        "no rank starts")
        process.send_signal(signal.SIGINT)
        read("Ctrl-C: ending before the first step")
        read("stopped before the first step")
        process.wait(harness.PATIENCE_S)
        self.assertEqual(process.returncode, 130)
        self.assertEqual(os.listdir(save) if os.path.exists(save) else [], [])

    def handles_sigint(self, launcher):
        pid = harness.ranks_of(launcher).get(0)
        if pid is None:
            return False
        with open(f"/proc/{pid}/status", encoding="utf-8") as file:
            caught = re.search(r"SigCgt:\s*(\w+)", file.read()).group(1)
        return bool(int(caught, 16) >> (signal.SIGINT - 1) & 1)


if __name__ == "__main__":
    unittest.main()
