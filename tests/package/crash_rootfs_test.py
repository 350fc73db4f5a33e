#!/usr/bin/env python3
"""Crashes the daemon under systemd: crash_rootfs_test.py BUILD

Does what tests/integration/train/crash_points_test.py does, with systemd's
descriptor store in place of the keeper, in a separate Debian (rootfs_test.py).
The daemon dies at each point around which descriptors are put into the store or
removed from it (with SLUICE_WHOLE=1 at each listed point). A rank is attached,
except at points that are passed after a process has ended. Then the shipped
daemon is killed at random moments of one run. No run notices, and the
ledger is unchanged. The test also prints how long a session waits for the next
daemon's first reply.
"""

import contextlib
import os
import random
import signal
import statistics
import subprocess
import sys
import time

import booted
import first_reply
from rootfs import wait_until
from service import NEVER_FROZEN, Service
from training_run import Run, is_as_undisturbed, steps_in

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))), "integration", "train"))
# harness.py reads this variable; this test does not need it.
os.environ.setdefault("SLUICE_BIN_DIR", "")
from crash_points_test import (
    MOMENTS,
    OF_A_START,
    OF_AN_END,
    OF_FREE,
    OFTEN,
    died_under_ranks,
    makes_extents,
    write_plan,
)
from harness import WHOLE

TRAIN = ("--layers 2 --hidden 64 --heads 4 --kv-heads 2 --ffn 96 --chunk 64 "
         "--ranks 2 --seq-len 333 --steps 4 --seed 3 --hbm 24MiB --alpha 0.5 "
         "--json").split()
PLAN = "/run/sluice/plan"
DROP_INS = "/run/systemd/system/sluiced.service.d"
# At these points the daemon stores no descriptor. crash_points_test.py covers
# them.
OF_RECORDS = ["change-unsaved", "record-begun", "unpublished", "record-saved",
              "checkpoint-saved", "change-saved", "packet-sent", "effects-done"]
DROP_IN = """\
[Service]
ExecStart=
ExecStart=/usr/bin/crashing-sluiced --config /etc/sluice/sluiced.toml
Environment=SLUICE_CRASH_PLAN=%s
""" % PLAN


class Crashes(Service):

    def follow_plans(self):
        """Makes the service run the daemon that dies as planned."""
        root = self.inside.root
        self.inside.put(self.build + "/bin/crashing-sluiced",
                        "/usr/bin/crashing-sluiced")
        os.makedirs(root + DROP_INS)
        with open(f"{root}{DROP_INS}/crash.conf", "w",
                  encoding="ascii") as file:
            file.write(DROP_IN)
        self.configure(NEVER_FROZEN)
        self.inside.run("systemctl", "daemon-reload")

    def follow_none(self):
        """Makes the service run the shipped daemon again."""
        os.unlink(f"{self.inside.root}{DROP_INS}/crash.conf")
        self.inside.run("systemctl", "daemon-reload")
        self.inside.run("systemctl", "restart", "sluiced")
        exe = os.readlink(f"/proc/{self.serves()}/exe")
        assert os.path.basename(exe) == "sluiced", exe

    def points(self):
        return self.inside.run("/usr/bin/crashing-sluiced",
                               "--list-crash-points").split()

    def losses(self, name):
        """Returns the losses of a run, which must succeed."""
        text, log = self.work + "/text", f"{self.work}/{name}.jsonl"
        with open(text, "w", encoding="ascii") as file:
            file.write("The quick brown fox jumps over the lazy dog. " * 2000)
        done = subprocess.run(
            [self.build + "/bin/sluice-train", "train", *TRAIN, "--job", name,
             "--data", text, "--log-jsonl", log], capture_output=True,
            text=True, check=False)
        assert done.returncode == 0, f"{name}: {done.stderr}"
        return [step["loss"] for step in steps_in(log)]

    def ledger(self):
        """Returns the bytes of each pool, without free memory."""
        return [{key: value for key, value in pool.items()
                 if key.endswith("_bytes") and key not in OF_FREE}
                for pool in self.pools()]

    def check_ledger(self, when):
        wait_until(lambda: self.leased() == 0, f"{when}: memory is back")
        assert self.ledger() == self.before, f"{when}: {self.ledger()}"

    def keeps_nothing(self):
        return all(pool["kept_bytes"] == 0 for pool in self.pools())

    def crash(self, plan, calm):
        if makes_extents(plan):
            wait_until(self.keeps_nothing, "no extent is kept")
        path = self.inside.root + PLAN
        write_plan(path, plan)
        # `restart` fails if the daemon dies while it starts, so its status is
        # ignored. The next daemon serves.
        self.inside.succeeds("systemctl", "restart", "sluiced")
        self.serves()
        name = "-".join(name for name, _ in plan)[:60]
        assert self.losses(name) == calm, f"{plan}: the losses differ"
        wait_until(lambda: os.path.getsize(path) == 0, f"{plan} is reached")
        assert (wrong := died_under_ranks(path, plan)) is None, wrong
        self.check_ledger(plan)

    def kill_at_random(self):
        """Kills the daemon MOMENTS times during one run, which continues after
        the last kill."""
        moments, left = random.Random(5), MOMENTS
        run = Run(self.build, self.work, "killed")
        wait_until(self.leased, "a rank has a lease")
        while left > 0:
            # Every second daemon serves before its death. Otherwise no daemon
            # would live long enough to serve on a busy machine.
            if left % 2 == 0:
                self.serves()
            time.sleep(moments.uniform(0.01, 0.4))
            if pid := int(self.inside.show("MainPID")):
                # MainPID may still be that of the daemon killed before.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    left -= 1
        run.goes_on()
        is_as_undisturbed(self.build, self.work, run)
        self.serves()
        self.check_ledger("killed at random")
        print(f"killed at {MOMENTS} random moments of one run", flush=True)

    def replies_soon(self):
        """Checks that no reply takes as long as a client's deadline. Only
        `./dev bench upgrade` has strict limits."""
        milliseconds = first_reply.measured(self)
        assert statistics.median(milliseconds) <= 1000, milliseconds
        assert milliseconds[-1] <= 10000, milliseconds

    def all(self):
        self.inside.wait_for_boot()
        self.install()
        self.before = self.ledger()
        self.follow_plans()
        calm = self.losses("calm")
        assert len(calm) == 4, calm
        points = self.points()
        assert {*OF_A_START, *OF_AN_END, *OF_RECORDS} < set(points)
        left_out = {*OF_A_START, *(() if WHOLE else OF_RECORDS)}
        for name in points:
            if name not in left_out:
                self.crash([(name, OFTEN.get(name, (1,))[-1])], calm)
        self.crash([("record-saved", 5), *((n, 1) for n in OF_A_START)], calm)
        reached = {*points} - left_out | {"record-saved", *OF_A_START}
        print(f"{len(reached)} crash points were reached, all but "
              f"{len(OF_AN_END)} with a rank attached; no loss differs",
              flush=True)
        self.follow_none()
        self.kill_at_random()
        self.replies_soon()


if __name__ == "__main__":
    booted.main(__file__, Crashes)
