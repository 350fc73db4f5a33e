#!/usr/bin/env python3
"""An upgrade restarts the daemon only if the new one would take over, and
makes systemd reload its units only if the package's unit has changed."""

import os
import pathlib
import subprocess
import tempfile
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "deploy/package/debian"
# Commands that the script calls. The test replaces each by a program that logs
# its arguments.
CALLED = ("systemd-sysusers", "deb-systemd-helper", "systemd-tmpfiles",
          "systemctl", "deb-systemd-invoke", "sluiced", "sleep")


class Postinst(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.calls = self.folder / "calls"
        for name in CALLED:
            self.answer(name, "exit 0")
        self.running()

    def answer(self, name, script):
        program = self.folder / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >> {self.calls}\n'
                           f"{script}\n", encoding="ascii")
        program.chmod(0o755)

    def running(self, more=""):
        """Makes systemctl report an active service, and run `more`."""
        self.answer("systemctl", "echo ActiveState=active\n" + more)

    def script(self, name, *words):
        """Runs a package's script as if systemd had booted, in the test's
        folder."""
        text = (SCRIPTS / name).read_text(encoding="ascii")
        for path in "/run/systemd/system", "/usr/lib/systemd/system", "/run":
            self.assertIn(path, text)
            text = text.replace(path, str(self.folder))
        text = text.replace("/usr/sbin", str(self.folder))
        done = subprocess.run(
            ["sh", "-c", text, name, *words],
            env={"PATH": f"{self.folder}:{os.environ['PATH']}"},
            capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def configure(self, *earlier):
        said = self.script("postinst", "configure", *earlier)
        return said, self.calls.read_text(encoding="ascii")

    def upgrade(self, unit, next_unit):
        """Upgrades from one unit to the next; returns the calls. systemctl
        reports that no reload is needed if the scripts gave the next unit the
        modification time of the first unit."""
        path = self.folder / "sluiced.service"
        path.write_text(unit, encoding="ascii")
        os.utime(path, (1, 1))
        self.script("preinst", "upgrade", "0.1.0")
        path.write_text(next_unit, encoding="ascii")
        self.running(f"test $(stat -c %Y {path}) = 1 && "
                     "echo NeedDaemonReload=no")
        _, calls = self.configure("0.1.0")
        self.assertEqual(list(self.folder.glob("*.earlier")), [])
        return calls

    def test_the_first_installation_starts_the_daemon(self):
        _, calls = self.configure()
        self.assertIn("deb-systemd-invoke start sluiced.service", calls)
        self.assertNotIn("restart", calls)

    def test_an_upgrade_restarts_after_a_check_of_the_state(self):
        _, calls = self.configure("0.1.0")
        asked = calls.index("--check-state")
        self.assertLess(
            asked, calls.index("systemctl try-restart sluiced.service"))

    def test_an_upgrade_runs_in_separate_steps(self):
        """The script sleeps after dpkg's work, and again after the checks
        before the restart, unless no job can be running."""
        calls = self.upgrade("one", "another").splitlines()
        [first, second] = [i for i, call in enumerate(calls)
                           if call.startswith("sleep ")]
        self.assertLess(first, calls.index("systemctl --system daemon-reload"))
        self.assertIn("--check-state", calls[second - 1])
        self.assertIn("try-restart", calls[second + 1])
        self.calls.unlink()
        self.assertNotIn("sleep", self.configure()[1])
        self.answer("systemctl", "echo ActiveState=inactive")
        self.assertNotIn("sleep", self.configure("0.1.0")[1])

    def test_an_upgrade_obeys_policy_rc_d(self):
        (self.folder / "policy-rc.d").touch()
        _, calls = self.configure("0.1.0")
        self.assertIn("deb-systemd-invoke try-restart sluiced.service", calls)

    def test_links_are_made_again_only_if_they_change(self):
        one, other = ("[Service]\n[Install]\nWantedBy=" + target
                      for target in ("one", "other"))
        self.assertIn("deb-systemd-helper enable", self.upgrade(one, other))
        for same in one, "# Changed.\n" + one:
            self.calls.unlink()
            self.assertNotIn("deb-systemd-helper", self.upgrade(one, same))

    def test_the_first_installation_makes_links(self):
        _, calls = self.configure()
        self.assertIn("deb-systemd-helper enable", calls)

    def test_units_are_reloaded_if_the_daemons_unit_changed(self):
        self.assertIn("daemon-reload", self.upgrade("one", "another"))

    def test_a_changed_unit_is_reloaded_even_if_systemd_sees_no_change(self):
        path = self.folder / "sluiced.service"
        path.write_text("one", encoding="ascii")
        self.script("preinst", "upgrade", "0.1.0")
        path.write_text("an earlier one", encoding="ascii")
        self.running("echo NeedDaemonReload=no")
        _, calls = self.configure("0.1.0")
        self.assertIn("daemon-reload", calls)

    def test_units_are_not_reloaded_for_an_equal_unit(self):
        self.assertNotIn("daemon-reload", self.upgrade("one", "one"))

    def test_a_daemon_that_cannot_be_taken_over_keeps_running(self):
        self.answer("sluiced", "echo 'error: it is of version 2' >&2; exit 1")
        said, calls = self.configure("0.1.0")
        self.assertIn("it is of version 2", said)
        self.assertNotIn("restart", calls)
        self.assertNotIn("stop", calls)

    def test_a_stopped_daemon_stays_stopped(self):
        self.answer("systemctl", "echo ActiveState=inactive")
        _, calls = self.configure("0.1.0")
        self.assertNotIn("restart", calls)
        self.assertNotIn("deb-systemd-invoke", calls)


if __name__ == "__main__":
    unittest.main()
