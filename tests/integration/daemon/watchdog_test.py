#!/usr/bin/env python3
"""watchdog_test.py SLUICED: sluiced notifies its parent's watchdog while its
loop runs."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

SLUICED = sys.argv.pop()
PERIOD_S = 0.4


class Watchdog(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.starter = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(self.starter.close)
        self.starter.bind(folder.name + "/notify.sock")
        config = folder.name + "/sluiced.toml"
        with open(config, "w", encoding="ascii") as file:
            file.write('[device]\ndriver = "sim"\n[http]\nlisten = ""\n')
        self.began = time.monotonic()
        self.daemon = subprocess.Popen(
            [SLUICED, "--config", config,
             "--runtime-dir", folder.name + "/run"],
            env={**os.environ, "NOTIFY_SOCKET": folder.name + "/notify.sock",
                 "WATCHDOG_USEC": str(int(PERIOD_S * 1e6))},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(self.daemon.wait)
        self.addCleanup(self.daemon.kill)

    def wait_for(self, line, patience_s):
        """Returns when a message that contains `line` came, or None."""
        end = time.monotonic() + patience_s
        while (left := end - time.monotonic()) > 0:
            self.starter.settimeout(left)
            try:
                text, handed, _, _ = socket.recv_fds(self.starter, 4096, 8)
            except TimeoutError:
                break
            # The sender of a barrier waits until this descriptor is closed.
            for descriptor in handed:
                os.close(descriptor)
            if line in text.decode().split("\n"):
                return time.monotonic()
        return None

    def test_the_daemon_notifies_in_time_until_it_is_stopped(self):
        self.assertIsNotNone(self.wait_for("READY=1", 120))
        last, gaps = time.monotonic(), []
        for _ in range(5):
            told = self.wait_for("WATCHDOG=1", 120)
            self.assertIsNotNone(told, "WATCHDOG=1 was not sent")
            gaps.append(told - last)
            last = told
        # Checks the median gap, because the machine may delay this test at
        # times.
        self.assertLess(sorted(gaps)[2], PERIOD_S, gaps)
        # The loop sleeps between notifications; it sends only two per period.
        count, end = len(gaps), last + 2 * PERIOD_S
        while self.wait_for("WATCHDOG=1", end - time.monotonic()):
            count += 1
        self.assertLess(
            count, 2 + (time.monotonic() - self.began) / (PERIOD_S / 2))
        self.daemon.send_signal(signal.SIGSTOP)
        # Some notifications may have been sent before the stop.
        for _ in range(20):
            if self.wait_for("WATCHDOG=1", 2 * PERIOD_S) is None:
                return
        self.fail("the stopped daemon sends WATCHDOG=1")


if __name__ == "__main__":
    unittest.main()
