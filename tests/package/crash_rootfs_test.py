#!/usr/bin/env python3
"""Crash points through systemd: crash_rootfs_test.py BUILD

As tests/integration/train/crash_points_test.py, where the keeper stores what
the daemon has; here it is systemd's descriptor store, in a Debian of its own
(rootfs_test.py). Each listed point is reached, then it is killed at random
moments; no run notices, and the ledger is as before.
"""

import os
import random
import signal
import subprocess
import sys
import threading

import rootfs_test
from rootfs import wait_until

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))), "integration", "train"))
os.environ.setdefault("SLUICE_BIN_DIR", "")  # of its harness, not needed here
from crash_points_test import MOMENTS, OF_A_START, OF_FREE  # noqa: E402

TRAIN = ("--layers 2 --hidden 64 --heads 4 --kv-heads 2 --ffn 96 --chunk 64 "
         "--ranks 2 --seq-len 333 --steps 4 --seed 3 --hbm 24MiB --alpha 0.5 "
         "--json").split()
PLAN = "/run/sluice/plan"
DROP_IN = """\
[Service]
ExecStart=
ExecStart=/usr/bin/crashing-sluiced --config /etc/sluice/sluiced.toml
Environment=SLUICE_CRASH_PLAN=%s
""" % PLAN


class Crashes(rootfs_test.Check):

    def follow_plans(self):
        """The service is the daemon that dies where it is told."""
        root = self.inside.root
        self.inside.put(self.build + "/bin/crashing-sluiced",
                        "/usr/bin/crashing-sluiced")
        folder = root + "/run/systemd/system/sluiced.service.d"
        os.makedirs(folder)
        with open(folder + "/crash.conf", "w", encoding="ascii") as file:
            file.write(DROP_IN)
        with open(root + rootfs_test.CONFIG, "a", encoding="ascii") as file:
            file.write("[restart]\nfreeze_after = 0\n")
        self.inside.run("systemctl", "daemon-reload")

    def points(self):
        return self.inside.run("/usr/bin/crashing-sluiced",
                               "--list-crash-points").split()

    def losses(self, name):
        """Of a run, which must end well."""
        text, log = self.work + "/text", f"{self.work}/{name}.jsonl"
        with open(text, "w", encoding="ascii") as file:
            file.write("The quick brown fox jumps over the lazy dog. " * 2000)
        done = subprocess.run(
            [self.build + "/bin/sluice-train", "train", *TRAIN, "--job", name,
             "--data", text, "--log-jsonl", log], capture_output=True,
            text=True, check=False)
        assert done.returncode == 0, f"{name}: {done.stderr}"
        return [step["loss"] for step in rootfs_test.steps_in(log)]

    def ledger(self):
        """What each pool consists of."""
        return [{key: value for key, value in pool.items()
                 if key.endswith("_bytes") and key not in OF_FREE}
                for pool in self.pools()]

    def check_ledger(self, when):
        wait_until(lambda: self.leased() == 0, 20, f"{when}: memory is back")
        assert self.ledger() == self.before, f"{when}: {self.ledger()}"

    def keeps_nothing(self):
        return all(pool["kept_bytes"] == 0 for pool in self.pools())

    def crash(self, plan, calm):
        if any(name.startswith("extent") for name in plan):
            wait_until(self.keeps_nothing, 20, "no extent is kept")
        path = self.inside.root + PLAN
        with open(path, "w", encoding="ascii") as file:
            file.writelines(f"{name} 1\n" for name in plan)
        os.chmod(path, 0o644)
        # No success where it dies in its start; the next one serves.
        self.inside.succeeds("systemctl", "restart", "sluiced")
        self.serves()
        name = "-".join(plan)[:60]
        assert self.losses(name) == calm, f"{plan}: the losses differ"
        wait_until(lambda: os.path.getsize(path) == 0, 20, f"{plan} is reached")
        self.check_ledger(plan)

    def kill_at_random(self, calm):
        """So many times, in as many runs as that takes."""
        moments, left, runs = random.Random(5), [MOMENTS], 0

        def kill_until(done):
            while not done.wait(moments.uniform(0.01, 0.4)) and left[0] > 0:
                if pid := int(self.inside.show("MainPID")):
                    os.kill(pid, signal.SIGKILL)
                    left[0] -= 1

        while left[0] > 0:
            done, runs = threading.Event(), runs + 1
            killer = threading.Thread(target=kill_until, args=(done,))
            killer.start()
            try:
                assert self.losses(f"killed{runs}") == calm, "the losses differ"
            finally:
                done.set()
                killer.join()
            self.serves()
            self.check_ledger(f"killed in run {runs}")
        print(f"killed at {MOMENTS} random moments of {runs} runs; no loss "
              "differs")

    def all(self):
        self.inside.wait_for_boot()
        self.install()
        self.before = self.ledger()
        self.follow_plans()
        calm = self.losses("calm")
        assert len(calm) == 4, calm
        points = self.points()
        assert set(OF_A_START) < set(points)
        for name in points:
            if name not in OF_A_START:
                self.crash([name], calm)
        self.crash(["record-saved", *OF_A_START], calm)
        print(f"{len(points)} crash points were reached; no loss differs",
              flush=True)
        self.kill_at_random(calm)


if __name__ == "__main__":
    rootfs_test.main(__file__, Crashes)
