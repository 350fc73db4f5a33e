"""A daemon that is killed between any two steps of a change takes nothing with
it: a run under it goes on, and comes to the same numbers.

`crashing-sluiced` dies where a plan says (tests/daemon/crash), counted from the
run's first rank on, and tells how many were attached. What the keeper holds for
it is what systemd would: it speaks the same protocol.
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

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                "../../support"))
import native_session

CRASHING = os.path.join(harness.BIN, "crashing-sluiced")
SETTINGS = ("--ranks 2 --seq-len 333 --seed 3 --hbm 24MiB --alpha 0.5 "
            "--json").split()
STEPS = 4
ENDLESS = 100_000  # steps, of which a run does as many as are wanted
# Only a start passes them that finds something left, and a checkpoint what fills
# the ring of records: several lives in one run end there, one after the other.
OF_A_START = ["state-read", "extents-adopted", "sessions-adopted",
              "core-loaded", "checkpoint-saved", "adopted-saved", "taken-over",
              "ready-told"]
# Only passed when a process has ended, or memory was not leased for a while:
# the last rank may have gone by then. At all others one is attached.
OF_AN_END = ["process-dropped", "extent-dropped", "extent-released"]
# Passed often in a run: at several moments of it.
OFTEN = {"session-put": (1, 2), "session-stored": (1, 2),
         "session-released": (1, 2),
         "message-sent": (1, 3, 6), "barrier-passed": (1, 3),
         "change-unsaved": (2, 9), "change-saved": (2, 9),
         "record-begun": (2, 7), "unpublished": (2, 7),
         "record-saved": (2, 7), "packet-sent": (1, 2, 5),
         "effects-done": (2, 9)}
# Parts of what is free, which stay for a while.
OF_FREE = "kept_bytes", "ready_bytes"
MOMENTS = int(os.environ.get("SLUICE_MOMENTS", "20" if harness.WHOLE else "5"))


def names():
    said = subprocess.run([CRASHING, "--list-crash-points"], check=True,
                          capture_output=True, text=True).stdout
    return said.split()


def makes_extents(plan):
    """Those points are passed where extents are made, not used again."""
    return any(name.startswith(("extent", "barrier")) for name, _ in plan)


def write_plan(path, plan):
    """Writes the plan for a service that may run as another user."""
    if os.path.exists(path + ".died"):
        os.unlink(path + ".died")
    with open(path, "w", encoding="ascii") as file:
        file.writelines(f"{name} {count}\n" for name, count in plan)
    os.chmod(path, 0o644)


def died_under_ranks(path, plan):
    """All of it, in that order; None, or what is wrong."""
    with open(path + ".died", encoding="ascii") as file:
        died = [line.split() for line in file]
    if [name for name, _ in died] != [name for name, _ in plan]:
        return f"{plan}: died at {died}"
    alone = [name for name, ranks in died
             if ranks == "0" and name not in OF_AN_END]
    return f"{plan}: no rank was attached at {alone}" if alone else None


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
        self.wait_until(lambda: os.path.exists(self.socket),
                        "no daemon starts")

    def daemon_pid(self):
        return next(iter(harness.children_of(self.keeper_process.pid)), None)

    def renewed(self):
        """The daemon begins to follow a plan that is there by now."""
        before = self.daemon_pid()
        os.kill(before, signal.SIGKILL)
        self.wait_until(lambda: self.daemon_pid() not in (None, before),
                        "no daemon follows")

    def flags(self, name, steps):
        return [*harness.MODEL, *SETTINGS, "--steps", str(steps), "--socket",
                self.socket, "--job", name, "--data", self.text,
                "--log-jsonl", self.path(name + ".jsonl")]

    def losses_of(self, name):
        """As far as it is."""
        return [line["loss"]
                for line in harness.lines_of(self.path(name + ".jsonl"))]

    def losses(self, name):
        code, _, err = self.run_train(*self.flags(name, STEPS))
        self.assertEqual(code, 0, f"{name}: {err}\n{self.said()}")
        return self.losses_of(name)

    def said(self):
        return self.keepers_log()[-4000:]

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
        """One run, with a daemon that dies at each point of the plan."""
        if makes_extents(plan):
            self.wait_until(self.keeps_nothing, "extents are kept")
        write_plan(self.plan, plan)
        self.renewed()
        name = "-".join(f"{name}-{count}" for name, count in plan)[:60]
        self.assertEqual(self.losses(name), self.calm, plan)
        self.wait_until(lambda: self.ledger() == self.before,
                        f"the ledger is another after {plan}")
        # What is destroyed after the run is passed then.
        self.wait_until(lambda: os.path.getsize(self.plan) == 0,
                        f"not all of it is reached: {plan}")
        self.assertIsNone(died_under_ranks(self.plan, plan))
        self.wait_until(lambda: self.ledger() == self.before,
                        f"the ledger is another after {plan}")

    def begin(self, program=CRASHING):
        self.kept(program)
        self.wait_until(lambda: self.ledger() != [], "no daemon answers")
        self.before = self.ledger()
        self.calm = self.losses("calm")
        self.assertEqual(len(self.calm), STEPS)
        self.wait_until(lambda: self.ledger() == self.before,
                        "memory is left")

    def test_each_point_is_reached_and_survived(self):
        self.begin()
        listed = names()
        self.assertEqual(len(listed), len(set(listed)))
        self.assertLessEqual({*OF_A_START, *OF_AN_END, *OFTEN}, set(listed))
        for name in listed:
            if name in OF_A_START:
                continue
            counts = OFTEN.get(name, (1,))
            for count in counts if harness.WHOLE else counts[-1:]:
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

    def run_endless(self, name):
        """A run that the test ends."""
        with open(self.path(name + ".err"), "w", encoding="utf-8") as err:
            return self.start([harness.TRAIN, "train",
                               *self.flags(name, ENDLESS)],
                              stdout=subprocess.DEVNULL, stderr=err)

    def goes_on(self, run, name, steps):
        """Until it has done so many."""
        def there():
            with open(self.path(name + ".err"), encoding="utf-8") as err:
                self.assertIsNone(run.poll(), f"{err.read()}\n{self.said()}")
            return len(self.losses_of(name)) >= steps
        self.wait_until(there, f"{name} does not go on")

    def test_a_checkpoint_in_the_middle_of_a_run(self):
        """The requests of another session have filled the ring of records."""
        self.begin()
        write_plan(self.plan, [("checkpoint-saved", 1)])
        self.renewed()  # before there is a rank, so its own does not count
        run = self.run_endless("filled")
        self.goes_on(run, "filled", 1)
        self.fill_records()
        steps = len(self.losses_of("filled")) + 2
        self.goes_on(run, "filled", steps)
        self.end(run)
        self.assertIsNone(died_under_ranks(self.plan,
                                           [("checkpoint-saved", 1)]))
        self.compare("filled")

    def fill_records(self):
        """Leases and frees until the planned death."""
        with native_session.Session(
                os.path.join(harness.BIN, "../lib/libsluice.so"), "fills",
                self.socket) as session:
            end = time.monotonic() + 120
            while os.path.getsize(self.plan) > 0:
                self.assertLess(time.monotonic(), end, "no checkpoint comes")
                session.free(session.lease(1 << 16))

    def test_random_moments_of_one_run(self):
        """All of them from its first rank on, and it goes on behind the last."""
        self.begin(os.path.join(harness.BIN, "sluiced"))
        run, left = self.run_endless("killed"), [MOMENTS]
        self.wait_until(lambda: "of job killed," in self.keepers_log(),
                        "no rank attaches")
        self.kill_until(threading.Event(), random.Random(7), left)
        self.goes_on(run, "killed", len(self.losses_of("killed")) + 2)
        self.end(run)
        print(f"killed at {MOMENTS} random moments of one run of "
              f"{self.compare('killed')} steps")

    def compare(self, name):
        """The steps of a run that is over, which are an undisturbed run's."""
        losses = self.losses_of(name)
        calm = self.run_endless("undisturbed")
        self.goes_on(calm, "undisturbed", len(losses))
        self.end(calm)
        self.assertEqual(self.losses_of("undisturbed")[:len(losses)], losses)
        self.wait_until(lambda: self.ledger() == self.before,
                        "the ledger is another")
        return len(losses)

    def test_random_moments_of_short_runs(self):
        """Their beginnings and ends too."""
        self.begin(os.path.join(harness.BIN, "sluiced"))
        moments, left = random.Random(5), [MOMENTS // 2]
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
            self.wait_until(lambda: self.ledger() == self.before,
                            "the ledger is another")

    def kill_until(self, done, moments, left):
        """Kills the daemon again and again, as long as any are left. Each second
        comes to serve first: on a machine with much to do none would, and a
        client waits 5 s for one that does."""
        served = -1
        while not done.is_set() and left[0] > 0:
            while (left[0] % 2 == 0 and self.served() <= served
                   and not done.is_set()):
                time.sleep(0.02)
            time.sleep(moments.uniform(0.01, 0.4))
            pid = self.daemon_pid()
            if pid is not None:
                served = self.served()
                left[0] -= harness.kill_if_there(pid)


if __name__ == "__main__":
    print(__doc__.splitlines()[0], file=sys.stderr)
    unittest.main()
