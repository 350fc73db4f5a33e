"""A daemon that is killed between any two steps of a change loses nothing: a
run under it goes on with the same losses.

`crashing-sluiced` dies at the points of a plan (tests/daemon/crash). It counts
a point's passes from the run's first rank on, and writes how many ranks were
attached at its death. The keeper stores the daemon's descriptors, by systemd's
protocol.
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
ENDLESS = 100_000  # steps; the test ends the run earlier
# Points that are passed only by a start that finds stored state, or by the
# checkpoint of a full ring of records. The daemons of one run die at them in
# turn.
OF_A_START = ["state-read", "extents-adopted", "sessions-adopted",
              "core-loaded", "checkpoint-saved", "adopted-saved", "taken-over",
              "ready-told"]
# Points that are passed only after a process has ended, or after memory was
# not leased for a while: the last rank may have ended by then. At all other
# points a rank is attached.
OF_AN_END = ["process-dropped", "extent-dropped", "extent-released"]
# Points that a run passes often, each with the passes at which a daemon dies.
OFTEN = {"session-put": (1, 2), "session-stored": (1, 2),
         "session-released": (1, 2),
         "message-sent": (1, 3, 6), "barrier-passed": (1, 3),
         "change-unsaved": (2, 9), "change-saved": (2, 9),
         "record-begun": (2, 7), "unpublished": (2, 7),
         "record-saved": (2, 7), "packet-sent": (1, 2, 5),
         "effects-done": (2, 9)}
# Fields of a pool that may differ after a run: free memory that is kept for a
# while.
OF_FREE = "kept_bytes", "ready_bytes"
MOMENTS = int(os.environ.get("SLUICE_MOMENTS", "20" if harness.WHOLE else "5"))


def names():
    said = subprocess.run([CRASHING, "--list-crash-points"], check=True,
                          capture_output=True, text=True).stdout
    return said.split()


def makes_extents(plan):
    """Returns whether the plan has points that are passed only when extents
    are made, not when they are reused."""
    return any(name.startswith(("extent", "barrier")) for name, _ in plan)


def write_plan(path, plan):
    """Writes the plan, readable for a service that may run as another user."""
    if os.path.exists(path + ".died"):
        os.unlink(path + ".died")
    with open(path, "w", encoding="ascii") as file:
        file.writelines(f"{name} {count}\n" for name, count in plan)
    os.chmod(path, 0o644)


def died_under_ranks(path, plan):
    """Returns None if the daemon died at all points of the plan, in that
    order, with ranks attached; otherwise what is wrong."""
    with open(path + ".died", encoding="ascii") as file:
        died = [line.split() for line in file]
    if [name for name, _ in died] != [name for name, _ in plan]:
        return f"{plan}: died at {died}"
    alone = [name for name, ranks in died
             if ranks == "0" and name not in OF_AN_END]
    return f"{plan}: no rank was attached at {alone}" if alone else None


class CrashPoints(harness.TrainTest):

    def kept(self, program):
        """Starts a keeper that runs `program` as its daemon. crashing-sluiced
        dies at the points in the file self.plan."""
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
        """Restarts the daemon, so that it follows the plan just written."""
        before = self.daemon_pid()
        os.kill(before, signal.SIGKILL)
        self.wait_until(lambda: self.daemon_pid() not in (None, before),
                        "no next daemon starts")

    def flags(self, name, steps):
        return [*harness.MODEL, *SETTINGS, "--steps", str(steps), "--socket",
                self.socket, "--job", name, "--data", self.text,
                "--log-jsonl", self.path(name + ".jsonl")]

    def losses_of(self, name):
        """Returns the losses that the run has logged so far."""
        return [line["loss"]
                for line in harness.lines_of(self.path(name + ".jsonl"))]

    def losses(self, name):
        code, _, err = self.run_train(*self.flags(name, STEPS))
        self.assertEqual(code, 0, f"{name}: {err}\n{self.said()}")
        return self.losses_of(name)

    def said(self):
        return self.keepers_log()[-4000:]

    def pools(self):
        """Returns None if no daemon answers at the moment."""
        answer = subprocess.run(
            [os.path.join(harness.BIN, "sluicectl"), "--socket", self.socket,
             "status", "--json"], capture_output=True, text=True, check=False)
        if answer.returncode:
            return None
        found = json.loads(answer.stdout)
        return found["gpus"] + found["host"]

    def ledger(self):
        """Returns the bytes of each pool, or an empty list if no daemon
        answers."""
        return [{key: value for key, value in pool.items()
                 if key.endswith("_bytes") and key not in OF_FREE}
                for pool in self.pools() or []]

    def keeps_nothing(self):
        """Returns whether no extent is left that the next run would reuse."""
        pools = self.pools()
        return pools is not None and not any(p["kept_bytes"] for p in pools)

    def crash(self, plan):
        """Does one run during which a daemon dies at each point of the plan.
        """
        if makes_extents(plan):
            self.wait_until(self.keeps_nothing,
                            "extents of the last run are still kept")
        write_plan(self.plan, plan)
        self.renewed()
        name = "-".join(f"{name}-{count}" for name, count in plan)[:60]
        self.assertEqual(self.losses(name), self.calm, plan)
        self.wait_until(lambda: self.ledger() == self.before,
                        f"the ledger differs after {plan}")
        # Extents that are destroyed after the run pass their points late.
        self.wait_until(lambda: os.path.getsize(self.plan) == 0,
                        f"not all points were reached: {plan}")
        self.assertIsNone(died_under_ranks(self.plan, plan))
        self.wait_until(lambda: self.ledger() == self.before,
                        f"the ledger differs after {plan}")

    def begin(self, program=CRASHING):
        self.kept(program)
        self.wait_until(lambda: self.ledger() != [], "no daemon answers")
        self.before = self.ledger()
        self.calm = self.losses("calm")
        self.assertEqual(len(self.calm), STEPS)
        self.wait_until(lambda: self.ledger() == self.before,
                        "the ledger differs after a calm run")

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
        # One daemon dies in the middle of the run, then each next daemon while
        # it starts.
        self.crash([("record-saved", 5), *((n, 1) for n in OF_A_START)])

    def test_a_run_survives_several_deaths(self):
        self.begin()
        self.crash([("session-stored", 2), ("extent-put", 1),
                    ("taken-over", 1), ("unpublished", 3),
                    ("checkpoint-saved", 1), ("packet-sent", 2)])

    def run_endless(self, name):
        """Starts a run that the test ends."""
        with open(self.path(name + ".err"), "w", encoding="utf-8") as err:
            return self.start([harness.TRAIN, "train",
                               *self.flags(name, ENDLESS)],
                              stdout=subprocess.DEVNULL, stderr=err)

    def goes_on(self, run, name, steps):
        """Waits until the run has done that many steps."""
        def there():
            with open(self.path(name + ".err"), encoding="utf-8") as err:
                self.assertIsNone(run.poll(), f"{err.read()}\n{self.said()}")
            return len(self.losses_of(name)) >= steps
        self.wait_until(there, f"the run {name} makes no steps")

    def test_a_run_survives_a_death_at_a_checkpoint(self):
        """Another session's requests fill the ring of records."""
        self.begin()
        write_plan(self.plan, [("checkpoint-saved", 1)])
        # The restart precedes the first rank, so that the restart's own
        # checkpoint does not count.
        self.renewed()
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
        """Leases and frees memory until the daemon dies as planned."""
        with native_session.Session(
                os.path.join(harness.BIN, "../lib/libsluice.so"), "fills",
                self.socket) as session:
            end = time.monotonic() + 120
            while os.path.getsize(self.plan) > 0:
                self.assertLess(time.monotonic(), end,
                                "no checkpoint was saved")
                session.free(session.lease(1 << 16))

    def test_a_run_survives_kills_at_random_moments(self):
        """All kills come after the first rank attached; the run continues
        after the last kill."""
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
        """Checks that a run that has ended logged the losses of an undisturbed
        run; returns the number of its steps."""
        losses = self.losses_of(name)
        calm = self.run_endless("undisturbed")
        self.goes_on(calm, "undisturbed", len(losses))
        self.end(calm)
        self.assertEqual(self.losses_of("undisturbed")[:len(losses)], losses)
        self.wait_until(lambda: self.ledger() == self.before,
                        "the ledger differs after the run")
        return len(losses)

    def test_short_runs_survive_kills_at_random_moments(self):
        """Kills also fall into the beginnings and ends of the runs."""
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
                            "the ledger differs after the run")

    def kill_until(self, done, moments, left):
        """Kills the daemon repeatedly, left[0] times or until `done` is set.
        Every second daemon serves before it is killed: otherwise no daemon
        might serve on a busy machine, and a client waits at most 5 s."""
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
