"""A daemon that is killed takes nothing with it where somebody keeps what it
had: a run under it goes on, and comes to the same numbers."""

import os
import random
import signal
import threading
import time
import unittest

import either_node
import harness

STEPS = 12
# A fake GPU is slow.
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
        """Kills the daemon again and again; how often. Each second comes to
        serve first: on a machine with much to do none would, and a client waits
        5 s for one that does."""
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

    def compare(self, *more):
        """Of an undisturbed run and one whose daemon dies all the time."""
        socket = self.keeper()
        calm = self.losses(socket, "calm", *more)
        self.assertEqual(len(calm), STEPS)
        done = threading.Event()
        kills = []
        killer = threading.Thread(target=lambda: kills.append(
            self.kill_until(done, random.Random(13))))
        killer.start()
        try:
            disturbed = self.losses(socket, "disturbed", *more)
        finally:
            done.set()
            killer.join()
        self.assertGreaterEqual(kills[0], 3)
        self.assertEqual(disturbed, calm)  # bit by bit
        self.wait_until(lambda: self.leased(socket) == 0, 20,
                        "memory is left")

    def test_a_run_with_a_plan_is_bit_identical(self):
        self.compare()

    def test_a_run_that_swaps_and_recomputes_is_bit_identical(self):
        self.compare("--alpha", "0.5")

    def one(self, program, folder):
        """The one that runs, once there is exactly one."""
        found = []
        def alone():
            found[:] = harness.running(program, folder)
            return len(found) == 1
        self.wait_until(alone, 20, f"not one {program} runs")
        return found[0]

    def end_all(self, folder):
        """Whoever is the keeper by now, and its daemon."""
        def gone():
            for pid in harness.running("sluiced-keeper", folder):
                os.kill(pid, signal.SIGTERM)
            return not harness.running("sluiced", folder)
        self.wait_until(gone, 20, "sluiced goes on")

    def replaced(self):
        """How often another keeper has come to hold everything."""
        return self.keepers_log().count("is the keeper now")

    def kill_in_turns(self, folder, done, moments):
        """The keeper, and the daemon once the next one holds everything."""
        kills = 0
        while not done.is_set():
            time.sleep(moments.uniform(0.02, 0.4))
            kills += harness.kill_if_there(self.one("sluiced-keeper", folder))
            self.wait_until(lambda kills=kills: self.replaced() == kills, 20,
                            "no keeper holds everything")
            time.sleep(moments.uniform(0, 0.2))
            harness.kill_if_there(self.one("sluiced", folder))
        return kills

    def test_a_run_is_bit_identical_while_keepers_and_daemons_die(self):
        socket = self.keeper()
        folder = os.path.dirname(socket)
        self.addCleanup(self.end_all, folder)
        calm = self.losses(socket, "calm")
        done = threading.Event()
        kills = []
        killer = threading.Thread(target=lambda: kills.append(
            self.kill_in_turns(folder, done, random.Random(29))))
        killer.start()
        try:
            disturbed = self.losses(socket, "disturbed")
        finally:
            done.set()
            killer.join()
        print(f"{kills[0]} keepers and as many daemons killed in one run")
        self.assertGreaterEqual(kills[0], 3)
        self.assertEqual(disturbed, calm)  # bit by bit
        self.one("sluiced", folder)
        self.wait_until(lambda: self.leased(socket) == 0, 20,
                        "memory is left")

    def test_a_run_goes_on_when_the_keeper_is_ended(self):
        socket = self.keeper()
        log = self.path("log")
        self.start(
            [harness.TRAIN, "train", *harness.MODEL, "--seq-len", LENGTH,
             "--steps", "100000", "--socket", socket, "--data", self.text,
             "--log-jsonl", log])
        self.wait_until(lambda: len(harness.lines_of(log)) > 2, 60,
                        "it does not train")
        self.end(self.keeper_process)
        self.assertEqual(self.keeper_process.returncode, 0)
        # What it has mapped stays.
        steps = len(harness.lines_of(log))
        self.wait_until(lambda: len(harness.lines_of(log)) > steps + 2, 60,
                        "it stands still")


if __name__ == "__main__":
    unittest.main()
