#!/usr/bin/env python3
"""confined_test.py WORKER: a worker drops the capabilities and the priority
limit that it inherits from its daemon. The tests are skipped without root."""

import os
import re
import resource
import subprocess
import sys
import time
import unittest

WORKER = sys.argv.pop()
NICE = 13  # RLIMIT_NICE, which the module resource does not define


class Confined(unittest.TestCase):

    def test_a_worker_drops_inherited_capabilities(self):
        if os.geteuid() != 0:
            self.skipTest("only root can give capabilities")
        status = self.status(self.confined(
            "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
            "--inh-caps=+sys_ptrace", "--ambient-caps=+sys_ptrace"))
        for caps in "CapInh", "CapPrm", "CapEff", "CapAmb":
            self.assertEqual(int(status[caps], 16), 0, caps)

    def test_a_worker_drops_the_priority_limit_of_its_daemon(self):
        try:
            resource.prlimit(os.getpid(), NICE, (35, 35))
        except (ValueError, PermissionError):
            self.skipTest("only CAP_SYS_RESOURCE can give priority")
        self.assertEqual(resource.prlimit(self.confined(), NICE), (0, 0))

    def confined(self, *starter):
        """Starts a worker by the command `starter`, waits until the worker has
        dropped its capabilities, and returns its pid."""
        # The worker waits at its first read, because its request never
        # arrives.
        request, unsent = os.pipe()
        self.addCleanup(os.close, unsent)
        worker = subprocess.Popen(
            [*starter, WORKER, "--in-fd", str(request), "--out-fd", "1"],
            pass_fds=[request], stdout=subprocess.DEVNULL)
        os.close(request)
        self.addCleanup(worker.wait)
        self.addCleanup(worker.kill)
        end = time.monotonic() + 20
        while self.status(worker.pid)["NoNewPrivs"] != "1":
            self.assertLess(time.monotonic(), end, "it is not confined")
            self.assertIsNone(worker.poll())
            time.sleep(0.01)
        return worker.pid

    def status(self, pid):
        with open(f"/proc/{pid}/status", encoding="ascii") as file:
            return dict(re.findall(r"^(\w+):\t(.*)$", file.read(), re.M))


if __name__ == "__main__":
    unittest.main()
