#!/usr/bin/env python3
"""systemd accepts the units, users and folders, and the service is hardened:
units_test.py BUILD"""

import os
import re
import subprocess
import sys
import tempfile
import unittest

import installed

BUILD = sys.argv.pop()
MOST_EXPOSED = 30  # highest exposure score that systemd may give, out of 100
TREE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
SOURCE = os.path.join(TREE, "daemon/service/grant_pages.cc")


class Unit(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.prefix = cls.folder.name + "/usr"
        installed.install(BUILD, cls.prefix, "daemon")
        cls.unit = cls.prefix + "/lib/systemd/system/sluiced.service"
        cls.socket = cls.prefix + "/lib/systemd/system/sluiced.socket"

    def analyze(self, *words):
        return subprocess.run(["systemd-analyze", *words, self.unit],
                              capture_output=True, text=True, check=False)

    def test_the_unit_is_understood_without_a_warning(self):
        verified = self.analyze("verify", "--man=no", "--recursive-errors=no")
        self.assertEqual(verified.returncode, 0, verified.stderr)
        ours = [line for line in verified.stderr.splitlines()
                if "sluiced" in line]
        self.assertEqual(ours, [])

    def test_the_socket_is_understood_without_a_warning(self):
        verified = installed.run(
            "systemd-analyze", "verify", "--man=no", "--recursive-errors=no",
            self.socket, self.unit)
        self.assertEqual([line for line in verified.splitlines()
                          if "sluiced" in line], [])

    def test_the_socket_is_what_the_daemon_would_make(self):
        with open(self.socket, encoding="ascii") as file:
            unit = dict(re.findall(r"^(\w+)=(.*)$", file.read(), re.M))
        self.assertEqual(unit["ListenSequentialPacket"],
                         "/run/sluice/session.sock")
        for key, path, pattern in (
                ("SocketMode", "daemon/service/session_listener.h",
                 r"int mode = (\d+);"),
                ("Backlog", "proto/unix_socket.cc",
                 r"int kBacklog = (\d+);")):
            with open(os.path.join(TREE, path), encoding="ascii") as file:
                [same] = re.findall(pattern, file.read())
            self.assertEqual(unit[key], same)

    def test_exposure_is_within_the_limit(self):
        judged = self.analyze("security", "--offline=true",
                              f"--threshold={MOST_EXPOSED}", "--no-pager")
        [overall] = [line for line in judged.stdout.splitlines()
                     if "Overall exposure" in line]
        print(overall)
        self.assertEqual(judged.returncode, 0, overall)

    def test_the_unit_tells_the_daemon_the_size_of_its_store(self):
        with open(self.unit, encoding="ascii") as file:
            unit = dict(re.findall(r"^(\w+)=(.*)$", file.read(), re.M))
        stored = unit["FileDescriptorStoreMax"]
        self.assertEqual(unit["Environment"], "FDSTORE=" + stored)
        # All stored descriptors are passed to the next daemon.
        self.assertGreater(int(unit["LimitNOFILE"]), 2 * int(stored))
        self.assertEqual(unit["RestartSec"], "0")
        self.assertNotIn("MemoryMax", unit)

    def test_threads_may_raise_their_priority(self):
        """The grants thread uses real-time scheduling, or else runs at kNice.
        The unit must allow both."""
        with open(self.unit, encoding="ascii") as file:
            unit = dict(re.findall(r"^(\w+)=(.*)$", file.read(), re.M))
        with open(SOURCE, encoding="ascii") as file:
            [nice] = re.findall(r"kNice = (-\d+);", file.read())
        self.assertNotIn("RestrictRealtime", unit)
        self.assertGreaterEqual(int(unit["LimitRTPRIO"]), 1)
        self.assertLessEqual(int(unit["LimitNICE"]), int(nice))

    def test_users_and_folders_are_understood(self):
        root = self.folder.name
        os.makedirs(root + "/etc", exist_ok=True)
        installed.run("systemd-sysusers", "--root=" + root, "--dry-run",
                      self.prefix + "/lib/sysusers.d/sluice.conf")
        with open(root + "/etc/passwd", "w", encoding="ascii") as file:
            file.write("root:x:0:0::/:/bin/sh\nsluice:x:1:1::/:/bin/sh\n")
        with open(root + "/etc/group", "w", encoding="ascii") as file:
            file.write("root:x:0:\nsluice:x:1:\n")
        installed.run("systemd-tmpfiles", "--root=" + root, "--create",
                      self.prefix + "/lib/tmpfiles.d/sluice.conf")
        self.assertTrue(os.path.isdir(root + "/run/sluice"))


if __name__ == "__main__":
    unittest.main()
