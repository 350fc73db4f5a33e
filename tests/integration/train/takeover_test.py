"""A daemon that is killed under a keeper ends nothing else: a run under it
continues and has the same losses."""

import concurrent.futures
import os
import random
import signal
import threading
import time
import unittest

import either_node
import harness

STEPS = 12
# A fake GPU is slow, so its sequence is shorter.
LENGTH = "200" if either_node.ON_FAKES else "777"
SETTINGS = (f"--ranks 2 --seq-len {LENGTH} --steps {STEPS} --seed 3 "
            "--hbm 24MiB --json").split()


class TakeOver(either_node.NodeTest):
    def losses(self, socket, name, *more):
        log = self.path(name + ".jsonl")
        code, _, err = self.run_train(
            *harness.MODEL, *SETTINGS, "--socket", socket, "--job", name,
            "--data", self.text, "--log-jsonl", log, *more)
        self.assertEqual(code, 0, err)
        return [line["loss"] for line in harness.lines_of(log)]

    def kill_until(self, done, moments):
        """Kills the daemon until `done` is set; returns how often. Every
        second daemon serves before it is killed: otherwise no daemon might
        serve on a busy machine, and a client waits at most 5 s."""
        kills, served = 0, -1
        while not done.is_set():
            if kills % 2 == 0 and self.served() <= served:
                time.sleep(0.02)
                continue
            time.sleep(moments.uniform(0.05, 0.9))
            served = self.served()
            for pid in harness.children_of(self.keeper_process.pid):
                kills += harness.kill_if_there(pid)
        return kills

    def compare(self, socket, kill, *more):
        """Compares an undisturbed run with one during which kill(done) kills
        processes; returns the number of kills."""
        calm = self.losses(socket, "calm", *more)
        self.assertEqual(len(calm), STEPS)
        done = threading.Event()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            killer = pool.submit(kill, done)
            try:
                disturbed = self.losses(socket, "disturbed", *more)
            finally:
                done.set()
        # Raises the thread's exception, if there is one.
        kills = killer.result()
        self.assertEqual(disturbed, calm)  # bit by bit
        return kills

    def compare_with_dying_daemons(self, *more):
        socket = self.keeper()
        moments = random.Random(13)
        self.assertGreaterEqual(
            self.compare(socket, lambda done: self.kill_until(done, moments),
                         *more), 3)
        self.wait_until(lambda: self.leased(socket) == 0,
                        "memory is still leased")

    def test_dying_daemons_change_no_bit_of_a_planned_run(self):
        self.compare_with_dying_daemons()

    def test_dying_daemons_change_no_bit_of_a_half_swapped_run(self):
        self.compare_with_dying_daemons("--alpha", "0.5")

    def one(self, program, folder):
        """Waits until `program` runs exactly once; returns its pid."""
        found = []
        def alone():
            found[:] = harness.running(program, folder)
            return len(found) == 1
        self.wait_until(alone, f"there is not exactly one {program}")
        return found[0]

    def end_all(self, folder):
        """Ends a daemon after its keeper has died."""
        def gone():
            daemons = harness.running("sluiced", folder)
            for pid in daemons:
                os.kill(pid, signal.SIGTERM)
            return not daemons
        self.wait_until(gone, "sluiced still runs")

    def test_a_run_is_bit_identical_if_the_keeper_dies(self):
        socket = self.keeper()
        folder = os.path.dirname(socket)
        self.addCleanup(self.end_all, folder)
        daemon = self.one("sluiced", folder)

        def kill(done):
            time.sleep(1)
            self.assertFalse(done.is_set(), "the run ended before the kill")
            return harness.kill_if_there(self.one("sluiced-keeper", folder))

        self.assertEqual(self.compare(socket, kill), 1)
        self.assertEqual(self.one("sluiced", folder), daemon)
        self.wait_until(lambda: self.leased(socket) == 0,
                        "memory is still leased")

    def test_a_run_goes_on_when_the_keeper_is_ended(self):
        socket = self.keeper()
        log = self.path("log")
        self.start(
            [harness.TRAIN, "train", *harness.MODEL, "--seq-len", LENGTH,
             "--steps", "100000", "--socket", socket, "--data", self.text,
             "--log-jsonl", log])
        self.wait_until(lambda: len(harness.lines_of(log)) > 2,
                        "the run does not train")
        self.end(self.keeper_process)
        self.assertEqual(self.keeper_process.returncode, 0)
        # The run keeps its mapped memory and continues.
        steps = len(harness.lines_of(log))
        self.wait_until(lambda: len(harness.lines_of(log)) > steps + 2,
                        "the run stands still")


if __name__ == "__main__":
    unittest.main()
