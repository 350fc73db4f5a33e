"""A daemon that is killed between any two steps of a change takes nothing with
it: a run under it goes on, and comes to the same numbers.

`crashing-sluiced` dies where a plan says (tests/daemon/crash). What the keeper
holds for it is what systemd would: it speaks the same protocol.
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import unittest

import harness

CRASHING = os.path.join(harness.BIN, "crashing-sluiced")
SETTINGS = ("--ranks 2 --seq-len 333 --steps 4 --seed 3 --hbm 24MiB "
            "--alpha 0.5 --json").split()
# Passed by every start with something left, whatever runs then: several lives
# in one run end there, one after the other.
OF_A_START = ["state-read", "extents-adopted", "sessions-adopted",
              "core-loaded", "adopted-saved", "taken-over", "ready-told"]
# Passed often in a run: at several moments of it.
OFTEN = {"message-sent": (1, 3, 6), "barrier-passed": (1, 3),
         "change-unsaved": (2, 9), "change-saved": (2, 9),
         "record-begun": (2, 7), "unpublished": (2, 7),
         "record-saved": (2, 7), "packet-sent": (1, 2, 5),
         "effects-done": (2, 9)}
# Parts of what is free, which stay for a while.
OF_FREE = "kept_bytes", "ready_bytes"
MOMENTS = int(os.environ.get("SLUICE_MOMENTS", "20"))


def names():
    said = subprocess.run([CRASHING, "--list-crash-points"], check=True,
                          capture_output=True, text=True).stdout
    return said.split()


class CrashPoints(harness.TrainTest):

    def kept(self, program):
        """A keeper of that daemon, which dies as `plan` says."""
        runtime, config = self.configure()
        self.plan = self.path("plan")
        self.log = open(self.path("keeper.log"), "w", encoding="utf-8")
        self.addCleanup(self.log.close)
        self.keeper_process = self.start(
            [os.path.join(harness.BIN, "sluiced-keeper"), "--runtime-dir",
             runtime, "--program", program, "--", "--config", config],
            {"SLUICE_CRASH_PLAN": self.plan}, stdout=self.log,
            stderr=self.log)
        self.socket = os.path.join(runtime, "session.sock")
        self.wait_until(lambda: os.path.exists(self.socket), 20,
                        "no daemon starts")

    def daemon_pid(self):
        return next(iter(harness.children_of(self.keeper_process.pid)), None)

    def renewed(self):
        """The daemon begins to follow a plan that is there by now."""
        before = self.daemon_pid()
        os.kill(before, signal.SIGKILL)
        self.wait_until(lambda: self.daemon_pid() not in (None, before), 20,
                        "no daemon follows")

    def losses(self, name):
        log = self.path(name + ".jsonl")
        code, _, err = self.run_train(
            *harness.MODEL, *SETTINGS, "--socket", self.socket, "--job", name,
            "--data", self.text, "--log-jsonl", log)
        self.assertEqual(code, 0, f"{name}: {err}\n{self.said()}")
        return [line["loss"] for line in harness.lines_of(log)]

    def said(self):
        with open(self.path("keeper.log"), encoding="utf-8") as file:
            return file.read()[-4000:]

    def pools(self):
        """None: no daemon answers just now."""
        answer = subprocess.run(
            [os.path.join(harness.BIN, "sluicectl"), "--socket", self.socket,
             "status", "--json"], capture_output=True, text=True, check=False)
        if answer.returncode:
            return None
        found = json.loads(answer.stdout)
        return found["gpus"] + found["host"]

    def ledger(self):
        """What each pool consists of; nothing where no daemon answers."""
        return [{key: value for key, value in pool.items()
                 if key.endswith("_bytes") and key not in OF_FREE}
                for pool in self.pools() or []]

    def keeps_nothing(self):
        """No extent is left that the next run would use again."""
        pools = self.pools()
        return pools is not None and not any(p["kept_bytes"] for p in pools)

    def crash(self, plan):
        """One run whose daemon's lives end as the plan says."""
        if any(name.startswith("extent") for name, _ in plan):
            self.wait_until(self.keeps_nothing, 20, "extents are kept")
        with open(self.plan, "w", encoding="ascii") as file:
            file.writelines(f"{name} {count}\n" for name, count in plan)
        self.renewed()
        name = "-".join(f"{name}-{count}" for name, count in plan)[:60]
        self.assertEqual(self.losses(name), self.calm, plan)
        self.wait_until(lambda: self.ledger() == self.before, 20,
                        f"the ledger is another after {plan}")
        # What is destroyed after the run is passed then.
        self.wait_until(lambda: os.path.getsize(self.plan) == 0, 20,
                        f"not reached: {open(self.plan).read()} of {plan}")
        self.wait_until(lambda: self.ledger() == self.before, 20,
                        f"the ledger is another after {plan}")

    def begin(self, program=CRASHING):
        self.kept(program)
        self.wait_until(lambda: self.ledger() != [], 20, "no daemon answers")
        self.before = self.ledger()
        self.calm = self.losses("calm")
        self.assertEqual(len(self.calm), 4)
        self.wait_until(lambda: self.ledger() == self.before, 20,
                        "memory is left")

    def test_each_point_is_reached_and_survived(self):
        self.begin()
        listed = names()
        self.assertEqual(len(listed), len(set(listed)))
        self.assertLessEqual({*OF_A_START, *OFTEN}, set(listed))
        for name in listed:
            if name in OF_A_START:
                continue
            for count in OFTEN.get(name, (1,)):
                with self.subTest(point=name, count=count):
                    self.crash([(name, count)])

    def test_a_start_may_die_at_each_of_its_steps(self):
        self.begin()
        # One that dies in the middle of the run, and starts that die then.
        self.crash([("record-saved", 5), *((n, 1) for n in OF_A_START)])

    def test_several_deaths_in_one_run(self):
        self.begin()
        self.crash([("session-stored", 2), ("extent-put", 1),
                    ("taken-over", 1), ("unpublished", 3),
                    ("checkpoint-saved", 1), ("packet-sent", 2)])

    def test_random_moments(self):
        self.begin(os.path.join(harness.BIN, "sluiced"))
        moments, left = random.Random(5), [MOMENTS]
        while left[0] > 0:
            done = threading.Event()
            killer = threading.Thread(target=self.kill_until,
                                      args=(done, moments, left))
            killer.start()
            try:
                self.assertEqual(self.losses(f"at{left[0]}"), self.calm)
            finally:
                done.set()
                killer.join()
            self.wait_until(lambda: self.ledger() == self.before, 20,
                            "the ledger is another")

    def served(self):
        """How many daemons have come to serve."""
        with open(self.path("keeper.log"), encoding="utf-8") as file:
            return file.read().count("sluiced: ready")

    def kill_until(self, done, moments, left):
        """Kills the daemon again and again, as long as any are left. Each third
        comes to serve first: on a machine with much to do none would, and a
        client waits 5 s for one that does."""
        served = -1
        while not done.is_set() and left[0] > 0:
            while (left[0] % 3 == 0 and self.served() <= served
                   and not done.is_set()):
                time.sleep(0.02)
            time.sleep(moments.uniform(0.01, 0.4))
            pid = self.daemon_pid()
            if pid is not None:
                served = self.served()
                os.kill(pid, signal.SIGKILL)
                left[0] -= 1


if __name__ == "__main__":
    print(__doc__.splitlines()[0], file=sys.stderr)
    unittest.main()
