#!/usr/bin/env python3
"""An upgrade restarts the daemon only where the new one would take over."""

import os
import pathlib
import subprocess
import tempfile
import unittest

SCRIPT = (pathlib.Path(__file__).resolve().parents[2] /
          "deploy/package/debian/postinst")
# What the script calls. Each notes how it was called.
CALLED = ("systemd-sysusers", "deb-systemd-helper", "systemd-tmpfiles",
          "systemctl", "deb-systemd-invoke", "sluiced")


class Postinst(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.calls = self.folder / "calls"
        for name in CALLED:
            self.answer(name, "exit 0")

    def answer(self, name, script):
        program = self.folder / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >> {self.calls}\n'
                           f"{script}\n", encoding="ascii")
        program.chmod(0o755)

    def configure(self, *earlier):
        # As where systemd has booted.
        text = SCRIPT.read_text(encoding="ascii")
        self.assertIn("/run/systemd/system", text)
        done = subprocess.run(
            ["sh", "-c", text.replace("/run/systemd/system", str(self.folder)),
             "postinst", "configure", *earlier],
            env={"PATH": f"{self.folder}:{os.environ['PATH']}"},
            capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout, self.calls.read_text(encoding="ascii")

    def test_the_first_installation_starts_it(self):
        _, calls = self.configure()
        self.assertIn("deb-systemd-invoke start sluiced.service", calls)
        self.assertNotIn("restart", calls)

    def test_an_upgrade_restarts_it_after_asking(self):
        _, calls = self.configure("0.1.0")
        asked = calls.index("--check-state")
        self.assertLess(asked, calls.index("try-restart sluiced.service"))

    def test_what_would_not_be_taken_over_goes_on(self):
        self.answer("sluiced", "echo 'error: it is of version 2' >&2; exit 1")
        said, calls = self.configure("0.1.0")
        self.assertIn("it is of version 2", said)
        self.assertNotIn("restart", calls)
        self.assertNotIn("stop", calls)

    def test_one_that_was_stopped_stays_stopped(self):
        self.answer("systemctl", 'test "$2" != is-active')
        _, calls = self.configure("0.1.0")
        self.assertNotIn("restart", calls)
        self.assertNotIn("deb-systemd-invoke", calls)


if __name__ == "__main__":
    unittest.main()
