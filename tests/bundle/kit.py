"""Helpers for the tests of ./verify: run it on the fake driver and read what
it writes. A test program's first argument is the folder that has `verify` and
the programs that it runs. The second is the folder of the fakes."""

import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
BIN, FAKE = (os.path.abspath(a) for a in sys.argv[1:3])


class Verify(unittest.TestCase):
    patience_s = 200  # time limit of one run

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="verify-test-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        # The fake driver's files. A process that a test kills leaves its own.
        nodes = tempfile.TemporaryDirectory(prefix="verify-test-",
                                            dir="/dev/shm")
        self.addCleanup(nodes.cleanup)
        self.nodes = nodes.name

    def environment(self, fake):
        environment = {"PATH": os.environ["PATH"], "TMPDIR": self.folder,
                       "HOME": "/nonexistent/of-nobody"}
        if fake is not None:
            environment["LD_LIBRARY_PATH"] = FAKE
            environment["SLUICE_FAKE_CUDA"] = f"{fake},nodes={self.nodes}"
        return environment

    def start(self, *arguments, fake="gpus=2", before=None, kit=BIN):
        return subprocess.Popen(
            [kit + "/verify", "--out", self.folder, "--name", "test",
             "--json", *arguments],
            env=self.environment(fake), cwd="/", text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=before)

    def verify(self, *arguments, **how):
        process = self.start(*arguments, **how)
        out, self.said = process.communicate(timeout=self.patience_s)
        self.status = process.returncode
        return {c["name"]: c for c in json.loads(out)["checks"]}

    def archive(self):
        path = self.folder + "/sluice-verify-test.tar.gz"
        with tarfile.open(path) as packed:
            return {m.name: packed.extractfile(m).read().decode()
                    for m in packed.getmembers() if m.isfile()}

    def archived(self):
        report = self.archive()["sluice-verify-test/report.json"]
        return {c["name"]: c["status"] for c in json.loads(report)["checks"]}

    def expect_fails(self, name, reason, *arguments, **how):
        self.expect_failed(name, reason,
                           self.verify("--only", name, *arguments, **how))

    def expect_hangs(self, name, last, limits_s, *arguments, **how):
        """Expects that the check hangs after it has printed `last`, and is
        ended at its limit. A slow machine may reach a limit before the check
        prints `last`; then the next of `limits_s` is tried."""
        for limit_s in limits_s:
            checks = self.verify("--only", name, "--limit", str(limit_s),
                                 *arguments, **how)
            reason = f"did not end within {limit_s}s; it said last: {last}"
            if re.search(reason, checks[name].get("reason", "")):
                break
        self.expect_failed(name, reason, checks)

    def expect_failed(self, name, reason, checks):
        self.assertEqual(checks[name]["status"], "failed", self.said)
        self.assertRegex(checks[name]["reason"], reason)
        self.assertEqual(self.status, 1, self.said)
        self.assertEqual(self.archived()[name], "failed")

    def nothing_runs(self):
        """Waits until no process has this test's folder in its environment."""
        def ours():
            for pid in filter(str.isdigit, os.listdir("/proc")):
                try:
                    with open(f"/proc/{pid}/environ", "rb") as file:
                        if self.folder.encode() in file.read():
                            yield pid
                except OSError:
                    pass
        for _ in range(200):
            if not list(ours()):
                return
            time.sleep(0.05)
        self.fail(f"still running: {list(ours())}")
