#!/usr/bin/env python3
"""Root's tests run as a plain user, even in a folder of root's home."""

import os
import pwd
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import plain_user

HERE = os.path.dirname(os.path.abspath(__file__))


class PlainUser(unittest.TestCase):

    def run_as_nobody(self, script, needed=()):
        words = [os.path.join(HERE, "launch.py"), "sh", "-c", script]
        return subprocess.run(
            plain_user.command(words, [os.path.dirname(HERE), *needed]),
            # Not this test's own TMPDIR, which belongs to root.
            env={**os.environ, "TMPDIR": "/tmp",
                 "SLUICE_TEST_USER": plain_user.USER},
            cwd="/", capture_output=True, text=True, timeout=60)

    def test_a_test_runs_as_nobody_with_its_own_home(self):
        done = self.run_as_nobody('id -u; id -G; cd; test "$PWD" = "$TMPDIR"; '
                                  "touch here")
        nobody = pwd.getpwnam("nobody")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.split(),
                         [str(nobody.pw_uid), str(nobody.pw_gid)])

    def test_a_needed_folder_is_reachable_and_its_neighbours_are_not(self):
        with tempfile.TemporaryDirectory() as home:  # mode 0700
            for name in "needed/deep", "secret":
                os.makedirs(os.path.join(home, name))
                with open(os.path.join(home, name, "file"), "w",
                          encoding="utf-8") as file:
                    file.write(name + "\n")
            needed = os.path.join(home, "needed/deep")
            done = self.run_as_nobody(
                f"cat {needed}/file; ls {home}; cat {home}/secret/file",
                [needed])
            self.assertEqual(done.stdout.split(), ["needed/deep", "needed"])
            self.assertNotEqual(done.returncode, 0)
            self.assertEqual(sorted(os.listdir(home)), ["needed", "secret"])


if __name__ == "__main__":
    sys.exit(unittest.main())
